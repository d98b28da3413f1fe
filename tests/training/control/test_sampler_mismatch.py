"""The watch `sampler_mismatch` on numbers: its limit, where it fires, and that it does not in healthy runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nemo_prorl.config import ControllerConfig, ControllerMode, WatchLimitsConfig
from nemo_prorl.training.control.controller import ResetController
from nemo_prorl.training.control.series import mismatch_limit
from nemo_prorl.training.sampling.refit import RECHECK
from tests.training.control.controller_runs import columns, decisions, only

WATCH = {"level_steps": 5, "patience": 2, "num_deviations": 3.0}
FLAT = [0.010, 0.011, 0.010, 0.009, 0.010]


@pytest.mark.parametrize(
    ("differences", "fires_at"),
    [
        pytest.param([*FLAT, 0.05, 0.05], [7], id="five times the median"),
        pytest.param([*FLAT, 0.05, 0.01, 0.05], [], id="one odd step, twice"),
        pytest.param([*FLAT, 0.025, 0.025], [], id="not three times"),
        pytest.param([0.2, 0.2], [2], id="too much from the beginning"),
        pytest.param([0.09, 0.09, 0.09], [], id="no trend yet, and less than max_nats"),
        pytest.param([1e-6] * 5 + [5e-4, 5e-4], [], id="less than min_nats, whatever the trend"),
        pytest.param([1e-6] * 5 + [2e-3, 2e-3], [7], id="fp32 has no such differences"),
        pytest.param([0.0] * 5 + [2e-3, 2e-3], [7], id="none at all, and then some"),
        pytest.param(
            [0.06] * 5 + [0.16, 0.16], [7], id="more than max_nats, though not three times the median"
        ),
        pytest.param([0.010, 0.010, 0.09, 0.010, 0.010, 0.05, 0.05], [7], id="an outlier in the window"),
        pytest.param([None] * 9, [], id="not measured: old records"),
        pytest.param([*FLAT, 0.05, math.nan, 0.05], [8], id="NaN neither counts nor breaks the row"),
    ],
)
@pytest.mark.parametrize("key", ["sampler__canary_abs_diff_mean", "sampler__logprob_abs_diff_mean"])
def test_sampler_mismatch(key: str, differences: list[float | None], fires_at: list[int]) -> None:
    made = decisions(columns(**{key: differences}), only("sampler_mismatch", **WATCH))
    assert [step for step, _, _ in made][:1] == fires_at
    assert {(action, signal) for _, action, signal in made} <= {("stop", "sampler_mismatch")}


def test_rollouts_that_were_sampled_ahead_are_not_judged() -> None:
    config = only("sampler_mismatch", **WATCH)
    differences = [*FLAT, 0.3, 0.3, 0.3]
    behind = [0.0] * 5 + [4.0, 4.0, 4.0]
    records = columns(sampler__logprob_abs_diff_mean=differences, sampler__updates_behind=behind)
    assert decisions(records, config) == []


@pytest.mark.parametrize("mode", ControllerMode)
def test_a_mismatch_counts_in_every_mode_and_in_the_cool_down(mode: ControllerMode) -> None:
    config = ControllerConfig(mode=mode, cooldown=50, interval=300)
    assert decisions(columns(sampler__num_still_wrong_tensors=[0, 3]), config) == [
        (2, "stop", "sampler_mismatch")
    ]
    assert decisions(columns(sampler__num_wrong_tensors=[0, 3, 0, 3, 3]), config) == [
        (5, "stop", "sampler_mismatch")
    ]


def test_the_history_of_differences_outlives_resets() -> None:
    controller = ResetController(ControllerConfig(mode=ControllerMode.manual))
    made = []
    for record in columns(sampler__canary_abs_diff_mean=[0.2, 0.2, 0.2]):
        made.append(controller.observe(record))
        controller.note_reset(record["step"])
    assert [decision is not None for decision in made] == [False, True, True]


def test_the_limit_is_that_of_the_formula() -> None:
    before = [0.02, 0.01, 0.012, 0.008, 0.011, 0.009]
    limits = WatchLimitsConfig(level_steps=5, sampler_mismatch=1.5, num_deviations=4.0)
    logs = np.log(before[-5:])
    deviation = 1.4826 * np.median(np.abs(logs - np.median(logs)))
    expected = math.exp(np.median(logs) + max(math.log(1.5), 4 * deviation))
    assert mismatch_limit(before, limits) == pytest.approx(expected, rel=1e-12)
    assert mismatch_limit(before[:4], limits) == limits.max_nats


# Healthy runs

NUM_STEPS = 200
CANARY_TOKENS = 64


class Noise:
    """Simulates |log-probability differences| of tokens without a fault.

    Over half of the tokens are certain and differ by nearly nothing. The others follow Student's t with 2.5 degrees of
    freedom, whose tail is that of bf16 (with a mean of 0.01 the 99th percentile is about 0.09, and the largest of
    100,000 about 1). The level changes by 2 % per step, as entropy does, and by up to 30 % at a reset, with the mix of
    prompts.
    """

    def __init__(self, seed: int, level: float) -> None:
        self.stream, self.level = np.random.default_rng(seed), level

    def mean(self, num_tokens: int, num_engines: int = 1) -> float:
        """Draws the mean difference of the engine that differs most, in nats."""
        shape = num_engines, num_tokens
        tails = np.abs(self.stream.standard_t(2.5, shape))
        uncertain = self.stream.random(shape) < 0.4
        differences = np.where(uncertain, tails * 2.1 * self.level, 1e-3 * self.level)
        return float(differences.mean(axis=1).max())

    def step(self, *, is_reset: bool) -> None:
        self.level *= math.exp(self.stream.normal(0, 0.02))
        if is_reset:
            self.level *= self.stream.uniform(0.7, 1.3)


def healthy(
    noise: Noise, *, ahead: bool, num_engines: int, controller: ResetController, fault_at: int = 0
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yields (record of a step, whether its refit was repeated), as trainer and refit make them. From step `fault_at`
    on all differences are 15 times as large."""
    for step in range(1, NUM_STEPS + 1):
        if step == fault_at:
            noise.level *= 15
        canary = noise.mean(CANARY_TOKENS, num_engines)
        repeated = canary > controller.canary_limit()
        if repeated:
            canary = noise.mean(RECHECK * CANARY_TOKENS, num_engines)
        behind = 4.0 if ahead and step % 25 != 1 else 0.0
        rollouts = noise.mean(5_000) + (0.05 if behind else 0.0)
        record = {
            "step": step,
            "stage": "main",
            "sampler/num_wrong_tensors": 0.0,
            "sampler/num_still_wrong_tensors": 0.0,
            "sampler/canary_abs_diff_mean": canary,
            "sampler/logprob_abs_diff_mean": rollouts,
            "sampler/updates_behind": behind,
        }
        yield record, repeated
        is_reset = step % 60 == 0
        if is_reset:
            controller.note_reset(step)
        noise.step(is_reset=is_reset)


@pytest.mark.medium
@pytest.mark.parametrize("num_engines", [1, 16])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("level", [1e-6, 0.01, 0.025], ids=["fp32", "bf16", "noisier"])
def test_200_healthy_steps_raise_no_alarm(level: float, ahead: bool, num_engines: int) -> None:
    repeats = 0
    for seed in range(10):
        controller = ResetController(ControllerConfig(mode=ControllerMode.automatic))
        run = healthy(Noise(seed, level), ahead=ahead, num_engines=num_engines, controller=controller)
        for record, repeated in run:
            decision = controller.observe(record)
            assert decision is None, f"seed {seed}: {decision}"
            repeats += repeated
    assert repeats <= 20, "and refits are hardly ever repeated in vain: at most one of a hundred"


@pytest.mark.medium
@pytest.mark.parametrize("ahead", [False, True])
def test_fifteen_times_the_noise_is_noticed_in_two_steps(ahead: bool) -> None:
    for seed in range(10):
        controller = ResetController(ControllerConfig(mode=ControllerMode.automatic))
        run = healthy(Noise(seed, 0.01), ahead=ahead, num_engines=1, controller=controller, fault_at=100)
        assert next(record["step"] for record, _ in run if controller.observe(record)) == 101
