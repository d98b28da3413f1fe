"""Only validations that measure the same are compared: what decides it, and what a change starts anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import (
    BestMode,
    CheckpointCallbackParams,
    ControllerConfig,
    ControllerMode,
    RunConfig,
    SamplerConfig,
    StartFrom,
    ValidationConfig,
)
from nemo_prorl.run import update_measurement
from nemo_prorl.run_folder.checkpoints import find_checkpoints, score_kind
from nemo_prorl.run_folder.markers import mark_done
from nemo_prorl.run_folder.validation_metrics import (
    DOMAIN_MEAN,
    MEASURED_OPTIONS,
    MEASUREMENT,
    measurement_name,
)
from nemo_prorl.training.checkpoint import worth_keeping
from nemo_prorl.training.control.controller import ResetController
from nemo_prorl.training.evaluation import begin_measuring, measurement
from nemo_prorl.training.stages import find_starting_point
from nemo_prorl.types import Prompt, RunState
from tests.training.conftest import MIXED, RIGHT, make_prompt
from tests.training.scripted_run import Run
from tests.training.test_stages import config as stage_config
from tests.training.test_stages import put_checkpoint

PROMPTS = [make_prompt(f"v{index}", MIXED) for index in range(3)]
BEFORE = {"validation.temperature": "0.6", "graders": "1"}
AFTER = {"validation.temperature": "1", "graders": "1"}


def name_with(
    prompts: list[Prompt] | None = None,
    version: str = "1",
    sampler: Any = None,
    seed: int = 1,
    **validation: Any,
) -> str:
    config = RunConfig(
        seed=seed, validation=ValidationConfig(**validation), sampler=sampler or SamplerConfig()
    )
    return measurement_name(measurement(config, PROMPTS if prompts is None else prompts, version))


@pytest.mark.parametrize(
    "change",
    [
        {"num_rollouts": 4},
        {"temperature": 1.0},
        {"top_p": 1.0},
        {"sampler": SamplerConfig(max_response_tokens=16_384)},
        {"prompts": PROMPTS[:2]},
        {"prompts": [*PROMPTS[:2], make_prompt("other", MIXED)]},
        {"prompts": [*PROMPTS[:2], replace(PROMPTS[2], text="another template")]},
        {"prompts": [*PROMPTS[:2], replace(PROMPTS[2], task={"answer": "5"})]},
        {"version": "2"},
    ],
)
def test_what_changes_a_validation_changes_its_name(change: dict[str, Any]) -> None:
    assert name_with() != name_with(**change) != ""


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"seed": 2},
        {"interval": 3},
        {"num_kept": 1},
        {"sampler": SamplerConfig(num_rollouts=4, temperature=0.9)},
    ],
)
def test_what_leaves_it_the_same_does_not(change: dict[str, Any]) -> None:
    assert name_with() == name_with(**change) != ""


def test_the_options_in_it_are_those_that_a_report_names() -> None:
    parts = measurement(RunConfig(), PROMPTS, "1")
    assert list(parts) == [*MEASURED_OPTIONS, "held-out prompts", "graders"]


@pytest.mark.parametrize(
    ("before", "now", "said", "kept", "after"),
    [
        (BEFORE, BEFORE, "", True, BEFORE),
        (BEFORE, AFTER, "something else from here on (validation.temperature 0.6 -> 1):", False, AFTER),
        (BEFORE, {"graders": "2"}, "(graders 1 -> 2)", False, {"graders": "2"}),
        ({}, AFTER, "", True, AFTER),
        (BEFORE, {}, "", True, BEFORE),
    ],
    ids=["same", "another setting", "another grader", "unknown until now", "no prompts now"],
)
def test_a_change_is_said_and_forgets_the_validations(
    before: dict[str, str], now: dict[str, str], said: str, kept: bool, after: dict[str, str]
) -> None:
    state = RunState(stage="main", validation=[{"step": 0}], measurement=dict(before))
    sentence = begin_measuring(state, now)
    assert said in sentence
    assert bool(sentence) == bool(said)
    assert (bool(state.validation), state.measurement) == (kept, after)


@pytest.mark.parametrize(("is_resume", "num_said"), [(True, 2), (False, 1)])
def test_a_stage_may_be_rewarded_otherwise_than_its_parent_but_not_measured_without_a_word(
    is_resume: bool, num_said: int
) -> None:
    state = RunState(stage="main", reward={"service": "weight 1, version 1"}, measurement=dict(BEFORE))
    now = {"service": "weight 1, version 2"}
    assert len(update_measurement(state, now, AFTER, is_resume=is_resume)) == num_said
    assert state.reward == now
    assert update_measurement(state, now, AFTER, is_resume=is_resume) == []


# The controller


def test_the_controllers_history_begins_anew_and_a_restart_in_between_changes_nothing() -> None:
    config = ControllerConfig(mode=ControllerMode.automatic)
    controller = ResetController(config)

    def record(step: int, measured: dict[str, str]) -> dict[str, Any]:
        mean = {
            MEASUREMENT: measurement_name(measured),
            DOMAIN_MEAN: 0.5,
            "validation/math/num_rollouts": 9.0,
        }
        return {"stage": "main", "step": step} | mean

    for step in (20, 40, 60):
        controller.observe(record(step, BEFORE))
    controller.note_reset(60)
    assert controller.state()["peaks"]
    controller.observe({"stage": "main", "step": 70, "objective/kl_to_reference": 0.1})
    for continued in (controller, ResetController(config, controller.state())):
        continued.observe(record(80, AFTER))
        state = continued.state()
        assert state["peaks"] == ()
        assert [step for step, _ in state["series"][DOMAIN_MEAN]] == [80]
        assert [step for step, _ in state["series"]["validation/math/num_rollouts"]] == [80]
        assert len(state["series"]["objective/kl_to_reference"]) == 1, "what a step measures is the same"


# Scores of checkpoints


def kept(folder: Path, stage: str, **params: Any) -> list[int]:
    chosen = CheckpointCallbackParams(save_last_k=1, **params)
    return sorted({c.state.step for c in worth_keeping(find_checkpoints(folder), stage, chosen)})


@pytest.fixture
def eight_and_sixteen(tmp_path: Path) -> Path:
    """Writes runs 7 and 8, whose validations have 8k and 16k tokens. Longer answers score higher."""
    for stage, step, score, tokens in (
        ("run7", 20, 0.5, 8), ("run7", 40, 0.4, 8), ("run7", 60, 0.3, 8),
        ("run8", 80, 0.7, 16), ("run8", 100, 0.6, 16), ("run8", 120, 0.65, 16),
    ):  # fmt: skip
        measured = {"sampler.max_response_tokens": f"{tokens}k"}
        put_checkpoint(tmp_path, stage, step, score=score, stage_step=20, measurement=measured)
    return tmp_path


def test_the_best_of_each_measurement_is_kept(eight_and_sixteen: Path) -> None:
    assert kept(eight_and_sixteen, "run8", save_top_k=1) == [20, 60, 80, 120]


def test_a_metric_of_training_is_the_same_whatever_a_validation_measures(tmp_path: Path) -> None:
    for step, score, measured in ((1, 0.9, BEFORE), (2, 0.5, AFTER), (3, 0.4, AFTER)):
        put_checkpoint(tmp_path, "main", step, score=score, monitor="reward/mean", measurement=measured)
    assert kept(tmp_path, "main", save_top_k=1, monitor="reward/mean") == [1, 3]
    assert score_kind("reward/mean", RunState(stage="a")) == ("reward/mean", "")


def test_a_child_begins_at_its_parents_best_by_the_newest_measurement(tmp_path: Path) -> None:
    for step, score, measured in ((20, 0.9, BEFORE), (40, 0.5, AFTER), (60, 0.4, AFTER)):
        put_checkpoint(tmp_path, "a", step, score=score, stage_step=step, measurement=measured)
    mark_done(tmp_path, "a", outcome="steps", checkpoint="")
    start = find_starting_point(
        stage_config(tmp_path, "b", "a", start_from=StartFrom.best, mode=BestMode.max)
    )
    assert start.checkpoint is not None
    assert start.checkpoint.state.step == 40


# A run


def change_temperature(run: Run) -> None:
    run.config = replace(run.config, validation=replace(run.config.validation, temperature=1.0))


def change_graders(run: Run) -> None:
    run.graders = "2.0"


@pytest.mark.parametrize("change", [change_temperature, change_graders])
def test_a_resumed_run_begins_its_best_anew(
    tmp_path: Path, change: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed after step 2, of which there is a score; the resumed run saves step 3 before its next validation."""
    run = Run(tmp_path, num_steps=2, every=1, interval=2)
    run.fit()
    resumed = run.resume(num_steps=4)
    change(resumed)
    resumed.fit()
    assert capsys.readouterr().err.count("validation measures something else from here on") == 1
    found = {c.state.step: (c.score, c.kind[1]) for c in find_checkpoints(tmp_path)}
    assert [found[step][0] is None for step in (2, 3, 4)] == [False, True, False]
    assert found[2][1] != found[4][1]
    assert [record["step"] for record in resumed.state.validation] == [4]
    names = [record[MEASUREMENT] for record in resumed.records if MEASUREMENT in record]
    assert names == [found[2][1], found[2][1], found[4][1]]


def test_a_stage_that_had_ended_is_measured_anew(tmp_path: Path) -> None:
    """Only its done marker was missing: the score of its last weights is one by the new measurement."""
    run = Run(tmp_path, num_steps=2, every=1, interval=2)
    run.fit()
    resumed = run.resume()
    change_graders(resumed)
    for prompt in resumed.held_out:
        prompt.task["scores"][:] = RIGHT  # type: ignore[index]
    resumed.fit()
    last = find_checkpoints(tmp_path)[-1]
    assert (last.state.step, last.score, last.kind) == (2, 1.0, score_kind(DOMAIN_MEAN, resumed.state))
