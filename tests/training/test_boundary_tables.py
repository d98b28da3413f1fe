"""What follows a step: the tables row by row, and what holds for every combination of facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from nemo_prorl.config import ControllerAction
from nemo_prorl.training.step_boundary import Action, Outcome, StepBoundary

RESET, END_STAGE, STOP = ControllerAction.reset, ControllerAction.end_stage, ControllerAction.stop
SAVES = {Action.save, Action.begin_save}
FILLED_IN_BY = {
    "controller": Action.decide,
    "is_requested": Action.decide,
    "is_save_due": Action.decide,
    "has_to_pause": Action.check_pause,
}


def boundary(**facts: Any) -> StepBoundary:
    """A step like most: nothing is due."""
    usual = {
        "trained": True,
        "is_last": False,
        "is_validation_due": False,
        "is_validated": False,
        "is_sampler_lost": False,
    }
    return StepBoundary(**(usual | facts))


def names(now: StepBoundary) -> str:
    return " ".join(action.name for action in now.actions())


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
        ({"controller": RESET, "is_save_due": True}, "decide reset record check_pause save", None),
        # Pauses
        ({"has_to_pause": True}, "decide record check_pause save", "paused"),
        ({"has_to_pause": True, "is_validation_due": True}, "validate decide record check_pause save", "paused"),
        ({"has_to_pause": True, "controller": RESET}, "decide reset record check_pause save", "paused"),
        ({"has_to_pause": True, "is_requested": True}, "decide reset record check_pause save delete_request", "paused"),
        # The last step
        ({"is_last": True}, "validate decide record save", "steps"),
        ({"is_last": True, "has_to_pause": True}, "validate decide record save", "steps"),
        ({"is_last": True, "is_requested": True}, "validate decide reset record save delete_request", "steps"),
        ({"is_last": True, "controller": END_STAGE}, "validate decide record save", "end_stage"),
        ({"is_last": True, "controller": STOP}, "validate decide record save", "stopped"),
        # The controller's ends
        ({"controller": END_STAGE}, "decide record validate record save", "end_stage"),
        ({"controller": END_STAGE, "is_validation_due": True}, "validate decide record save", "end_stage"),
        ({"controller": END_STAGE, "is_requested": True}, "decide record validate record save", "end_stage"),
        ({"controller": END_STAGE, "has_to_pause": True}, "decide record validate record save", "end_stage"),
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
    assert (names(boundary(**facts)), boundary(**facts).outcome) == (actions, outcome)


def every_boundary() -> Iterator[StepBoundary]:
    """Before a step is trained nobody is asked, and a sampler that is lost ends the process."""
    flag = (False, True)
    for trained, last, due, validated, lost in product(flag, repeat=5):
        for decided, requested, save_due, pause in product((None, RESET, END_STAGE, STOP), flag, flag, flag):
            if trained or not (lost or decided or requested or save_due or pause):
                yield StepBoundary(
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


EVERY = list(every_boundary())


def test_there_is_one_save_at_most_and_every_end_and_every_reset_is_in_it() -> None:
    for now in EVERY:
        actions = list(now.actions())
        saves = [action for action in actions if action in SAVES]
        assert len(saves) <= 1, now
        assert saves or not now.is_save_due, now
        if now.outcome is not None or Action.reset in actions:
            assert saves == [Action.save], now
            assert set(actions[actions.index(Action.save) :]) <= {Action.save, Action.delete_request}, now


def test_a_stage_ends_validated_and_a_lost_sampler_is_never_used() -> None:
    for now in EVERY:
        actions = list(now.actions())
        if now.outcome in (Outcome.steps, Outcome.saturated, Outcome.end_stage):
            assert now.is_validated or Action.validate in actions, now
        if now.is_sampler_lost:
            assert (now.outcome, Action.validate in actions) == (Outcome.stopped, False), now
        elif now.trained and (now.is_last or now.is_validation_due):
            assert actions[:2] == [Action.validate, Action.decide], "the controller sees the last one, too"


def test_what_is_measured_is_recorded_once() -> None:
    for now in EVERY:
        measured = [action for action in now.actions() if action in (Action.validate, Action.record)]
        assert measured[-1:] != [Action.validate], now
        assert measured.count(Action.validate) <= 1, now
        assert measured.count(Action.record) == now.trained + now.validates_end, now


def test_a_request_is_deleted_once_its_reset_is_saved_and_stays_otherwise() -> None:
    for now in EVERY:
        actions = list(now.actions())
        if Action.delete_request in actions:
            assert now.is_requested, now
            order = [actions.index(one) for one in (Action.reset, Action.save, Action.delete_request)]
            assert order == sorted(order), now
        elif now.is_requested:
            assert Action.reset not in actions, now
            assert now.outcome in (Outcome.end_stage, Outcome.stopped), now


def test_a_pause_takes_nothing_away_but_the_next_step() -> None:
    for now in EVERY:
        alone, paused = replace(now, has_to_pause=False), replace(now, has_to_pause=True)
        others = [[action for action in one.actions() if action not in SAVES] for one in (alone, paused)]
        assert others[0] == others[1], now
        assert paused.outcome is (alone.outcome or Outcome.paused), now


def test_every_fact_is_known_before_it_is_needed() -> None:
    """The trainer fills some in on the way; that changes none of the actions before."""
    for now in EVERY:
        partly, actions = replace(now, **dict.fromkeys(FILLED_IN_BY, None)), []
        for action in partly.actions():
            actions.append(action)
            for name in [name for name, source in FILLED_IN_BY.items() if source is action]:
                setattr(partly, name, getattr(now, name))
        assert actions == list(now.actions()), now


def test_a_reset_that_loses_the_sampler_stops_the_run_even_in_the_last_step() -> None:
    for is_last, pause in product((False, True), repeat=2):
        now = boundary(is_last=is_last, has_to_pause=pause)
        actions = []
        for action in now.actions():
            actions.append(action)
            if action is Action.decide:
                now.controller = RESET
            if action is Action.reset:
                now.is_sampler_lost = True
        assert now.outcome is Outcome.stopped
        assert actions[-2:] == [Action.record, Action.save]
