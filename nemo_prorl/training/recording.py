"""Writes what a step sampled and what its updates made of it into RUN/rollouts (run_folder/records.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nemo_prorl.algorithm.metrics import token_limits
from nemo_prorl.data.batch import responses
from nemo_prorl.distributed import Layout
from nemo_prorl.run_folder.records import TrainedRollout, write_rollouts, write_trained
from nemo_prorl.training.step import StepResult


def record_rollouts(run_dir: Path, step: int, result: StepResult, layout: Layout) -> None:
    """Writes the rollouts that this rank sampled, and as a replica's leader also what the replica trained on."""
    write_rollouts(run_dir, step, layout.rank, result.collection.graded())
    if layout.leads_replica:
        write_trained(run_dir, step, layout.rank, trained_rollouts(result))


def trained_rollouts(result: StepResult) -> Iterator[TrainedRollout]:
    """Yields what each update made of each rollout that this replica trained on."""
    for rows, batch, report in zip(result.rows, result.batches, result.reports, strict=True):
        limits_BT = token_limits(report, batch, result.config.algorithm)
        for row, limits in zip(rows, responses(limits_BT, [row.rollout for row in rows]), strict=True):
            yield TrainedRollout(
                uid=row.rollout.prompt.uid,
                sibling=row.key[1],
                advantage=row.advantage,
                old_logprobs=row.rollout.logprobs[0],
                limits=limits,
            )
