"""What follows a step: when a run validates, resets, records, pauses, ends and saves, and in which order.

The two tables at the end define all of it without reading clocks, files or ranks: the trainer fills in a StepBoundary
and carries out the actions that it yields. docs/long_runs.md describes the same in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from nemo_prorl.config import ControllerAction


class Outcome(StrEnum):
    """Why training ends in this process. `steps`, `saturated` and `end_stage` end the stage."""

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


class Action(Enum):
    """What the trainer does between two steps."""

    validate = auto()
    decide = auto()
    """Ask the controller, look for a user's request, and check whether a save is due."""
    reset = auto()
    """Make the current policy, or the stage's best checkpoint, both the policy and the reference."""
    record = auto()
    """Write what was measured since the last record to metrics.jsonl."""
    check_pause = auto()
    """Ask all ranks whether a signal came or the time is up."""
    save = auto()
    """Save, and wait until the checkpoint is complete."""
    delete_request = auto()
    """Delete the file of the user's request, which has been carried out."""
    begin_save = auto()
    """Begin to save; the checkpoint is written while training continues."""


@dataclass(slots=True, kw_only=True)
class StepBoundary:
    """What is known between two steps."""

    trained: bool
    """False if the step found nothing to train on, or if the stage had all its steps when this process began."""
    is_last: bool
    """The stage has taken trainer.num_steps."""
    is_validation_due: bool
    """A validation is due by validation.interval."""
    is_validated: bool
    """The current weights were validated earlier, or there are no held-out prompts."""
    is_sampler_lost: bool
    """The sampler does not have the policy's weights, so nothing may be sampled. A reset may find this out."""
    controller: ControllerAction | None = None
    """The controller's decision. Action.decide sets this field and the next two, Action.check_pause the last one."""
    is_requested: bool = False
    """A user asks for a reset."""
    is_save_due: bool = False
    """A checkpoint is due by the number of steps, or by the clock."""
    has_to_pause: bool = False
    """A signal came, or the time is up."""

    @property
    def decision(self) -> ControllerAction | None:
        """The controller's decision, or else the reset that a user asks for. If the controller ends or stops the stage,
        the user's request is not carried out."""
        return self.controller or (ControllerAction.reset if self.is_requested else None)

    @property
    def outcome(self) -> Outcome | None:
        """The first outcome in the table that applies; None if training continues."""
        return next((outcome for outcome, applies in OUTCOMES if applies(self)), None)

    @property
    def validates_step(self) -> bool:
        """Whether a validation becomes part of the step's record, which the controller sees."""
        return self.trained and (self.is_last or self.is_validation_due) and not self.is_sampler_lost

    @property
    def validates_end(self) -> bool:
        """Whether the stage would otherwise end with weights that were never validated."""
        ends = self.outcome in (Outcome.steps, Outcome.saturated, Outcome.end_stage)
        return ends and not self.is_validated and not self.validates_step

    @property
    def saves_now(self) -> bool:
        """Whether to save and wait: when training ends, because nothing waits for the checkpoint later; after a reset,
        because a run that is resumed must know of it."""
        return self.outcome is not None or self.decision is ControllerAction.reset

    def actions(self) -> Iterator[Action]:
        """Yields the actions of the table that apply. Whether one applies is decided when its turn comes, so it may
        depend on what the actions before it have found out."""
        return (action for action, applies in ACTIONS if applies(self))


OUTCOMES: tuple[tuple[Outcome, Callable[[StepBoundary], bool]], ...] = (
    (Outcome.stopped, lambda now: now.decision is ControllerAction.stop or now.is_sampler_lost),
    (Outcome.end_stage, lambda now: now.decision is ControllerAction.end_stage),
    (Outcome.steps, lambda now: now.is_last),
    (Outcome.saturated, lambda now: not now.trained),
    (Outcome.paused, lambda now: now.has_to_pause),
)

ACTIONS: tuple[tuple[Action, Callable[[StepBoundary], bool]], ...] = (
    (Action.validate, lambda now: now.validates_step),
    (Action.decide, lambda now: now.trained),
    (Action.reset, lambda now: now.decision is ControllerAction.reset),
    (Action.record, lambda now: now.trained),
    (Action.check_pause, lambda now: now.outcome in (None, Outcome.paused)),
    (Action.validate, lambda now: now.validates_end),
    (Action.record, lambda now: now.validates_end),
    (Action.save, lambda now: now.saves_now),
    (Action.delete_request, lambda now: now.is_requested and now.decision is ControllerAction.reset),
    (Action.begin_save, lambda now: now.is_save_due and not now.saves_now),
)
