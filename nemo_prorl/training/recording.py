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
    updates = zip(result.rows, result.batches, result.reports, strict=True)
    for update, (rows, batch, report) in enumerate(updates, start=1):
        rollouts = [row.rollout for row in rows]
        limits = responses(token_limits(report, batch, result.config.algorithm), rollouts)
        current = responses(report.current_logprobs_BT, rollouts)
        for row, now, bits in zip(rows, current, limits, strict=True):
            old, _ = row.rollout.logprobs
            yield TrainedRollout(
                uid=row.rollout.prompt.uid,
                sibling=row.key[1],
                update=update,
                advantage=row.advantage,
                old_minus_sampler=old - row.rollout.sampler_logprobs,
                current_minus_old=now - old,
                limits=bits,
            )
