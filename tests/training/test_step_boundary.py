"""What happens between two steps: resets, ends, pauses, and kills around each of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from nemo_prorl.config import (
    AlgorithmConfig,
    ControllerAction,
    ControllerConfig,
    ControllerMode,
    EntropyBonus,
    ResetTo,
    WatchPatienceConfig,
)
from nemo_prorl.engines.interface import LossFunction
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.markers import ask_for_reset, reset_request
from nemo_prorl.training.sampling.rounds import NothingToLearn
from nemo_prorl.training.watchdog import heartbeat
from nemo_prorl.types import TrainBatch, UpdateReport
from tests.training.conftest import MIXED, RIGHT, make_prompt
from tests.training.scripted_run import Due, Run, assert_resumes_exactly_from_any_phase, assert_same

EVERY_TWO = ControllerConfig(mode=ControllerMode.interval, interval=2)


def plateau(action: ControllerAction) -> ControllerConfig:
    """Returns a controller that finds a plateau after step 2, because scripted validations never change."""
    return ControllerConfig(
        mode=ControllerMode.automatic,
        cooldown=0,
        validation_plateau=action,
        patience=WatchPatienceConfig(validation_plateau=2),
    )


def kl(run: Run) -> dict[int, float]:
    """Returns step -> KL of the policy that sampled it."""
    return {record["step"]: record["objective/kl_at_sampling"] for record in run.records if record["step"]}


# Resets


@pytest.mark.parametrize(("reference", "optimizer"), [(True, True), (True, False), (False, True)])
def test_a_reset_makes_the_policy_the_reference_clears_the_optimizer_or_both(
    tmp_path: Path, reference: bool, optimizer: bool
) -> None:
    controller = replace(EVERY_TWO, reset_reference=reference, reset_optimizer=optimizer)
    run = Run(tmp_path, num_steps=5, updates_per_step=2, controller=controller, held_out=0)
    run.fit()
    assert [record["num_resets"] for record in run.records] == [0, 0, 1, 1, 2, 2]
    assert run.events.count("reset optimizer") == 2 * optimizer
    assert (run.state.num_resets, run.state.last_reset_step) == (2, 4), "whatever was reset"
    assert run.state.last_reset_update == 8 * reference
    is_reference = [1, 3, 5] if reference else [1]
    assert [step for step, value in kl(run).items() if value == 0.0] == is_reference, (
        "exactly, and only there"
    )
    assert all(value > 1e-9 for step, value in kl(run).items() if step not in is_reference)


def test_the_first_updates_kl_is_exactly_0_though_its_pass_differs_in_the_last_bits(tmp_path: Path) -> None:
    """An update has other micro-batches than the pass before it, so on a GPU the same weights give other bits."""
    run = Run(tmp_path, num_steps=3, updates_per_step=1, controller=EVERY_TWO, held_out=0)
    update = run.policy.update

    def with_other_bits(batch: TrainBatch, loss: LossFunction) -> UpdateReport:
        report = update(batch, loss)
        noise = np.where(batch.tokens.response_mask_BT, np.float32(1e-3), np.float32(0))
        return replace(report, current_logprobs_BT=report.current_logprobs_BT + noise)

    run.policy.update = with_other_bits  # type: ignore[method-assign]
    run.fit()
    values = {record["step"]: record["objective/kl_to_reference"] for record in run.records if record["step"]}
    assert (values[1], values[3]) == (0.0, 0.0)
    assert values[2] > 1e-9


def test_a_reset_is_on_disk_before_anything_else_happens(tmp_path: Path) -> None:
    """It is saved at once, although no checkpoint is due."""
    run = Run(tmp_path, num_steps=5, controller=EVERY_TWO, held_out=0)
    seen: dict[int, list[int]] = {}
    run.on_phase = lambda phase: (
        seen.setdefault(run.state.step, run.saved_steps) if phase == "sampling" else None
    )  # type: ignore[func-returns-value]
    run.fit()
    assert seen == {0: [], 1: [], 2: [2], 3: [2], 4: [2, 4]}
    after_the_first = find_checkpoints(tmp_path)[0]
    assert (after_the_first.state.num_resets, after_the_first.state.last_reset_step) == (1, 2)
    saved = json.loads((after_the_first.policy / "weights.json").read_text())
    assert saved["weight"] == saved["reference"]


def test_a_decision_is_on_record_with_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path, num_steps=2, controller=EVERY_TWO, held_out=0)
    run.fit()
    *others, last = run.records
    assert not any("controller" in record for record in others)
    assert (last["controller"]["action"], last["controller"]["signal"]) == ("reset", "interval")
    assert last["controller"]["numbers"] == {"num_steps": 2.0, "interval": 2.0}
    sentence = "reset after step 2: the last reset or the start of the stage was 2 steps ago"
    assert sentence in capsys.readouterr().err
    assert sentence in (tmp_path / "run.log").read_text()


@pytest.mark.parametrize("num_steps", [1, 4])  # with 1 the next process has nothing to train
def test_a_request_is_obeyed_once_though_the_process_dies_before_it_is_taken(
    tmp_path: Path, num_steps: int
) -> None:
    run = Run(tmp_path, num_steps=min(num_steps, 2), held_out=0)
    ask_for_reset(tmp_path)
    shutil.copytree(tmp_path / "requests", tmp_path / "kept", copy_function=shutil.copy2)
    run.fit()
    shutil.copytree(tmp_path / "kept", tmp_path / "requests", copy_function=shutil.copy2, dirs_exist_ok=True)
    resumed = run.resume(num_steps=num_steps)
    waiting: list[bool] = []
    resumed.on_phase = lambda phase: waiting.append(reset_request(tmp_path).exists())
    resumed.fit()
    assert (resumed.state.num_resets, resumed.state.last_reset_step) == (1, 1)
    assert not any(waiting), "a new one is not taken for this one, and refused"
    assert not reset_request(tmp_path).exists()


# Ends


def test_a_stage_stays_ended_when_the_process_dies_before_its_marker_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path, num_steps=9, interval=1, controller=plateau(ControllerAction.end_stage))
    assert run.fit() == "end_stage"
    assert (run.state.step, run.saved_steps) == (2, [2])
    assert run.records[-1]["controller"]["action"] == "end_stage"
    again = run.resume()
    assert again.fit() == "end_stage"
    assert again.events == []
    assert again.records == run.records
    assert (
        "ended stage main after step 2: controller.mode=manual trains it further" in capsys.readouterr().err
    )


def test_a_user_who_overrules_the_controller_trains_it_further(tmp_path: Path) -> None:
    run = Run(tmp_path, num_steps=4, interval=1, controller=plateau(ControllerAction.end_stage))
    run.fit()
    further = run.resume()
    further.config.controller = ControllerConfig(mode=ControllerMode.manual)
    assert further.fit() == "steps"
    assert [record["step"] for record in further.records] == [0, 1, 2, 3, 4]
    assert find_checkpoints(tmp_path)[-1].state.outcome == ""


@pytest.mark.parametrize(
    ("stop_at", "at_step", "outcome"),
    [
        (0.5, 0, "target"),
        (0.6, 2, "target"),
        (0.9, 5, "steps"),
    ],  # the first by the weights that it begins with
)
def test_a_stage_ends_with_the_first_validation_that_reaches_its_target(
    tmp_path: Path, stop_at: float, at_step: int, outcome: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path, num_steps=5, interval=2)
    run.config.validation.stop_at, run.config.data.validation = stop_at, ["held_out"]
    held_out, better = run.held_out, [make_prompt("v0", (1, 1, 1, 0), domain="logic")]
    run.on_phase = lambda phase: run.held_out.__setitem__(0, (better if run.state.step else held_out)[0])
    assert run.fit() == outcome
    assert (run.state.step, run.saved_steps[-1]) == (at_step, at_step)
    reason = f"stage main ends after step {at_step}: the held-out mean has reached {stop_at}"
    assert (reason in capsys.readouterr().err) == (outcome == "target")
    # The process died before it wrote the marker.
    again = run.resume()
    assert (again.fit(), "update" in again.events, again.records) == (outcome, False, run.records)
    further = run.resume(num_steps=6)
    further.config.validation.stop_at = 0.95
    assert (further.fit(), further.state.step) == ("steps", 6)


def test_a_stage_whose_steps_are_reduced_to_those_that_it_has_taken_is_validated(tmp_path: Path) -> None:
    """Otherwise its last checkpoint would have no score, and a child that begins at the best one would ignore it."""
    run = Run(tmp_path, num_steps=5)
    run.deadline = Due(2)  # type: ignore[assignment]
    run.fit()
    shorter = run.resume(num_steps=2)
    assert shorter.fit() == "steps"
    assert "update" not in shorter.events
    assert [(record["step"], "validation/score" in record) for record in shorter.records] == [
        (0, True), (1, False), (2, False), (2, True),
    ]  # fmt: skip
    (checkpoint,) = find_checkpoints(tmp_path)
    assert (checkpoint.state.step, checkpoint.score) == (2, 0.5)
    assert shorter.resume().fit() == "steps", "and validated once"
    assert len(shorter.records) == 4


def test_a_run_that_finds_nothing_to_learn_leaves_the_checkpoint_that_it_was_writing(tmp_path: Path) -> None:
    prompts = [make_prompt(f"p{index}", RIGHT) for index in range(100)]
    run = Run(tmp_path, prompts=prompts, max_rounds=2, controller=ControllerConfig(reset_to=ResetTo.best))
    with pytest.raises(NothingToLearn):
        run.fit()
    assert run.saved_steps == [0]


# Pauses


def test_a_paused_run_is_saved_and_goes_on_at_the_very_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, run = (
        Run(tmp_path / "whole", num_steps=5, interval=2),
        Run(tmp_path / "paused", num_steps=5, interval=2),
    )
    whole.fit()
    run.deadline = Due(2)  # type: ignore[assignment]
    assert run.fit() == "paused"
    assert run.saved_steps == [2]
    assert "paused after step 2: SIGUSR1 came. Everything is saved: the same comm" in capsys.readouterr().err
    resumed = run.resume()
    resumed.deadline = whole.deadline
    assert resumed.fit() == "steps"
    assert resumed.events[:4] == ["wake", "load 4", "sample", "sleep"], "no second validation of the weights"
    assert_same(resumed, whole)


@pytest.mark.parametrize(
    ("phase", "saved", "validations"),
    [("refit", [], 0), ("validation", [0], 1)],  # before the stage is opened there is nothing to save
)
def test_a_signal_before_the_first_step_does_not_wait_for_it(
    tmp_path: Path, phase: str, saved: list[int], validations: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, run = Run(tmp_path / "whole", num_steps=2), Run(tmp_path / "paused", num_steps=2)
    whole.fit()
    run.deadline = come = Due(1)  # type: ignore[assignment]
    run.on_phase = lambda now: come.note("step" if now == phase else "", 0.0)
    assert run.fit() == "paused"
    assert ("update" in run.events, run.saved_steps, len(run.state.validation)) == (False, saved, validations)
    assert "paused after step 0: SIGUSR1 came. Everything is saved: the same" in capsys.readouterr().err
    resumed = run.resume()
    resumed.deadline, resumed.on_phase = whole.deadline, lambda phase: None
    assert resumed.fit() == "steps"
    assert_same(resumed, whole)


def test_a_signal_while_a_resumed_run_starts_does_not_wait_for_a_step(tmp_path: Path) -> None:
    run = Run(tmp_path, num_steps=3)
    run.deadline = Due(1)  # type: ignore[assignment]
    run.fit()
    resumed = run.resume()
    assert resumed.fit() == "paused"
    assert not {"update", "save"} & set(resumed.events)


# Dying


EVENTFUL = {
    "num_steps": 4,
    "interval": 2,
    "every": 2,
    "controller": ControllerConfig(mode=ControllerMode.interval, interval=3),
    "algorithm": AlgorithmConfig(
        entropy_bonus=EntropyBonus.adaptive,
        entropy_step=0.01,
        entropy_target=0.6,
        entropy_target_end=0.4,
        entropy_anneal_steps=3,
    ),
    "async_save": False,
}


def eventful(folder: Path) -> Run:
    """Returns a run whose rounds depend on the yield so far; every third prompt is uninformative."""
    prompts = [make_prompt(f"p{index}", RIGHT if index % 3 == 0 else MIXED) for index in range(200)]
    return Run(folder, prompts=prompts, oversample=1.25, **EVENTFUL)


@pytest.mark.slow
def test_whenever_it_dies_the_resumed_run_is_that_of_one_that_did_not(tmp_path: Path) -> None:
    assert_resumes_exactly_from_any_phase(eventful, tmp_path)


def test_the_heartbeat_follows_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, num_steps=1)
    phases: list[str] = []

    run.on_phase = lambda _: phases.append(json.loads(heartbeat(tmp_path).read_text())["phase"])
    run.fit()
    assert [phase for phase, _ in groupby(phases)] == [
        "refit", "validation", "sampling", "exchange", "grading", "old_logprobs", "reference_logprobs", "grading",
        "exchange", "updates", "refit", "validation", "checkpoint",
    ]  # fmt: skip
