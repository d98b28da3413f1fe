"""The start of a stage (its own newest checkpoint, its parent's last or best one, or the model), what must fit for it,
and its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, Decay, RunConfig, StageConfig, StartFrom, TrainerConfig
from nemo_prorl.config.compose import to_dict
from nemo_prorl.data.mix import PromptMix
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Policy
from nemo_prorl.run_folder.checkpoints import (
    Checkpoint,
    by_score,
    find_checkpoints,
    last_of_stage,
    score_kind,
)
from nemo_prorl.run_folder.markers import (
    done_marker,
    failed_marker,
    is_done,
    why_failed,
    withdraw_reset_request,
)
from nemo_prorl.run_folder.storage import read_json, read_or_refuse, read_yaml
from nemo_prorl.training.checkpoint import is_intact, load_policy
from nemo_prorl.training.control.resets import reset_policy, take_policy_of
from nemo_prorl.types import CORRECT, RunState


class Outcome(StrEnum):
    """The reason why training ends in this process."""

    target = "target"
    """A validation has reached validation.stop_at."""
    steps = "steps"
    """The stage has trained for trainer.num_steps."""
    saturated = "saturated"
    """A step found too few informative groups, because nearly all are all right: the data is exhausted."""
    end_stage = "end_stage"
    """The controller ended the stage."""
    paused = "paused"
    """The time is up, or a signal came. The same command continues the stage."""
    stopped = "stopped"
    """The controller stopped the run, or the sampler lacks the policy's weights. `fit` raises StoppedByController."""


ENDS_STAGE = (Outcome.target, Outcome.steps, Outcome.saturated, Outcome.end_stage)
"""Outcomes after which the stage is done."""


def last_line(outcome: Outcome, state: RunState, why: str, *, saved: bool) -> str:
    """Returns the last line that `fit` logs, or the error that it raises if a stage that is not done finds nothing to
    learn from (Outcome.stopped)."""
    if outcome is Outcome.stopped and not state.stage_step:
        return f"stage {state.stage} finds nothing to learn from: {why}"
    if outcome is Outcome.stopped:
        on = " The same command tries again with other samples; with trainer.num_steps={} the stage ends there.".format
        return f"stage {state.stage} stopped after step {state.step}: {why}{on(state.stage_step) if saved else ''}"
    if outcome is not Outcome.paused:
        return f"stage {state.stage} ends after step {state.step}" + (f": {why}" if why else ".")
    left = "Nothing is saved (exp_manager.create_checkpoint_callback=false): the same command begins again."
    if saved:
        left = "Everything is saved: the same command goes on from here."
    return f"paused after step {state.step}: {why}. {left}"


def done_message(run_dir: Path, stage: str) -> str:
    """Returns what a start of a stage says that is done; empty if it is not."""
    if not is_done(run_dir, stage):
        return ""
    marker = done_marker(run_dir, stage)
    more = {Outcome.target: "raise validation.stop_at", Outcome.end_stage: "write controller.mode=manual"}
    on = more.get(read_json(marker).get("outcome", ""), "raise trainer.num_steps")
    return f"stage {stage} is already done in {run_dir}; to train it further, remove {marker} and {on}"


def resume_message(run_dir: Path) -> str:
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


def check_moments(start: StartingPoint, stage: StageConfig) -> StartingPoint:
    """Returns `start`. Raises ConfigError if the stage needs the optimizer's moments of a checkpoint that has none."""
    needs_them = start.is_resume or not stage.reset_optimizer
    if needs_them and start.checkpoint is not None and not start.checkpoint.has_moments:
        advice = (
            "get back a newer one, or export it" if start.is_resume else "write stage.reset_optimizer=true"
        )
        lacks = "was kept without the optimizer's moments (keep_moments=false)"
        raise ConfigError(f"{start} {lacks}, which stage {stage.name} would continue: {advice}.")
    return start


def find_starting_point(config: RunConfig) -> StartingPoint:
    """Returns where the stage begins, from the folder's checkpoints and markers. Raises ConfigError if they do not fit
    the stage."""
    return check_moments(_find_starting_point(config), config.stage)


def _find_starting_point(config: RunConfig) -> StartingPoint:
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
        best = candidates[0]
        return StartingPoint(checkpoint=best, is_resume=False, last=None if best is last else last)
    scored = [c for c in checkpoints if c.score is not None and c.state.stage == parent]
    others = sorted({c.monitor for c in scored} - {params.monitor})  # that one is of another measurement
    option = "exp_manager.checkpoint_callback_params.monitor"
    hint = f"write {option}={others[0]}, which they have, or " if others else ""
    raise ConfigError(
        f"stage.start_from=best: no checkpoint of stage {parent} in {config.exp_manager.explicit_log_dir} has a "
        f"value of {params.monitor}, so none is the best: {hint}write stage.start_from=last."
    )


def find_intact_start(config: RunConfig, start: StartingPoint, ranks: Ranks) -> StartingPoint:
    """Returns `start` if its checkpoint is intact, or else the starting point that the intact checkpoints give.
    Collective. Raises ConfigError on every rank if no intact checkpoint is left to begin with."""
    while start.checkpoint is not None and not is_intact(start.checkpoint, ranks):
        start = ranks.on_main(lambda: find_starting_point(config))
    return start


def check_not_failed(run_dir: Path, stage: str) -> None:
    """Raises ConfigError if Slurm has requeued a stage that is marked as failed. A user who submits a failed stage
    again is trusted to have corrected the cause."""
    reason = why_failed(run_dir, stage)
    if reason and int(os.environ.get("SLURM_RESTART_COUNT", "0")):
        raise ConfigError(
            f"stage {stage} in {run_dir} failed: {reason} Correct the cause and submit the stage again; a requeue does "
            "not retry it."
        )


def clear_marks(run_dir: Path, stage: StageConfig, say: Callable[[str], None]) -> None:
    """Removes what is out of date when a stage starts or continues: its NAME.failed marker, and a request for a reset
    that was made before its parent ended."""
    failed_marker(run_dir, stage.name).unlink(missing_ok=True)
    parents_end = done_marker(run_dir, stage.parent)
    if stage.parent and withdraw_reset_request(run_dir, asked_before=parents_end):
        say(f"the request for a reset from before the end of stage {stage.parent} is withdrawn")


SAME_ON_RESUME = ("seed", "model.path", "model.precision", "data.train", "data.validation")
"""Options that must not change when a stage is resumed; the others may."""


def check_same_run(config: RunConfig, run_dir: Path) -> None:
    """Raises ConfigError if a resumed stage would continue with another model, other prompts, or another order,
    or if the options that it was begun with cannot be read."""
    recorded = run_dir / "stages" / f"{config.stage.name}.yaml"
    if not recorded.is_file():
        return

    def values(options: dict[str, Any]) -> list[Any]:
        return [reduce(getitem, key.split("."), options) for key in SAME_ON_RESUME]

    earlier = read_or_refuse(recorded, lambda file: values(read_yaml(file)), "remove it to go on unchecked")
    for key, before, now in zip(SAME_ON_RESUME, earlier, values(to_dict(config)), strict=True):
        if repr(before) != repr(now):  # the order of files counts, too
            raise ConfigError(
                f"stage {config.stage.name} in {run_dir} was begun with {key}={before} and would be resumed with "
                f"{key}={now}: write the same value, or another exp_manager.explicit_log_dir."
            )


def check_not_beyond(trainer: TrainerConfig, start: StartingPoint) -> None:
    """Raises ConfigError if a resumed stage has taken more steps than trainer.num_steps."""
    state, wanted = start.state(), trainer.num_steps
    taken = state.stage_step
    if taken > wanted:
        raise ConfigError(
            f"stage {state.stage} has taken {taken} steps already, and trainer.num_steps={wanted}: write "
            f"trainer.num_steps={taken} to end it now, or a larger number to train it further."
        )


def check_decay(trainer: TrainerConfig, stage: str, start: StartingPoint) -> None:
    """Raises ConfigError if the learning rate would be 0 before the stage's last update. Its schedule counts updates
    from the start of the first stage."""
    state = start.state() if start.checkpoint is not None else RunState(stage=stage)
    left = trainer.num_steps - (state.stage_step if start.is_resume else 0)
    end = state.num_updates + left * trainer.updates_per_step
    if trainer.decay is not Decay.constant and trainer.decay_updates < end:
        raise ConfigError(
            f"trainer.decay_updates={trainer.decay_updates} makes the learning rate 0 before stage {stage} ends, with "
            f"update {end} of the run: write trainer.decay_updates={end}, or fewer trainer.num_steps."
        )


def load_start(policy: Policy, start: StartingPoint, stage: StageConfig) -> RunState:
    """Gives the policy the weights with which the stage starts or continues, resets it where the stage says so, and
    returns the run's state."""
    if start.checkpoint is None:
        return RunState(stage=stage.name)
    state = start.state()
    load_policy(policy, start.checkpoint, num_updates=state.num_updates)
    if start.is_resume:
        return state
    if stage.reset_reference or stage.reset_optimizer:
        reset_policy(policy, state, stage)
    if stage.reset_data:
        state.prompts = {}
    state.stage, state.stage_step, state.outcome = stage.name, 0, ""
    state.recent_prompts = state.recent_informative = 0.0
    state.highest_score = CORRECT
    return state


def restore_prompts(prompts: PromptMix, state: RunState, *, is_resume: bool) -> list[str]:
    """Continues the mix where `state` left it, and returns the names of files that begin at their start. Raises
    ConfigError if a file has changed since a resumed stage began: its position would be wrong."""
    if not state.prompts:
        return []
    before, now = set(state.prompts["shares"]), set(prompts.state()["shares"])
    if is_resume and before != now:
        raise ConfigError(
            f"the content of data.train has changed since stage {state.stage} was begun ({len(before - now)} of "
            f"{len(before)} files): put the same files back, or begin in another exp_manager.explicit_log_dir."
        )
    return prompts.restore(state.prompts)
