"""How hard each prompt was when it was sampled: one small Parquet file per step in RUN/difficulty, for analysis.

A file has every prompt that its step sampled, whether the step trained on it or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.held_out import CORRECT
from nemo_prorl.run_folder.step_files import StepFiles
from nemo_prorl.run_folder.storage import replaced
from nemo_prorl.types import RolloutGroup

if TYPE_CHECKING:
    import pyarrow as pa


def difficulty_files(run_dir: Path) -> StepFiles:
    """Returns the run's difficulty files, one for every step that it has trained."""
    return StepFiles(run_dir / "difficulty", ".parquet")


class DifficultyLog:
    """Writes the difficulty files. Only the main rank has one."""

    def __init__(self, run_dir: Path, *, step: int) -> None:
        """Deletes the files of steps after `step`, from which the run goes on."""
        self._files = difficulty_files(run_dir)
        self._files.take_back(step)

    def write(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Writes the prompts of one step, except those of which no rollout was graded."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [_row(step, group) for group in groups if group.members]
        if not rows:
            return
        with replaced(self._files.path(step)) as aside:
            pq.write_table(pa.Table.from_pylist(rows), aside)


def read_difficulty(run_dir: Path) -> pa.Table:
    """Returns a row for every time that a prompt was sampled, in the order of the steps, with the columns step, uid,
    epoch, domain, source, num_rollouts, reward_mean and pass_rate. Raises ConfigError if the run has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = difficulty_files(run_dir).all()
    if not parts:
        raise ConfigError(
            f"{run_dir} has no difficulty/ with files of steps: write the folder of a run that has trained for a step."
        )
    return pa.concat_tables([pq.read_table(part) for _, part in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainDifficulty:
    """How a run fared on the prompts of one domain, or of all domains."""

    domain: str
    num_prompts: int
    num_visits: int
    first_pass_rate: float
    """Mean over prompts of the pass rate when they were first sampled."""
    last_pass_rate: float
    """Mean over prompts of the pass rate when they were last sampled."""
    never_share: float
    """Share of the prompts that no rollout ever solved."""
    always_share: float
    """Share of the prompts that every rollout solved, each time that they were sampled."""


def summary(table: pa.Table) -> list[DomainDifficulty]:
    """Returns an entry per domain, in alphabetical order, and one for all domains. table: from `read_difficulty`."""
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
    """Returns the row of one prompt. It uses the scores before shaping, so that the difficulty does not depend on the
    penalties of a stage."""
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
