"""Tests of paired gains: published quantiles, simulations with a known truth, and what is compared with what."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from nemo_prorl.questions.paired import (
    MOST_SEEDS,
    Gain,
    Rewards,
    gain,
    half_width,
    mean_reward,
    seeds_needed,
    t_quantile,
)


@pytest.mark.parametrize("freedom", [*range(1, 41), 60, 120, 999])
def test_between_the_quantiles_lie_95_of_100_values(freedom: int) -> None:
    """With t = sqrt(freedom) * tan(angle), the density of the angle is proportional to cos(angle)^(freedom - 1)."""
    end = math.atan(t_quantile(freedom) / math.sqrt(freedom))
    angles = (np.arange(200_000) + 0.5) / 200_000
    inside, whole = (float(np.mean(np.cos(angles * to) ** (freedom - 1)) * to) for to in (end, math.pi / 2))
    assert inside / whole == pytest.approx(0.95, abs=6e-5)


def rewards(values: np.ndarray, first_seed: int = 1) -> Rewards:
    """values: [S, P], of seeds and prompts."""
    return {
        first_seed + number: {f"p{prompt}": float(value) for prompt, value in enumerate(row)}
        for number, row in enumerate(values)
    }


def simulated(random: np.random.Generator, *, num_seeds: int, num_prompts: int, difference: float) -> Gain:
    """A gain of two arms whose prompts differ in difficulty, whose seeds have luck of their own and a part that the two
    arms share."""
    difficulty, shared = random.normal(0.5, 0.3, num_prompts), random.normal(0, 0.05, (num_seeds, 1))
    base, ours = (
        difficulty
        + shared
        + random.normal(0, 0.04, (num_seeds, 1))
        + random.normal(0, 0.1, (num_seeds, num_prompts))
        for _ in range(2)
    )
    return gain(rewards(ours + difference), rewards(base))


@pytest.mark.medium
@pytest.mark.parametrize("num_seeds", [2, 3, 6])
def test_an_interval_over_seeds_contains_the_truth_in_95_of_100_simulations(num_seeds: int) -> None:
    random, truth, num_simulations = np.random.default_rng(num_seeds), 0.02, 4000
    found = [
        simulated(random, num_seeds=num_seeds, num_prompts=5, difference=truth)
        for _ in range(num_simulations)
    ]
    covered = statistics.fmean(one.low <= truth <= one.high for one in found)
    assert covered == pytest.approx(0.95, abs=0.015)
    assert statistics.fmean(one.value for one in found) == pytest.approx(truth, abs=0.003)


def test_with_one_seed_the_interval_is_over_prompts_and_leaves_out_the_luck_of_training() -> None:
    random = np.random.default_rng(1)
    found = [simulated(random, num_seeds=1, num_prompts=100, difference=0.0) for _ in range(40)]
    assert {one.seeds_needed for one in found} == {None}
    widths = [one.high - one.low for one in found]
    # Of the differences of 100 prompts: 2 x 1.96 x sqrt(2) x 0.1 / 10; the difference of the seeds' luck is not in it.
    assert statistics.fmean(widths) == pytest.approx(2 * 1.96 * 2**0.5 * 0.1 / 10, rel=0.05)
    assert statistics.fmean(one.low <= 0 <= one.high for one in found) < 0.7


def test_prompts_are_paired_before_they_are_averaged() -> None:
    """Prompts of very different difficulty, each improved by the same amount: the interval has no width."""
    base = np.linspace(0, 0.9, 30)[None, :]
    found = gain(rewards(base + 0.1), rewards(base))
    assert (found.low, found.value, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert found.is_certain


def test_only_seeds_and_prompts_that_both_have_count() -> None:
    ours = {1: {"a": 1.0, "b": 0.0}, 2: {"a": 0.5, "b": 0.5, "c": 9.0}, 7: {"a": 9.0, "b": 9.0}}
    base = {1: {"a": 0.0, "b": 0.0, "c": 3.0}, 2: {"a": 0.5, "b": 0.0}, 8: {"a": -9.0, "b": 9.0}}
    found = gain(ours, base)
    assert (found.num_seeds, found.num_prompts) == (2, 2)
    assert found.value == pytest.approx((0.5 + 0.25) / 2)


@pytest.mark.parametrize("base", [{}, {2: {"a": 1.0}}, {1: {"b": 1.0}}])
def test_nothing_in_common_is_refused(base: Rewards) -> None:
    with pytest.raises(ValueError, match="in common"):
        gain({1: {"a": 1.0}}, base)


@pytest.mark.parametrize(("value", "deviation"), [(0.05, 0.1), (-0.01, 0.02), (0.2, 0.03), (0.013, 0.1)])
def test_the_seeds_that_are_needed_are_the_fewest(value: float, deviation: float) -> None:
    needed = seeds_needed(value, deviation)
    assert half_width(deviation, needed) < abs(value)
    assert needed == 2 or half_width(deviation, needed - 1) >= abs(value)


def test_a_difference_that_is_not_there_needs_more_seeds_than_anybody_trains() -> None:
    assert seeds_needed(0.0, 0.1) == seeds_needed(0.0, 0.0) == MOST_SEEDS + 1


def test_a_gain_says_how_many_seeds_only_if_it_is_not_certain() -> None:
    base = rewards(np.zeros((3, 2)))
    certain, uncertain = (
        gain(rewards(np.array([[low] * 2, [0.1] * 2, [0.11] * 2])), base) for low in (0.09, -0.05)
    )
    assert certain.is_certain
    assert certain.seeds_needed is None
    assert not uncertain.is_certain
    assert (uncertain.seeds_needed or 0) > 3


def test_prompts_count_equally_within_a_seed_and_seeds_equally() -> None:
    assert mean_reward({1: {"a": 1.0, "b": 0.0, "c": 0.5}, 2: {"a": 0.0}}) == pytest.approx(0.25)
