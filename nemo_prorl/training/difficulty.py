"""How hard each prompt was when it was sampled: one small Parquet part a step in RUN/difficulty, for analysis.

A part holds every prompt of its step, kept or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_prorl.config import ConfigError
from nemo_prorl.storage import replaced
from nemo_prorl.training.held_out import CORRECT
from nemo_prorl.training.step_files import StepFiles
from nemo_prorl.types import RolloutGroup

if TYPE_CHECKING:
    import pyarrow as pa


def difficulty_files(run_dir: Path) -> StepFiles:
    """Of a run: a part for every step that it has trained."""
    return StepFiles(run_dir / "difficulty", ".parquet")


class DifficultyLog:
    """The main rank's; other ranks have none."""

    def __init__(self, run_dir: Path, *, step: int) -> None:
        """`step`: the run goes on after it."""
        self._files = difficulty_files(run_dir)
        self._files.take_back(step)

    def write(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """The prompts of one step; those that the service failed on altogether are left out."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [_row(step, group) for group in groups if group.members]
        if not rows:
            return
        with replaced(self._files.path(step)) as aside:
            pq.write_table(pa.Table.from_pylist(rows), aside)


def read_difficulty(run_dir: Path) -> pa.Table:
    """Columns step, uid, epoch, domain, source, num_rollouts, reward_mean, pass_rate; a row for every time that a
    prompt was sampled, in the order of the steps. Raises ConfigError when the run has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = difficulty_files(run_dir).all()
    if not parts:
        raise ConfigError(
            f"{run_dir} has no difficulty/ with parts of steps: write the folder of a run that has trained for a step."
        )
    return pa.concat_tables([pq.read_table(part) for _, part in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainDifficulty:
    """What a run found of one domain's prompts, or of all."""

    domain: str
    num_prompts: int
    num_visits: int
    first_pass_rate: float
    """Mean over prompts of the pass rate at their first visit."""
    last_pass_rate: float
    never_share: float
    """Prompts that no rollout has ever passed."""
    always_share: float
    """Prompts that every rollout has passed, at every visit."""


def summary(table: pa.Table) -> list[DomainDifficulty]:
    """By domain, then over all."""
    visits: dict[str, dict[str, list[float]]] = {}
    for domain, uid, rate in zip(
        *(table[name].to_pylist() for name in ("domain", "uid", "pass_rate")), strict=True
    ):
        visits.setdefault(domain, {}).setdefault(uid, []).append(rate)
    lines = [_domain(domain, list(rates.values())) for domain, rates in sorted(visits.items())]
    return [*lines, _domain("all", [rates for by_uid in visits.values() for rates in by_uid.values()])]


def _domain(domain: str, rates: list[list[float]]) -> DomainDifficulty:
    return DomainDifficulty(
        domain=domain,
        num_prompts=len(rates),
        num_visits=sum(map(len, rates)),
        first_pass_rate=float(np.mean([visits[0] for visits in rates])),
        last_pass_rate=float(np.mean([visits[-1] for visits in rates])),
        never_share=float(np.mean([max(visits) == 0.0 for visits in rates])),
        always_share=float(np.mean([min(visits) == 1.0 for visits in rates])),
    )


def _row(step: int, group: RolloutGroup) -> dict[str, Any]:
    """Scores are the verdicts', before shaping: how hard a prompt is does not depend on the penalties of a stage."""
    scores = [member.verdict.score or 0.0 for member in group.members]
    uid, _, epoch = group.prompt.uid.rpartition("#")
    return {
        "step": step,
        "uid": uid or epoch,
        "epoch": int(epoch) if uid else 0,
        "domain": group.prompt.domain,
        "source": group.prompt.source,
        "num_rollouts": len(scores),
        "reward_mean": float(np.mean(scores)),
        "pass_rate": float(np.mean([score >= CORRECT for score in scores])),
    }
