"""The result of every held-out prompt: one small Parquet file per validation in RUN/validations, with the columns of
RUN/difficulty. Two runs that validate the same prompts can be compared prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.run_folder.difficulty import write_prompts
from nemo_prorl.run_folder.storage import StepFiles
from nemo_prorl.types import RolloutGroup


def validation_files(run_dir: Path) -> StepFiles:
    """Returns the run's validation files. A file is named after its stage and the step that its validation
    followed."""
    return StepFiles(run_dir / "validations", ".parquet")


def write_validation(run_dir: Path, stage: str, step: int, groups: Sequence[RolloutGroup]) -> None:
    """Writes the held-out prompts of a stage's validation, which followed `step`."""
    write_prompts(validation_files(run_dir).path(step, stage), step, groups)


def read_rewards(run_dir: Path, stage: str, step: int) -> dict[str, float]:
    """Returns uid -> mean reward of each held-out prompt in the stage's validation after `step`. Raises
    FileNotFoundError if there was no such validation."""
    import pyarrow.parquet as pq

    table = pq.read_table(validation_files(run_dir).path(step, stage), columns=["uid", "reward_mean"])
    return dict(zip(table["uid"].to_pylist(), table["reward_mean"].to_pylist(), strict=True))
