"""Where a stage begins: at its own newest checkpoint, at its parent's last, or at the Hugging Face model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Policy
from nemo_prorl.training.checkpoint import Checkpoint, find_checkpoints, is_intact, last_of_stage
from nemo_prorl.training.markers import is_done, why_failed
from nemo_prorl.types import RunState


class Outcome(StrEnum):
    """Why `fit` returned. All but `paused` end the stage."""

    steps = "steps"
    """It took trainer.num_steps."""
    saturated = "saturated"
    """The data has nothing left to teach this policy."""
    end_stage = "end_stage"
    """The controller decided so."""
    paused = "paused"
    """The time is up, or a signal came: the same command goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """`checkpoint` None: from model.path. `is_resume`: this stage's own work goes on, nothing is reset."""

    checkpoint: Checkpoint | None
    is_resume: bool


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
        if checkpoints[-1].state.stage != stage.name:  # whose records a resume would take back
            raise ConfigError(
                f"{run_dir} has gone on from stage {stage.name} to stage {checkpoints[-1].state.stage}: to train stage "
                f"{stage.name} further, copy its last checkpoint to the checkpoints/ of another "
                "exp_manager.explicit_log_dir."
            )
        return StartingPoint(checkpoint=own, is_resume=True)
    if stage.parent:
        parent = last_of_stage(checkpoints, stage.parent)
        if reason := why_failed(run_dir, stage.parent):
            raise ConfigError(
                f"stage {stage.name} continues stage {stage.parent}, which failed in {run_dir}: {reason}"
            )
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


def reset_policy(policy: Policy, state: RunState, *, optimizer: bool) -> None:
    """ProRL's hard reset (arXiv 2505.24864, section 3.2.1): the policy becomes its own reference, and with `optimizer`
    the moments are cleared. Weights and learning rate stay."""
    policy.adopt_as_reference()
    if optimizer:
        policy.reset_optimizer()
    state.num_resets += 1
    state.last_reset_step, state.last_reset_update = state.step, state.num_updates


def find_intact_start(config: RunConfig, start: StartingPoint, ranks: Ranks) -> StartingPoint:
    """Collective: `start` if its checkpoint's content is what was written, else where an older one lets it begin.

    Raises ConfigError on every rank when there is none.
    """
    while start.checkpoint is not None and not is_intact(start.checkpoint, ranks):
        found = ranks.from_main(_start_or_error(config) if ranks.layout.is_main else start)
        if isinstance(found, ConfigError):
            raise found
        start = found
    return start


def _start_or_error(config: RunConfig) -> StartingPoint | ConfigError:
    try:
        return find_starting_point(config)
    except ConfigError as error:
        return error
