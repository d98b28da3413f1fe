"""Writes what a step sampled and what its updates made of it into RUN/rollouts (run_folder/records.py)."""

from __future__ import annotations

from pathlib import Path

from nemo_prorl.algorithm.metrics import token_limits
from nemo_prorl.distributed import Layout
from nemo_prorl.run_folder.records import write_rollouts, write_trained
from nemo_prorl.training.step import StepResult


def record_rollouts(run_dir: Path, step: int, result: StepResult, layout: Layout) -> None:
    """Writes the rollouts that this rank sampled, and as a replica's leader also what the replica trained on."""
    write_rollouts(run_dir, step, layout.rank, result.collection.graded())
    trained = []
    for rows, batch, report in zip(result.rows, result.batches, result.reports, strict=True):
        limits_BT = token_limits(report, batch, result.config.algorithm)
        for row, limits, mask in zip(rows, limits_BT, batch.tokens.response_mask_BT, strict=True):
            of_row = {"uid": row.rollout.prompt.uid, "sibling": row.key[1], "advantage": row.advantage}
            trained.append(of_row | {"old_logprobs": row.rollout.old_logprobs, "limits": limits[mask]})
    if layout.leads_replica:
        write_trained(run_dir, step, layout.rank, trained)
