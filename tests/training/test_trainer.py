"""The loop on scripted engines: the order of events, what is due when, and the metrics of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_prorl.algorithm.advantage import group_advantages
from nemo_prorl.config import (
    Advantage,
    AlgorithmConfig,
    ConfigError,
    ControllerConfig,
    ControllerMode,
    EntropyBonus,
    KlEstimator,
    KlIn,
    LengthPenaltyConfig,
    ShapingConfig,
)
from nemo_prorl.engines.interface import NonFiniteUpdate
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from tests.training.conftest import MIXED, RIGHT, make_prompt, new_state
from tests.training.scripted_run import Run

# The order of things


def test_a_step_is_sample_update_refit(tmp_path: Path) -> None:
    run = Run(tmp_path, num_steps=2, updates_per_step=4, every=1, interval=1)
    assert run.fit() == "steps"
    step = ["sample", "sleep", "prepare", *["update"] * 4, "finish", "wake"]
    assert run.events == [
        "wake", "load 0", "sample",
        *step, "load 4", "sample", "save",
        *step, "load 8", "sample", "save",
    ]  # fmt: skip


def test_the_first_update_is_on_policy_and_later_ones_are_not(tmp_path: Path) -> None:
    run = Run(tmp_path, num_steps=2, updates_per_step=2, held_out=0)
    run.fit()
    first, second, third, fourth = run.policy.batches
    for batch in (first, third):
        assert batch.old_logprobs_BT is None, "the update computes them"
    for batch in (second, fourth):
        np.testing.assert_array_equal(batch.old_logprobs_BT, batch.sampler_logprobs_BT)
    assert not np.array_equal(third.sampler_logprobs_BT, third.reference_logprobs_BT), "the policy has moved"
    assert first.reference_logprobs_BT is None, "the policy is its reference"
    assert np.array_equal(second.old_logprobs_BT, second.reference_logprobs_BT)
    assert run.policy.weight != 0.0


# What is due when


@pytest.mark.medium
@pytest.mark.parametrize(
    ("every", "keep", "expected"),
    [(0, 9, [5]), (1, 9, [1, 2, 3, 4, 5]), (2, 9, [2, 4, 5]), (2, 1, [5]), (5, 9, [5]), (9, 9, [5])],
)
def test_checkpoints_are_written_at_their_interval_and_at_the_end(
    tmp_path: Path, every: int, keep: int, expected: list[int]
) -> None:
    run = Run(tmp_path, num_steps=5, every=every, keep=keep)
    run.fit()
    assert run.saved_steps == expected


def test_the_metric_that_the_user_names_says_which_checkpoint_is_best(tmp_path: Path) -> None:
    prompts = [make_prompt(f"p{i}", [1.0, 1.0, 1.0, 0.0] if 4 <= i < 8 else MIXED) for i in range(20)]
    run = Run(tmp_path, prompts=prompts, num_steps=4, every=1, keep=1)
    run.config.exp_manager.checkpoint_callback_params.monitor = "reward/mean"
    run.fit()
    assert [(c.state.step, c.score) for c in find_checkpoints(tmp_path)] == [(2, 0.75), (4, 0.5)]


def test_a_validation_that_nobody_measures_cannot_say_which_is_best(tmp_path: Path) -> None:
    """The error comes before the first step. Otherwise no checkpoint would ever be the best, without a message."""
    run = Run(tmp_path, num_steps=1)
    run.config.exp_manager.checkpoint_callback_params.monitor = "validation/maths/score"
    with pytest.raises(ConfigError, match="monitor=validation/maths/score is not measured") as caught:
        run.fit()
    assert "validation/logic/score" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "update" not in run.events


def test_a_ratio_that_overflows_where_the_clip_discards_it_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The update is sound. Only the numbers that JSON cannot represent are left out, and the log names them. The
    largest ratio, on which there is an alarm, is recorded."""
    run = Run(tmp_path, num_steps=1, held_out=0)
    update = run.policy.update

    def overflow(batch: Any, loss: Any) -> Any:
        report = update(batch, loss)
        mask = batch.tokens.response_mask_BT
        too_likely = np.where(mask, batch.sampler_logprobs_BT + 100.0, 0.0)
        return report if batch.old_logprobs_BT is None else replace(report, current_logprobs_BT=too_likely)

    run.policy.update = overflow  # type: ignore[method-assign]
    assert run.fit() == "steps"
    assert run.records[-1]["objective/ratio_max"] == 1e30
    assert "objective/approx_kl_to_old" not in run.records[-1]
    assert "not finite after step 1: objective/approx_kl_to_old" in capsys.readouterr().err


def test_a_kl_in_the_reward_that_overflows_ends_the_run_before_the_update(tmp_path: Path) -> None:
    algorithm = AlgorithmConfig(
        kl_in=KlIn.reward,
        kl_estimator=KlEstimator.k3,
        kl_beta=0.05,
        kl_clamp_log_ratio=0.0,
        kl_clamp_value=0.0,
    )
    run = Run(tmp_path, algorithm=algorithm, state=new_state(num_updates=1))
    run.policy.weight = 200.0  # tokens that it does not like have a log-probability of -400
    with pytest.raises(
        NonFiniteUpdate, match=r"step 1 is not trained on: .*algorithm\.kl_clamp_log_ratio=20\.$"
    ) as error:
        run.fit()
    assert error.value.step == 1
    assert "update" not in run.events
    assert run.state.num_updates == 1


# What a step says about itself


def test_the_numbers_are_those_of_the_script(tmp_path: Path) -> None:
    scripts = [RIGHT, [0.5] * 4, [1.0, 0.5, 0.0, 0.5], [None, 1.0, 0.0, 0.0], MIXED]
    prompts = [make_prompt(f"p{i}", scores, lengths=[2, 4, 6, 8]) for i, scores in enumerate(scripts)]
    prompts[-1] = replace(prompts[-1], domain="logic", source="set/b")
    run = Run(
        tmp_path, prompts=prompts, num_steps=1, prompts_per_step=5, updates_per_step=1, max_rounds=1,
        max_failed_share=0.1, held_out=0,
    )  # fmt: skip
    run.sources = {"script": "script", "set/b": "set.b"}
    run.fit()
    record = run.records[-1]
    scores = [score for script in scripts for score in script if score is not None]
    expected = {
        "reward/mean": sum(scores) / 19,
        "reward/pass_rate": scores.count(1.0) / 19,
        "reward/trained_mean": (2.0 + 1.0 + 2.0) / 11,
        "reward/math/num_rollouts": 15,
        "reward/math/mean": (sum(scores) - 2.0) / 15,
        "reward/logic/mean": 0.5,
        "source/script/num_rollouts": 15,
        "source/script/mean": (sum(scores) - 2.0) / 15,
        "source/set.b/mean": 0.5,
        "source/set.b/pass_rate": 0.5,
        "response/tokens_mean": (5 * 20 - 2) / 19,
        "response/no_eos_share": 0.0,
        "dynamic_sampling/num_prompts": 5,
        "dynamic_sampling/num_kept": 3,
        "dynamic_sampling/kept_share": 0.6,
        "dynamic_sampling/num_informative": 3,
        "dynamic_sampling/num_all_right": 1,
        "dynamic_sampling/num_all_equal": 1,
        "dynamic_sampling/num_all_wrong": 0,
        "dynamic_sampling/num_failed_rollouts": 1,
        "dynamic_sampling/num_surplus": 0,
        "sampler/logprob_abs_diff_max": 0.0,
        "objective/entropy": 0.5,
        "objective/kl_to_reference": 0.0,
        "objective/ratio_mean": 1.0,
        "throughput/num_tokens": 5 * 20 - 2,
    }
    assert {key: record[key] for key in expected} == pytest.approx(expected)


def test_a_step_that_changes_no_weight_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path, num_steps=2)
    run.on_phase = lambda phase: setattr(run.policy, "learning_rate", 0.0 if run.state.step else 0.5)
    run.fit()
    said = [line for line in capsys.readouterr().err.splitlines() if "changed no weight" in line]
    assert [line.partition("step")[2] for line in said] == [
        " 2 has changed no weight, with a learning rate of 0"
    ]


# Shaping and the entropy bonus


def test_the_cycle_of_the_length_penalty_goes_on_in_a_resumed_run(tmp_path: Path) -> None:
    """Two updates per step; the penalty is on for 4 updates and off for 4."""
    shaping = ShapingConfig(length_penalty=LengthPenaltyConfig(weight=0.1, on_updates=4, off_updates=4))
    run = Run(tmp_path, num_steps=3, shaping=shaping, every=1)
    run.fit()
    run.resume(num_steps=6).fit()
    steps = [record for record in run.records if "reward/mean" in record]
    assert [record["shaping/length_penalty/on"] for record in steps] == [1, 1, 0, 0, 1, 1]
    counts = [record["shaping/length_penalty/num_rollouts"] for record in steps]
    assert counts == [16, 16, 0, 0, 16, 16]
    assert all(record["shaping/overlong_filtering/num_rollouts"] == 0 for record in steps)


def test_what_is_filtered_is_not_trained_on(tmp_path: Path) -> None:
    """The advantages of the others are those of the whole group."""
    prompts = [make_prompt(f"p{index}", MIXED, unfinished=[0]) for index in range(4)]
    run = Run(tmp_path, prompts=prompts, num_steps=1, shaping=ShapingConfig(overlong_filtering=True))
    run.fit()
    (record,) = [record for record in run.records if "reward/mean" in record]
    assert record["shaping/overlong_filtering/num_rollouts"] == 4
    assert [len(batch) for batch in run.policy.batches] == [6, 6]
    whole = group_advantages(MIXED, Advantage.group_std).astype(np.float32)
    for batch in run.policy.batches:
        assert batch.advantages_B.tolist() == [*whole[1:].tolist()] * 2


def test_a_reset_restarts_the_schedule_of_the_target_and_a_resume_does_not(tmp_path: Path) -> None:
    """A reset after steps 3 and 6; the run is resumed after step 4. The entropy is below the target but in steps 3 and
    6, which have no bonus and lower the next coefficient."""
    algorithm = AlgorithmConfig(
        entropy_bonus=EntropyBonus.adaptive, entropy_coefficient=0.01, entropy_step=0.005,
        entropy_target=0.9, entropy_target_end=0.1, entropy_anneal_steps=4,
    )  # fmt: skip
    controller = ControllerConfig(mode=ControllerMode.interval, interval=3)
    run = Run(tmp_path, num_steps=4, algorithm=algorithm, controller=controller, every=1)
    run.policy.entropy = 0.6
    run.fit()
    run.resume(num_steps=7).fit()
    steps = [record for record in run.records if "reward/mean" in record]
    expected = [0.9, 0.7, 0.5, 0.9, 0.7, 0.5, 0.9]
    assert [record["objective/entropy_target"] for record in steps] == pytest.approx(expected)
    used = [0.01, 0.015, 0.0, 0.015, 0.02, 0.0, 0.02]
    assert [record["objective/entropy_coefficient"] for record in steps] == pytest.approx(used)
