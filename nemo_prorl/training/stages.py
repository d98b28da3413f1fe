"""The start of a stage (its own newest checkpoint, its parent's last or best one, or the model), and its end."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nemo_prorl.config import BestMode, ConfigError, RunConfig, StartFrom
from nemo_prorl.distributed import Ranks
from nemo_prorl.run_folder.checkpoints import (
    Checkpoint,
    by_score,
    find_checkpoints,
    last_of_stage,
    score_kind,
)
from nemo_prorl.run_folder.markers import done_marker, is_done, why_failed
from nemo_prorl.run_folder.validation_metrics import VALIDATION
from nemo_prorl.training.checkpoint import is_intact
from nemo_prorl.training.control.resets import take_policy_of
from nemo_prorl.types import RunState


class Outcome(StrEnum):
    """The reason why training ends in this process."""

    steps = "steps"
    """The stage has trained for trainer.num_steps."""
    saturated = "saturated"
    """A step found too few informative groups, whose share has fallen step by step: the data is exhausted."""
    end_stage = "end_stage"
    """The controller ended the stage."""
    paused = "paused"
    """The time is up, or a signal came. The same command continues the stage."""
    stopped = "stopped"
    """The controller stopped the run, or the sampler lacks the policy's weights. `fit` raises StoppedByController."""


ENDS_STAGE = (Outcome.steps, Outcome.saturated, Outcome.end_stage)
"""Outcomes after which the stage is done."""


def last_line(outcome: Outcome, state: RunState, why: str, *, saved: bool) -> str:
    """Returns the last line that `fit` logs, or the error that it raises if a stage that is not done finds nothing to
    learn from (Outcome.stopped)."""
    if outcome is Outcome.stopped and not state.stage_step:
        return f"stage {state.stage} finds nothing to learn from: {why}"
    if outcome is Outcome.stopped:
        on = " The same command goes on from there; with trainer.num_steps={} the stage ends there.".format
        return f"stage {state.stage} stopped after step {state.step}: {why}{on(state.stage_step) if saved else ''}"
    if outcome is not Outcome.paused:
        return f"stage {state.stage} ends after step {state.step}" + (f": {why}" if why else ".")
    left = "Nothing is saved (exp_manager.create_checkpoint_callback=false): the same command begins again."
    if saved:
        left = "Everything is saved: the same command goes on from here."
    return f"paused after step {state.step}: {why}. {left}"


def said_of_done(run_dir: Path, stage: str) -> str:
    """Returns what a start of a stage says that is done; empty if it is not."""
    if not is_done(run_dir, stage):
        return ""
    on = f"to train it further, remove {done_marker(run_dir, stage)} and raise trainer.num_steps"
    return f"stage {stage} is already done in {run_dir}; {on}"


def where_it_goes_on(run_dir: Path) -> str:
    """Returns where the same command will continue a run that was ended without saving. Raises ConfigError if there are
    checkpoints, but none is complete."""
    checkpoints = find_checkpoints(run_dir)
    if not checkpoints:
        return "nothing is saved yet: the same command begins again."
    return f"the same command goes on after step {checkpoints[-1].state.step}, the last that is saved."


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """The weights and the state that a stage begins with."""

    checkpoint: Checkpoint | None
    """Checkpoint of the policy's weights, reference and optimizer; None: the model in model.path."""
    is_resume: bool
    """Whether the checkpoint is the stage's own. Then nothing is reset."""
    last: Checkpoint | None = None
    """The parent's last checkpoint, if `checkpoint` is an earlier one of the parent: the run's steps, records and data
    continue from the last one."""

    def state(self) -> RunState:
        """Returns a copy of the run's state that fits the policy of `checkpoint`, which must not be None."""
        assert self.checkpoint is not None
        state = deepcopy((self.last or self.checkpoint).state)
        if self.last is not None:
            take_policy_of(state, self.checkpoint)
        return state

    def measured(self, state: RunState) -> dict[str, float]:
        """Returns metric -> value of the checkpoint's score, if the stage goes on from its own checkpoint and `state`
        still measures the same."""
        saved = self.checkpoint
        if not self.is_resume or saved is None or saved.score is None:
            return {}
        return {saved.monitor: saved.score} if saved.kind == score_kind(saved.monitor, state) else {}

    def __str__(self) -> str:
        if self.checkpoint is None:
            return "the weights in model.path"
        text = f"step {self.checkpoint.state.step} of stage {self.checkpoint.state.stage}"
        if self.last is None:
            return text
        return f"{text}, the stage's best by {self.checkpoint.monitor} ({self.checkpoint.score:.4f})"


def find_starting_point(config: RunConfig) -> StartingPoint:
    """Returns where the stage begins, from the folder's checkpoints and markers. Raises ConfigError if they do not fit
    the stage."""
    run_dir, stage = Path(config.exp_manager.explicit_log_dir), config.stage
    checkpoints = find_checkpoints(run_dir)
    own = last_of_stage(checkpoints, stage.name)
    if own is not None:
        if not config.exp_manager.resume_if_exists:
            raise ConfigError(
                f"{run_dir} already holds checkpoints of stage {stage.name} and exp_manager.resume_if_exists=false: "
                "write another exp_manager.explicit_log_dir."
            )
        if checkpoints[-1].state.stage != stage.name:  # a resume would delete the later stage's records
            raise ConfigError(
                f"{run_dir} has gone on from stage {stage.name} to stage {checkpoints[-1].state.stage}: `python -m "
                f"nemo_prorl rewind {run_dir} {stage.name}` sets aside both, so that {stage.name} begins again (with "
                f"--step {own.state.step} it goes on); to keep both, copy its last checkpoint to the checkpoints/ of "
                "another exp_manager.explicit_log_dir."
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
                f"run stage={stage.parent} first, or point exp_manager.explicit_log_dir to its folder, or write "
                "stage.parent= to begin with model.path."
            )
        if checkpoints[-1].state.stage != stage.parent:
            following = checkpoints[checkpoints.index(parent) + 1].state.stage
            raise ConfigError(
                f"{run_dir} has gone on from stage {stage.parent} to stage {checkpoints[-1].state.stage}: `python -m "
                f"nemo_prorl rewind {run_dir} {following}` sets aside what followed stage "
                f"{stage.parent}; to keep it, copy stage {stage.parent}'s checkpoint and done marker to another "
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
    """Returns the best checkpoint of the parent as the start; `last` is the parent's last one. Raises ConfigError if
    none of them has a score."""
    params, parent = config.exp_manager.checkpoint_callback_params, last.state.stage
    candidates = by_score(checkpoints, score_kind(params.monitor, last.state), params.mode, stage=parent)
    if candidates:
        equals = [checkpoint for checkpoint in candidates if checkpoint.score == candidates[0].score]
        best = last if last in equals else candidates[0]
        return StartingPoint(checkpoint=best, is_resume=False, last=None if best is last else last)
    scored = [c for c in checkpoints if c.score is not None and c.state.stage == parent]
    others = sorted({c.monitor for c in scored} - {params.monitor})  # that one is of another measurement
    option = "exp_manager.checkpoint_callback_params.monitor"
    hint = f"write {option}={others[0]}, which they have, or " if others else ""
    raise ConfigError(
        f"stage.start_from=best: no checkpoint of stage {parent} in {config.exp_manager.explicit_log_dir} has a "
        f"value of {params.monitor}, so none is the best: {hint}write stage.start_from=last."
    )


def best_without_checkpoint(start: StartingPoint, config: RunConfig) -> str:
    """Returns a warning if the parent's best validation has no checkpoint, so that the stage begins with worse weights;
    else an empty string."""
    params = config.exp_manager.checkpoint_callback_params
    if start.is_resume or start.checkpoint is None or config.stage.start_from is not StartFrom.best:
        return ""
    name, sign = params.monitor.removeprefix(VALIDATION), 1.0 if params.mode is BestMode.max else -1.0
    end = (start.last or start.checkpoint).state
    measured = {  # the parent's own; it may begin at a step that its own parent validated: the later entry replaces it
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
    """Returns `start` if its checkpoint is intact, or else the starting point that the intact checkpoints give.
    Collective. Raises ConfigError on every rank if no intact checkpoint is left to begin with."""
    while start.checkpoint is not None and not is_intact(start.checkpoint, ranks):
        start = ranks.on_main(lambda: find_starting_point(config))
    return start
