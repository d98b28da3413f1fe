"""Tests of what a stage inherits from its parent, by its three switches: reference, optimizer, data cursor."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_prorl.config import StageConfig
from nemo_prorl.training import stages
from nemo_prorl.training.stages import StartingPoint
from nemo_prorl.types import RunState

CURSOR = {"read": {"file": 7}}
SWITCHES = list(product([True, False], repeat=3))


class RecordingPolicy:
    """A policy that records the calls of its methods."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self.asked.append(name)


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "load_policy", lambda policy, *_, **__: policy.asked.append("load"))


def begin(stage: StageConfig, *, is_resume: bool = False) -> tuple[set[str], RunState]:
    state = RunState(stage=stage.parent, step=40, stage_step=20, num_updates=160, prompts=dict(CURSOR))
    checkpoint: Any = SimpleNamespace(state=state)
    start, policy = StartingPoint(checkpoint=checkpoint, is_resume=is_resume), RecordingPolicy()
    begun = stages.load_start(policy, start, stage)  # type: ignore[arg-type]
    return set(policy.asked), begun


@pytest.mark.parametrize(("reference", "optimizer", "data"), SWITCHES)
def test_each_switch_resets_its_own_part_only(reference: bool, optimizer: bool, data: bool) -> None:
    stage = StageConfig(
        name="b", parent="a", reset_reference=reference, reset_optimizer=optimizer, reset_data=data
    )
    asked, state = begin(stage)
    assert "load" in asked
    assert ("adopt_as_reference" in asked, "reset_optimizer" in asked) == (reference, optimizer)
    assert state.prompts == ({} if data else CURSOR)
    assert state.num_resets == int(reference)
    assert (state.stage, state.step, state.stage_step, state.num_updates) == ("b", 40, 0, 160)


@pytest.mark.parametrize(("reference", "optimizer", "data"), SWITCHES)
def test_a_stage_that_is_resumed_resets_nothing(reference: bool, optimizer: bool, data: bool) -> None:
    stage = StageConfig(
        name="b", parent="a", reset_reference=reference, reset_optimizer=optimizer, reset_data=data
    )
    asked, state = begin(stage, is_resume=True)
    assert asked == {"load"}
    assert (state.prompts, state.stage_step, state.num_resets) == (CURSOR, 20, 0)
