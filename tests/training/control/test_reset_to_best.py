"""A reset to the stage's best checkpoint: policy, reference, records, several ranks, and kills around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ControllerConfig, ControllerMode, ResetTo
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.training.control.resets import reset_policy
from nemo_prorl.training.trainer import StoppedByController
from tests.training.conftest import RIGHT, WRONG
from tests.training.control.controller_runs import only, watched
from tests.training.scripted_run import Killed, Run, assert_resumes_exactly_from_any_phase
from tests.training.test_rank_agreement import NUM_RANKS
from tests.training.thread_ranks import ThreadRanks, run_as_ranks

QUARTERS = {0.0: WRONG, 0.25: [1.0, 0, 0, 0], 0.5: [1.0, 1, 0, 0], 0.75: [1.0, 1, 1, 0], 1.0: RIGHT}
BEST_AT_2 = {0: 0.25, 2: 0.75, 4: 0.25, 6: 0.5}
BEST_AT_START = {0: 0.75, 2: 0.5, 4: 0.25, 6: 0.25}
STILL_BEST = {0: 0.25, 2: 0.5, 4: 0.75, 6: 0.5}


def run_with(
    folder: Path, rewards: dict[int, float], *, interval: int = 4, optimizer: bool = True, **options: Any
) -> Run:
    """Returns a run that validates and saves every second step and resets after every fourth. rewards: step -> result
    of its validation."""
    controller = ControllerConfig(
        mode=ControllerMode.interval, interval=interval, reset_to=ResetTo.best, reset_optimizer=optimizer
    )
    given = {"num_steps": 6, "interval": 2, "every": 2, "keep": 1, "controller": controller} | options
    run = Run(folder, async_save=False, **given)
    run.on_phase = told(run, rewards)
    return run


def told(run: Run, rewards: dict[int, float], then: Callable[[str], None] = lambda phase: None) -> Any:
    def on_phase(phase: str) -> None:
        if phase == "validation":
            for prompt in run.held_out:
                prompt.task["scores"][:] = QUARTERS[rewards[run.state.step]]  # type: ignore[index]
        then(phase)

    return on_phase


def resumed_of(run: Run, rewards: dict[int, float]) -> Run:
    resumed = run.resume()
    resumed.on_phase = told(resumed, rewards)
    return resumed


def weights(run: Run, step: int) -> dict[str, float]:
    (found,) = [c for c in find_checkpoints(run.folder) if c.state.step == step]
    return json.loads((found.policy / "weights.json").read_text())  # type: ignore[no-any-return]


def keep_all(run: Run) -> Run:
    """Keeps all checkpoints, so that the test can look at those that would be deleted."""
    run.config.exp_manager.checkpoint_callback_params.save_last_k = 9
    return run


def test_policy_and_reference_become_the_best_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = keep_all(run_with(tmp_path, BEST_AT_2))
    run.fit()
    best, after = weights(run, 2), weights(run, 4)
    assert after == {"weight": best["weight"], "reference": best["weight"]}
    assert [record["step"] for record in run.records] == [0, 1, 2, 3, 4, 5, 6], "steps are not taken back"
    checkpoint = next(c for c in find_checkpoints(tmp_path) if c.state.step == 4)
    assert checkpoint.state.prompts == {"taken": 16}, "nor is data"
    assert (checkpoint.state.num_updates, checkpoint.state.num_resets) == (8, 1)
    assert checkpoint.state.policy_is_reference
    assert checkpoint.score == 0.75, "these are the weights that were measured after step 2"
    kl = {record["step"]: record["objective/kl_at_sampling"] for record in run.records if record["step"]}
    assert kl[5] == 0.0
    assert kl[4] > 0.0
    assert run.records[5]["sampler/logprob_abs_diff_max"] == 0.0, "the sampler got the weights before"
    assert {r["step"]: r["went_back_to_step"] for r in run.records if "went_back_to_step" in r} == {4: 2}
    assert run.records[4]["validation/domain_mean_score"] == 0.25
    said = "the policy goes back to step 2, where validation/domain_mean_score was 0.7500; it is 0.2500 now"
    assert said in capsys.readouterr().err
    history = find_checkpoints(tmp_path)[-1].state.controller
    assert history["since"] == 4, "a later drop is measured against the best"
    assert history["series"]["validation/domain_mean_score"] == [[4, 0.75], [6, 0.5]]


def test_a_best_whose_reference_stays_comes_with_its_own(tmp_path: Path) -> None:
    """Though the reference was another one meanwhile: the KL goes on from where the best was."""
    run = keep_all(run_with(tmp_path, BEST_AT_2))
    run.config.controller.reset_reference = False

    def reset(phase: str) -> None:
        if phase == "sampling" and run.state.step == 3:
            reset_policy(run.policy, run.state, ControllerConfig())

    run.on_phase = told(run, BEST_AT_2, reset)
    run.fit()
    assert weights(run, 4) == weights(run, 2)
    after = next(c for c in find_checkpoints(tmp_path) if c.state.step == 4).state
    assert (after.num_resets, after.last_reset_step, after.policy_is_reference) == (2, 4, False)
    assert run.records[5]["objective/kl_at_sampling"] > 0.0


@pytest.mark.parametrize("num_steps", [4, 6])
def test_a_sampler_that_does_not_get_them_stops_the_run_even_after_its_last_step(
    tmp_path: Path, num_steps: int
) -> None:
    run = run_with(tmp_path, BEST_AT_2, num_steps=num_steps)
    load = run.sampler.load_weights
    run.sampler.load_weights = lambda weights, version: replace(  # type: ignore[method-assign]
        load(weights, version), not_held=("weight",) if run.state.num_resets else ()
    )
    with pytest.raises(StoppedByController, match="stage main stopped after step 4: All 1 tensors arrived"):
        run.fit()
    assert run.saved_steps[-1] == 4
    mended = resumed_of(run, BEST_AT_2)
    assert mended.fit() == "steps"
    assert [record["num_resets"] for record in mended.records] == [0, 0, 0, 0, 1, 1, 1][: num_steps + 1]


def test_a_policy_that_is_the_best_itself_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = keep_all(run_with(tmp_path, STILL_BEST))
    run.fit()
    assert "load policy" not in run.events
    assert weights(run, 4)["weight"] == weights(run, 4)["reference"] != weights(run, 2)["weight"]
    assert "validation/domain_mean_score 0.7500 is the best of stage main" in capsys.readouterr().err


def test_the_best_may_be_what_the_stage_began_with(tmp_path: Path) -> None:
    run = keep_all(run_with(tmp_path, BEST_AT_START))
    run.fit()
    assert run.records[4]["went_back_to_step"] == 0
    start, after = [c for c in find_checkpoints(tmp_path) if c.score == 0.75]
    assert start.state.step == 0
    assert (after.state.step, after.state.validation[-1]["step"]) == (4, 4)


def test_a_stage_that_was_killed_after_its_first_checkpoint_does_not_open_again(tmp_path: Path) -> None:
    run = run_with(tmp_path, BEST_AT_START)

    def die(phase: str) -> None:
        if phase == "updates":
            raise Killed

    run.on_phase = told(run, BEST_AT_START, die)
    with pytest.raises(Killed):
        run.fit()
    assert run.saved_steps == [0]
    resumed = resumed_of(run, BEST_AT_START)
    resumed.fit()
    assert [record["step"] for record in resumed.records] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("optimizer", [True, False])
def test_the_moments_are_those_of_the_best_or_cleared(tmp_path: Path, optimizer: bool) -> None:
    run = run_with(tmp_path, BEST_AT_2, optimizer=optimizer)
    run.fit()
    at = run.events.index("load policy")
    assert ("reset optimizer" in run.events[at:]) is optimizer
    assert run.events[at - 2 : at] == ["sleep", "prepare"], "the optimizer is where training needs it"


@pytest.mark.parametrize("optimizer", [True, False])
def test_a_best_without_moments_is_used_only_if_they_are_cleared(tmp_path: Path, optimizer: bool) -> None:
    run = keep_all(run_with(tmp_path, BEST_AT_2, optimizer=optimizer))

    def remove(phase: str) -> None:
        if phase == "sampling" and run.state.step == 3:
            (tmp_path / "checkpoints/step-00000002-main/policy/without_moments").touch()

    run.on_phase = told(run, BEST_AT_2, remove)
    run.fit()
    assert ("load policy" in run.events) is optimizer


def test_without_a_scored_checkpoint_the_policy_stays_and_the_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path, {}, held_out=0)
    run.fit()
    assert run.state.num_resets == 1
    assert "no checkpoint of stage main has a value of" in capsys.readouterr().err


@pytest.mark.medium
@pytest.mark.parametrize("ahead", [False, True])
def test_all_ranks_go_back_to_the_same_checkpoint(tmp_path: Path, ahead: bool) -> None:
    def fit(ranks: ThreadRanks) -> tuple[Any, ...]:
        run = run_with(tmp_path, BEST_AT_2, ahead=ahead)
        at_reset: list[float] = []
        run.on_phase = told(
            run,
            BEST_AT_2,
            lambda phase: (
                at_reset.append(run.policy.weight) if phase == "sampling" and run.state.step == 4 else None
            ),
        )
        outcome = run.fit(ranks)
        return outcome, asdict(run.state), at_reset[0]

    results = run_as_ranks(fit, NUM_RANKS, 1, 1)
    assert [result[:2] for result in results] == [results[0][:2]] * NUM_RANKS
    assert results[0][1]["num_resets"] == 1
    assert results[0][1]["prompts"] == {"taken": 24}, (
        "what was sampled ahead is dropped, and its prompts come again"
    )


@pytest.mark.slow
def test_whenever_it_dies_around_the_reset_the_resumed_run_is_that_of_one_that_did_not(
    tmp_path: Path,
) -> None:
    """From the step before the reset on."""
    assert_resumes_exactly_from_any_phase(
        lambda folder: run_with(folder, BEST_AT_2),
        tmp_path,
        first_step=3,
        resume=lambda run: resumed_of(run, BEST_AT_2),
    )


@pytest.mark.parametrize(
    ("corrupt_at", "went_back"),
    [(None, {6: 2, 10: 6, 14: 10}), (7, {6: 2, 10: 2, 14: 10})],
)
def test_later_resets_go_back_to_the_best_intact_one_and_a_replay_decides_as_the_run_did(
    tmp_path: Path, corrupt_at: int | None, went_back: dict[int, int]
) -> None:
    """The checkpoint of each reset has the weights and the score of step 2, too. That of the first may become corrupt
    after it."""
    rewards = dict.fromkeys(range(0, 15, 2), 0.25) | {2: 0.75}
    controller = only("validation_drop", patience=2, validation_drop_errors=0.0)
    asked = replace(controller, reset_to=ResetTo.best)
    run = keep_all(run_with(tmp_path, rewards, num_steps=14, controller=asked))
    run.policy.learning_rate = 5.0  # moves far enough between resets for another

    def corrupt(phase: str) -> None:
        file = tmp_path / "checkpoints" / "step-00000006-main" / "policy" / "weights.json"
        if phase == "updates" and run.state.step == corrupt_at:
            file.write_text(file.read_text().replace('"weight"', '"WEIGHT"'))

    run.on_phase = told(run, rewards, corrupt)
    run.fit()
    found = {r["step"]: r["went_back_to_step"] for r in run.records if "went_back_to_step" in r}
    assert found == went_back
    assert [decision.step for decision in watched(run.records, controller)] == [*went_back]
