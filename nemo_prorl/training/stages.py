"""Where a stage begins: at its own newest checkpoint, at its parent's last or best, or at the Hugging Face model."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nemo_prorl.config import BestMode, ConfigError, RunConfig, StartFrom
from nemo_prorl.distributed import Ranks
from nemo_prorl.training.checkpoint import Checkpoint, by_score, find_checkpoints, is_intact, last_of_stage
from nemo_prorl.training.held_out import VALIDATION
from nemo_prorl.training.markers import is_done, why_failed
from nemo_prorl.training.resets import take_policy_of
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


def last_line(outcome: Outcome, state: RunState, why: str, *, saved: bool) -> str:
    """What the run says when `fit` returns."""
    if outcome is Outcome.paused and saved:
        return (
            f"paused after step {state.step}: {why}. Everything is saved: the same command goes on from here."
        )
    if outcome is Outcome.paused:
        return (
            f"paused after step {state.step}: {why}. Nothing is saved (exp_manager.create_checkpoint_callback=false): "
            "the same command begins again."
        )
    return f"stage {state.stage} ends after step {state.step}" + (f": {why}" if why else ".")


def where_it_goes_on(run_dir: Path) -> str:
    """What the same command does after the run was ended at once. Raises ConfigError where no checkpoint is whole."""
    checkpoints = find_checkpoints(run_dir)
    if not checkpoints:
        return "nothing is saved yet: the same command begins again."
    return f"the same command goes on after step {checkpoints[-1].state.step}, the last that is saved."


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """`checkpoint` None: from model.path. `is_resume`: this stage's own work goes on, nothing is reset."""

    checkpoint: Checkpoint | None
    """Whose weights, reference and optimizer the policy gets."""
    is_resume: bool
    last: Checkpoint | None = None
    """The parent's last one where `checkpoint` is an earlier one of the parent's: the run goes on behind it."""

    def state(self) -> RunState:
        """Of the run, as it goes with the policy of `checkpoint`, which there must be; a copy."""
        assert self.checkpoint is not None
        state = deepcopy((self.last or self.checkpoint).state)
        if self.last is not None:
            take_policy_of(state, self.checkpoint)
        return state

    def __str__(self) -> str:
        if self.checkpoint is None:
            return "model.path"
        text = f"step {self.checkpoint.state.step} of stage {self.checkpoint.state.stage}"
        if self.last is None:
            return text
        return f"{text}, whose {self.checkpoint.monitor} {self.checkpoint.score:.4f} is its best"


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
        if stage.start_from is StartFrom.best:
            return _at_best(config, checkpoints, parent)
        return StartingPoint(checkpoint=parent, is_resume=False)
    if checkpoints:
        raise ConfigError(
            f"{run_dir} holds checkpoints of stage {checkpoints[-1].state.stage}, but stage {stage.name} has no "
            "parent: write stage.parent, or another exp_manager.explicit_log_dir."
        )
    return StartingPoint(checkpoint=None, is_resume=False)


def _at_best(config: RunConfig, checkpoints: Sequence[Checkpoint], last: Checkpoint) -> StartingPoint:
    """At the best checkpoint of the stage that `last` ends. Raises ConfigError when none can be told to be the best."""
    params, parent = config.exp_manager.checkpoint_callback_params, last.state.stage
    candidates = by_score(checkpoints, params.monitor, params.mode, stage=parent)
    if candidates:
        equals = [checkpoint for checkpoint in candidates if checkpoint.score == candidates[0].score]
        best = last if last in equals else candidates[0]
        return StartingPoint(checkpoint=best, is_resume=False, last=None if best is last else last)
    others = sorted({c.monitor for c in checkpoints if c.score is not None and c.state.stage == parent})
    hint = (
        f"write exp_manager.checkpoint_callback_params.monitor={others[0]}, which they have, or "
        if others
        else ""
    )
    raise ConfigError(
        f"stage.start_from=best: no checkpoint of stage {parent} in {config.exp_manager.explicit_log_dir} has a "
        f"value of {params.monitor}, so none is the best: {hint}write stage.start_from=last."
    )


def best_without_checkpoint(start: StartingPoint, config: RunConfig) -> str:
    """A sentence where the parent has validated better weights than those that the stage begins with, but has no
    checkpoint of them any more; else empty."""
    params = config.exp_manager.checkpoint_callback_params
    if start.is_resume or start.checkpoint is None or config.stage.start_from is not StartFrom.best:
        return ""
    name, sign = params.monitor.removeprefix(VALIDATION), 1.0 if params.mode is BestMode.max else -1.0
    end = (start.last or start.checkpoint).state
    measured = {  # the stage's own at the step that it began with, not the last of its parent
        int(record["step"]): sign * record[name]
        for record in end.validation
        if name in record and record["step"] >= end.step - end.stage_step
    }
    value, step = max(((value, step) for step, value in measured.items()), default=(0.0, 0))
    if not measured or start.checkpoint.score is None or value <= sign * start.checkpoint.score:
        return ""
    return (
        f"{params.monitor} was {sign * value:.4f} after step {step}, of which there is no checkpoint: stage "
        f"{config.stage.name} begins with {start}"
    )


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
