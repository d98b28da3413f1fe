"""What follows a step, and in which order: `_close_step` with a recorder in place of its effects, for single cases and
for every combination of facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_prorl.config import ControllerAction
from nemo_prorl.training import trainer
from nemo_prorl.training.control.controller import Decision
from nemo_prorl.training.sampling.refit import Refitted
from nemo_prorl.training.stages import Outcome
from nemo_prorl.types import RunState
from tests.training.conftest import SINGLE

RESET, END_STAGE, STOP = ControllerAction.reset, ControllerAction.end_stage, ControllerAction.stop
WARN = ControllerAction.warn
SAVES = {"save", "begin_save"}
LOST = Refitted(is_lost=True, diagnosis="the sampler is lost")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A step like most: nothing is due."""

    trained: bool = True
    is_last: bool = False
    is_validation_due: bool = False
    is_validated: bool = False
    reaches_target: bool = False
    is_sampler_lost: bool = False
    controller: ControllerAction | None = None
    """The controller's decision."""
    is_requested: bool = False
    """A user asks for a reset."""
    is_save_due: bool = False
    has_to_pause: bool = False
    reset_loses_sampler: bool = False

    @property
    def action(self) -> ControllerAction | None:
        if self.is_requested and self.controller in (None, WARN):
            return RESET
        return self.controller


@dataclass(eq=False)
class Recorder(trainer.ProRLTrainer):
    """A trainer that notes in `effects` what it would do."""

    facts: Facts
    effects: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        facts = self.facts
        self.config, self.ranks = self.context.config, self.context.ranks
        self._measured: dict[str, Any] = {}
        self.refitted = LOST if facts.is_sampler_lost else Refitted()
        self.controller: Any = SimpleNamespace(
            observe=self._observe, reset_on_request=lambda step: decision(RESET)
        )
        self.schedule: Any = SimpleNamespace(
            next_by_clock=lambda step, seconds: 0, is_due=lambda step: facts.is_save_due
        )
        self.stopwatch: Any = SimpleNamespace(elapsed_s=lambda: 1.0)
        self.run_dir: Any = None
        self._save_request = ""

    def _observe(self, record: dict[str, Any]) -> Decision | None:
        self.effects.append("decide")
        return decision(self.facts.controller) if self.facts.controller else None

    def _has_all_steps(self) -> bool:
        return self.facts.is_last

    def _has_reached_target(self) -> bool:
        return self.facts.reaches_target

    def _is_validated(self) -> bool:
        return self.facts.is_validated

    def _validate(self) -> dict[str, Any]:
        self.effects.append("validate")
        return {"validation/score": 0.5}

    def _reset(self) -> None:
        self.effects.append("reset")
        if self.facts.reset_loses_sampler:
            self.refitted = LOST

    def _record(self, metrics: Any) -> None:
        self.effects.append("record")

    def _why_pause(self) -> str:
        self.effects.append("check_pause")
        return "SIGUSR1 came" if self.facts.has_to_pause else ""

    def _save(self) -> None:
        self.effects.append("begin_save")

    def _finish_saving(self) -> None:
        assert self.effects.pop() == "begin_save"
        self.effects.append("save")


def decision(action: ControllerAction) -> Decision:
    return Decision(action=action, signal="interval", reason="it is time", numbers={}, step=8)


def close_step(facts: Facts) -> tuple[list[str], Outcome | None]:
    """Returns the effects of closing a step, in their order, and the outcome. Fails if a request counts as obeyed by
    anything but a reset."""
    validation = SimpleNamespace(
        is_due=lambda stage_step: facts.is_validation_due, is_early=lambda step: False, stop_at=0.5
    )
    closing = Recorder(
        facts=facts,
        context=SimpleNamespace(config=SimpleNamespace(validation=validation), ranks=SINGLE),  # type: ignore[arg-type]
        state=RunState(stage="main", step=8, stage_step=8),
        log=SimpleNamespace(say=lambda line: None),  # type: ignore[arg-type]
        checkpoints=None,
        telemetry=None,
        **dict.fromkeys(UNUSED),  # type: ignore[arg-type]
    )
    request = SimpleNamespace(unlink=lambda missing_ok: closing.effects.append("delete_request"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "reset_request", lambda run_dir: request)
        patch.setattr(trainer, "save_request", lambda run_dir: None)
        patch.setattr(trainer, "request_id", lambda file: "1" if file and facts.is_requested else "")
        try:
            outcome = closing._close_step({"reward/mean": 0.5} if facts.trained else {})
        except trainer.StoppedByController:
            outcome = Outcome.stopped
    assert (closing.state.last_reset_request == "1") == (facts.is_requested and "reset" in closing.effects)
    return closing.effects, outcome


UNUSED = ("held_out", "canary", "watchdog", "deadline")


@pytest.mark.parametrize(
    ("facts", "actions", "outcome"),
    [
        ({}, "decide record check_pause", None),
        ({"is_save_due": True}, "decide record check_pause begin_save", None),
        ({"is_validation_due": True}, "validate decide record check_pause", None),
        # Resets, the controller's and a user's
        ({"controller": RESET}, "decide reset record check_pause save", None),
        ({"is_requested": True}, "decide reset record check_pause save delete_request", None),
        ({"controller": RESET, "is_requested": True}, "decide reset record check_pause save delete_request", None),
        # Warnings
        ({"controller": WARN}, "decide record check_pause", None),
        ({"controller": WARN, "is_requested": True}, "decide reset record check_pause save delete_request", None),
        # Pauses
        ({"has_to_pause": True}, "decide record check_pause save", "paused"),
        ({"has_to_pause": True, "is_requested": True}, "decide reset record check_pause save delete_request", "paused"),
        # The last step
        ({"is_last": True}, "validate decide record save", "steps"),
        ({"is_last": True, "is_requested": True}, "validate decide reset record save delete_request", "steps"),
        ({"is_last": True, "controller": END_STAGE}, "validate decide record save", "end_stage"),
        ({"is_last": True, "controller": STOP}, "validate decide record save", "stopped"),
        # The target
        ({"reaches_target": True, "is_validated": True}, "decide record save", "target"),
        ({"reaches_target": True, "is_validation_due": True, "is_last": True}, "validate decide record save", "target"),
        ({"reaches_target": True, "is_validated": True, "controller": END_STAGE}, "decide record save", "end_stage"),
        # The controller's ends
        ({"controller": END_STAGE}, "decide record validate record save", "end_stage"),
        ({"controller": END_STAGE, "is_validation_due": True}, "validate decide record save", "end_stage"),
        ({"controller": END_STAGE, "is_requested": True}, "decide record validate record save", "end_stage"),
        ({"controller": STOP, "is_requested": True, "has_to_pause": True}, "decide record save", "stopped"),
        # A sampler without the policy's weights
        (
            {"is_sampler_lost": True, "is_validation_due": True, "is_last": True, "controller": STOP},
            "decide record save",
            "stopped",
        ),
        # No step was trained
        ({"trained": False}, "validate record save", "saturated"),
        ({"trained": False, "is_validated": True}, "save", "saturated"),
        ({"trained": False, "is_last": True}, "validate record save", "steps"),
    ],
)  # fmt: skip
def test_what_follows_a_step(facts: dict[str, Any], actions: str, outcome: str | None) -> None:
    assert close_step(Facts(**facts)) == (actions.split(), outcome)


def every_case() -> Iterator[Facts]:
    """Before a step is trained nobody is asked, and a sampler that is lost ends the process."""
    flag = (False, True)
    for trained, last, due, validated, lost in product(flag, repeat=5):
        for decided, requested, save_due, pause in product(
            (None, WARN, RESET, END_STAGE, STOP), flag, flag, flag
        ):
            if trained or not (lost or decided or requested or save_due or pause):
                yield Facts(
                    trained=trained,
                    is_last=last,
                    is_validation_due=due,
                    is_validated=validated,
                    is_sampler_lost=lost,
                    controller=decided,
                    is_requested=requested,
                    is_save_due=save_due,
                    has_to_pause=pause,
                )


EVERY = {facts: close_step(facts) for facts in every_case()}


def test_there_is_one_save_at_most_and_every_end_and_every_reset_is_in_it() -> None:
    for facts, (effects, outcome) in EVERY.items():
        saves = [effect for effect in effects if effect in SAVES]
        assert len(saves) <= 1, facts
        assert saves or not facts.is_save_due, facts
        if outcome is not None or "reset" in effects:
            assert saves == ["save"], facts
            assert set(effects[effects.index("save") :]) <= {"save", "delete_request"}, facts


def test_a_stage_ends_validated_and_a_lost_sampler_is_never_used() -> None:
    for facts, (effects, outcome) in EVERY.items():
        if outcome in (Outcome.steps, Outcome.saturated, Outcome.end_stage):
            assert facts.is_validated or "validate" in effects, facts
        if facts.is_sampler_lost:
            assert (outcome, "validate" in effects) == (Outcome.stopped, False), facts
        elif facts.trained and (facts.is_last or facts.is_validation_due):
            assert effects[:2] == ["validate", "decide"], "the controller sees the last one, too"


def test_a_request_is_deleted_once_its_reset_is_saved_and_stays_otherwise() -> None:
    for facts, (effects, outcome) in EVERY.items():
        if "delete_request" in effects:
            assert facts.is_requested, facts
            order = [effects.index(one) for one in ("reset", "save", "delete_request")]
            assert order == sorted(order), facts
        elif facts.is_requested:
            assert "reset" not in effects, facts
            assert outcome in (Outcome.end_stage, Outcome.stopped), facts


def test_a_reset_that_loses_the_sampler_stops_the_run_even_in_the_last_step() -> None:
    for is_last, pause in product((False, True), repeat=2):
        facts = Facts(is_last=is_last, has_to_pause=pause, controller=RESET, reset_loses_sampler=True)
        effects, outcome = close_step(facts)
        assert outcome is Outcome.stopped
        assert effects[-2:] == ["record", "save"]
