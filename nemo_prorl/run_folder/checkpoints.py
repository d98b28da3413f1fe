"""The files of a run's checkpoints: where they are, which are complete, and which is the best. Imports no torch.

    RUN/checkpoints/step-00000040-STAGE/
        state.json      state of the run, value of the monitored metric, hash of the reference, versions of the software
        policy/         weights, optimizer, reference, random states (Megatron's distributed checkpoint); the
                        optimizer's moments in moments/, which is deleted if keep_moments is false
        huggingface/    config and tokenizer of the model, for exports
        manifest.json   size and hash of every other file, written last

training/checkpoint.py writes and loads them. docs/long_runs.md lists the guarantees.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.config import BestMode, ConfigError
from nemo_prorl.run_folder.storage import (
    MANIFEST_FILE,
    changed_content,
    missing_or_torn,
    read_manifest,
    write_manifest,
    write_text,
)
from nemo_prorl.run_folder.terminal import say_once
from nemo_prorl.run_folder.validation_metrics import VALIDATION, measurement_name
from nemo_prorl.types import RunState

CHECKPOINTS_FOLDER = "checkpoints"
"""Folder of a run with its checkpoints."""
STATE_FILE = "state.json"
POLICY_FOLDER = "policy"
MOMENTS_FOLDER = "moments"
"""Folder in POLICY_FOLDER with Adam's moments, as a distributed checkpoint of their own."""
WITHOUT_MOMENTS = "without_moments"
"""File in POLICY_FOLDER that says that the moments were deleted."""
MODEL_FOLDER = "huggingface"
REPLACED = ".replaced"
"""Suffix of a checkpoint while a newer one of the same step replaces it."""
CORRUPT = "corrupt-"
"""Prefix of a checkpoint whose files are not what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: RunState
    score: float | None
    """Value of the monitored metric for these weights; None if it was not measured."""
    monitor: str
    """Name of that metric."""
    reference_hash: str
    """`Policy.reference_hash` at the time of saving."""
    is_requested: bool = False
    """Whether a user has asked for it."""

    @property
    def policy(self) -> Path:
        return self.path / POLICY_FOLDER

    @property
    def has_moments(self) -> bool:
        """Whether it still has the optimizer's moments, without which no stage can go on exactly."""
        return not (self.policy / WITHOUT_MOMENTS).exists()

    def remove_moments(self) -> None:
        """Deletes the optimizer's moments. At any time the checkpoint has all files that its manifest lists."""
        moments = self.policy / MOMENTS_FOLDER
        if moments.exists():
            write_text(self.policy / WITHOUT_MOMENTS, "")
            write_manifest(self.path, read_manifest(self.path), without=moments)
            shutil.rmtree(moments, ignore_errors=True)

    @property
    def kind(self) -> tuple[str, str]:
        """Name of what its score measures. Scores of different kinds are never compared."""
        return score_kind(self.monitor, self.state)


def checkpoint_name(state: RunState) -> str:
    """Returns the folder's name. It contains the stage, because two stages may save the same step."""
    return f"step-{state.step:08d}-{state.stage}"


def step_of(path: Path) -> int:
    """Returns the step in the name of a checkpoint's folder."""
    return int(path.name.split("-")[1])


def score_kind(monitor: str, state: RunState) -> tuple[str, str]:
    """Returns what a checkpoint's score by the metric `monitor` measures: the metric, and for a metric of validation
    also the name of the measurement."""
    return monitor, measurement_name(state.measurement) if monitor.startswith(VALIDATION) else ""


def find_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Returns a run's complete checkpoints, oldest first, judged by the names and sizes of their files. Prints a line
    on standard error about each checkpoint that it skips.

    Raises ConfigError if there are checkpoints, but none is complete: the run must not silently begin anew.
    """
    found, damaged = [], {}
    folder = run_dir / CHECKPOINTS_FOLDER
    for path in sorted(folder.glob("step-*")):
        if path.suffix == REPLACED and path.with_suffix("").exists():
            continue
        try:
            found.append(read_checkpoint(path))
        except ValueError as error:
            damaged[path] = str(error)
    corrupt = dict.fromkeys(sorted(folder.glob(f"{CORRUPT}*")), "its content has changed")
    if not found and (damaged or corrupt):
        raise ConfigError(
            f"no checkpoint in {folder} is whole: "
            f"{', '.join(f'{path.name} ({reason})' for path, reason in (damaged | corrupt).items())}; bring back a "
            "copy of one, or remove them to begin anew."
        )
    for path, reason in damaged.items():
        say_once(f"skipped {path}, which is not whole: {reason}")
    # A stage that saturates at once saves the last step of its parent again, with one record more.
    return sorted(found, key=lambda checkpoint: (checkpoint.state.step, checkpoint.state.num_records))


def read_checkpoint(path: Path) -> Checkpoint:
    """Returns the folder's checkpoint. Raises ValueError with the reason if a file is missing, has another size than
    was written, or cannot be read."""
    if damage := missing_or_torn(path):
        raise ValueError(damage)
    try:
        record = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        return Checkpoint(
            path=path,
            state=RunState(**record["state"]),
            score=record["score"],
            monitor=record["monitor"],
            reference_hash=record["reference_hash"],
            is_requested=record.get("is_requested", False),
        )
    except TypeError as error:
        raise ValueError(
            f"another version of this program wrote {STATE_FILE}, which can read it: {error}"
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{STATE_FILE} cannot be read: {error}") from error


def newest_folder(run_dir: Path) -> Path | None:
    """Returns the folder of the newest complete checkpoint by names alone, for reports; None if there is none."""
    manifest = max((run_dir / CHECKPOINTS_FOLDER).glob(f"step-*/{MANIFEST_FILE}"), default=None)
    return manifest.parent if manifest else None


def locate_checkpoint(folder: Path) -> Path:
    """Returns the folder of a checkpoint to export: `folder`, its parent, or the newest whole checkpoint of the run
    that `folder` belongs to, as a resumed run takes it. Reads its files; raises ConfigError if it is not whole."""
    if (folder / CHECKPOINTS_FOLDER).is_dir():
        folder = folder / CHECKPOINTS_FOLDER
    if folder.name == CHECKPOINTS_FOLDER:
        for checkpoint in reversed(find_checkpoints(folder.parent)):
            if not (damage := changed_content(checkpoint.path)):
                return checkpoint.path
            say_once(f"skipped {checkpoint.path}, which is corrupt: {damage}")
        raise ConfigError(f"{folder.parent} holds no whole checkpoint: write the folder of another run.")
    if folder.name == POLICY_FOLDER and (folder.parent / STATE_FILE).is_file():
        folder = folder.parent
    is_listed = any((folder / name).is_file() for name in (MANIFEST_FILE, STATE_FILE))
    if is_listed and (damage := missing_or_torn(folder) or changed_content(folder)):
        raise ConfigError(f"{folder} is damaged ({damage}): write another checkpoint of the run.")
    return folder


def last_of_stage(checkpoints: Sequence[Checkpoint], stage: str) -> Checkpoint | None:
    """Returns the newest checkpoint that the stage wrote, if there is one."""
    return next((checkpoint for checkpoint in reversed(checkpoints) if checkpoint.state.stage == stage), None)


def by_score(
    checkpoints: Sequence[Checkpoint], kind: tuple[str, str], mode: BestMode, *, stage: str = ""
) -> list[Checkpoint]:
    """Returns the checkpoints that have a score of this kind, best first. stage: only this one's; empty: all stages'.

    Among equal scores the newest comes first, so that training that a small validation does not show is kept.
    """
    sign = _sign(mode)
    scored = [
        (sign * checkpoint.score, checkpoint.state.step, checkpoint)
        for checkpoint in checkpoints
        if checkpoint.score is not None and checkpoint.kind == kind and stage in ("", checkpoint.state.stage)
    ]
    return [checkpoint for *_, checkpoint in sorted(scored, key=lambda entry: entry[:2], reverse=True)]


def is_better(score: float, than: float, mode: BestMode) -> bool:
    """Returns whether `score` is better than `than`, and not equal to it."""
    return _sign(mode) * score > _sign(mode) * than


def _sign(mode: BestMode) -> float:
    return 1.0 if mode is BestMode.max else -1.0
