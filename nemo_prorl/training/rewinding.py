"""Takes a run back to the start of a stage, or to one of its checkpoints. What came later is moved, never deleted.

RUN/set_aside/TIME/    checkpoints/, stages/, and the files of later steps (STEP_FOLDERS); metrics.jsonl,
                       digests.jsonl and remeasured/, whole
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.checkpoints import CHECKPOINTS_FOLDER, Checkpoint, find_checkpoints
from nemo_prorl.run_folder.metrics_file import rewind_metrics
from nemo_prorl.run_folder.records import DIGESTS, DigestLog, measured_files
from nemo_prorl.run_folder.storage import STEP_FOLDERS

FOLDER = "set_aside"
RECORDS = "metrics.jsonl"
ENDINGS = (".done", ".failed")
"""Suffixes of the markers of how a stage ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The state that a run was taken back to."""

    last: Checkpoint | None
    """The newest checkpoint that is left; None: the run begins anew."""
    aside: Path
    """Folder that holds everything later."""
    moved: tuple[Path, ...]
    """Paths in the run's folder that were moved there, checkpoints last."""


def rewind(run_dir: Path, stage: str, step: int | None = None) -> Rewound:
    """Takes the run back so that `stage` can begin again, or go on from its checkpoint of this `step` of the run. The
    caller has locked the folder.

    Everything that is moved keeps its place below `aside`. A process that dies midway leaves a run from which the same
    call goes on. Raises ConfigError if there is no such stage or checkpoint.
    """
    kept = _kept(find_checkpoints(run_dir), run_dir, stage, step)
    last = kept[-1] if kept else None
    moved = tuple(_later(run_dir, kept, reopened="" if step is None else stage))
    aside = run_dir / FOLDER / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
    aside.mkdir(parents=True)
    for path in filter(Path.is_file, [run_dir / RECORDS, run_dir / DIGESTS, *measured_files(run_dir)]):
        copy = aside / path.relative_to(run_dir)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    num_records, last_step = (last.state.num_records, last.state.step) if last else (0, 0)
    rewind_metrics(run_dir / RECORDS, num_records, last_step)
    DigestLog(run_dir, last_step)
    for path in moved:
        target = aside / path.relative_to(run_dir)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    return Rewound(last=last, aside=aside, moved=moved)


def _kept(checkpoints: list[Checkpoint], run_dir: Path, stage: str, step: int | None) -> list[Checkpoint]:
    """Returns the checkpoints up to the one to go back to, oldest first. Raises ConfigError."""
    own = [number for number, checkpoint in enumerate(checkpoints) if checkpoint.state.stage == stage]
    if not own:
        stages = ", ".join(dict.fromkeys(checkpoint.state.stage for checkpoint in checkpoints)) or "none"
        raise ConfigError(
            f"{run_dir} has no checkpoint of stage {stage}: write one of its stages ({stages})."
        )
    if step is None:
        return checkpoints[: own[0]]
    steps = {checkpoints[number].state.step: number for number in own if checkpoints[number].has_moments}
    if step not in steps:
        has = ", ".join(map(str, steps))
        advice = f"write one of {has}" if has else "without --step the stage begins again"
        raise ConfigError(
            f"stage {stage} in {run_dir} has no checkpoint of step {step} to go on from: {advice}."
        )
    return checkpoints[: steps[step] + 1]


def _later(run_dir: Path, kept: list[Checkpoint], *, reopened: str) -> Iterator[Path]:
    """Yields what belongs to a later time than the kept checkpoints, in the order in which to move it: the newest
    checkpoint before older ones, so that those left are a run at every moment. reopened: the stage that goes on."""
    last_step = kept[-1].state.step if kept else 0
    folders = [*STEP_FOLDERS, "validations/*"]
    for file in sorted(path for folder in folders for path in run_dir.glob(f"{folder}/step-*")):
        found = re.match(r"step-(\d+)", file.name)
        if found and int(found[1]) > last_step:
            yield file
    stages = {checkpoint.state.stage for checkpoint in kept}
    for file in sorted(run_dir.glob("stages/*")):
        if file.stem not in stages or (file.stem == reopened and file.suffix in ENDINGS):
            yield file
    paths = {checkpoint.path for checkpoint in kept}
    whole = [checkpoint.path for checkpoint in reversed(find_checkpoints(run_dir))]
    others = set((run_dir / CHECKPOINTS_FOLDER).iterdir()) - set(whole)  # damaged and incomplete ones
    yield from (path for path in [*sorted(others), *whole] if path not in paths)
