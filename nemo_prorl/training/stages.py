"""Where a stage begins: at its own newest checkpoint, at its parent's last, or at the Hugging Face model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.training.checkpoint import Checkpoint, find_checkpoints, last_of_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """`checkpoint` None: from model.path. `is_resume`: this stage's own work goes on, nothing is reset."""

    checkpoint: Checkpoint | None
    is_resume: bool


def done_marker(run_dir: Path, stage: str) -> Path:
    """Exists when the stage is finished; it, not an exit code, says so."""
    return run_dir / "stages" / f"{stage}.done"


def is_done(run_dir: Path, stage: str) -> bool:
    """A finished stage is never run again."""
    return done_marker(run_dir, stage).is_file()


def mark_done(run_dir: Path, stage: str, *, outcome: str, checkpoint: str) -> None:
    """Written last, and whole or not at all."""
    marker = done_marker(run_dir, stage)
    marker.parent.mkdir(parents=True, exist_ok=True)
    aside = marker.with_suffix(".writing")
    aside.write_text(json.dumps({"outcome": outcome, "checkpoint": checkpoint}), encoding="utf-8")
    os.replace(aside, marker)


def find_starting_point(config: RunConfig) -> StartingPoint:
    """Raises ConfigError when the folder does not fit the stage."""
    run_dir, stage = Path(config.exp_manager.explicit_log_dir), config.stage
    checkpoints = find_checkpoints(run_dir)
    own = last_of_stage(checkpoints, stage.name)
    if own is not None:
        if not config.exp_manager.resume_if_exists:
            raise ConfigError(
                f"{run_dir} already holds checkpoints of stage {stage.name} and exp_manager.resume_if_exists=false: "
                "write another exp_manager.explicit_log_dir."
            )
        return StartingPoint(checkpoint=own, is_resume=True)
    if stage.parent:
        parent = last_of_stage(checkpoints, stage.parent)
        if parent is None or not is_done(run_dir, stage.parent):
            raise ConfigError(
                f"stage {stage.name} continues stage {stage.parent}, which has not finished in {run_dir}: "
                f"run stage={stage.parent} first, or point exp_manager.explicit_log_dir to its folder."
            )
        if checkpoints[-1].state.stage != stage.parent:
            raise ConfigError(
                f"{run_dir} has gone on from stage {stage.parent} to stage {checkpoints[-1].state.stage}: to begin "
                f"stage {stage.name} there as well, copy stage {stage.parent}'s checkpoint and done marker to another "
                "exp_manager.explicit_log_dir."
            )
        return StartingPoint(checkpoint=parent, is_resume=False)
    if checkpoints:
        raise ConfigError(
            f"{run_dir} holds checkpoints of stage {checkpoints[-1].state.stage}, but stage {stage.name} has no "
            "parent: write stage.parent, or another exp_manager.explicit_log_dir."
        )
    return StartingPoint(checkpoint=None, is_resume=False)
