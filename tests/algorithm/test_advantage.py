"""Group-relative advantages against the statistics module, and the constant groups that trip peers up."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.advantage import group_advantages
from nemo_prorl.config import Advantage

REWARDS = st.lists(st.integers(0, 100).map(lambda i: i / 100), min_size=2, max_size=32)


@given(rewards=REWARDS, kind=st.sampled_from(Advantage))
@settings(deadline=None)
def test_equals_the_formula(rewards, kind):
    """Mean and sample standard deviation of the standard library, which are exact before one rounding."""
    mean, spread = statistics.mean(rewards), statistics.stdev(rewards)
    n, total = len(rewards), math.fsum(rewards)
    expected = {
        Advantage.group_std: [(r - mean) / (spread + 1e-6) for r in rewards],
        Advantage.group_mean: [r - mean for r in rewards],
        Advantage.leave_one_out: [r - (total - r) / (n - 1) for r in rewards],
        Advantage.batch_std: [r - mean for r in rewards],
    }[kind]
    assert group_advantages(rewards, kind).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", Advantage)
@pytest.mark.parametrize("n", [2, 7, 16, 32])
def test_equal_rewards_give_exactly_zero(n, kind):
    """Every k/100, and k/m for m up to 20. NeMo RL keeps 12 of the 101 constant groups (std != 0 in float32), and one
    gets an advantage of -2075 (NVIDIA-NeMo/RL pull request 4158)."""
    for reward in {k / m for m in (*range(1, 21), 100) for k in range(m + 1)}:
        assert not group_advantages([reward] * n, kind).any()


@given(rewards=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=16))
@settings(deadline=None)
def test_never_blows_up(rewards):
    """Samuelson's inequality: nobody is more than (n - 1) / sqrt(n) sample standard deviations from the mean."""
    n = len(rewards)
    advantages = group_advantages(rewards, Advantage.group_std)
    assert np.abs(advantages).max() <= (n - 1) / math.sqrt(n) * (1 + 1e-6)


@given(rewards=REWARDS, shift=st.integers(-8, 8), power=st.integers(0, 3))
@settings(deadline=None)
def test_only_the_differences_count(rewards, shift, power):
    """Adding a constant changes nothing; a positive factor changes nothing beyond the epsilon."""
    advantages = group_advantages(rewards, Advantage.group_std)
    moved = group_advantages([r + shift for r in rewards], Advantage.group_std)
    scaled = group_advantages([r * 2**power for r in rewards], Advantage.group_std)
    assert moved.tolist() == pytest.approx(advantages.tolist(), rel=1e-5, abs=1e-6)
    assert scaled.tolist() == pytest.approx(advantages.tolist(), rel=2e-3, abs=1e-6)
    assert abs(float(advantages.sum())) < 1e-4


@given(rewards=REWARDS.filter(lambda rewards: max(rewards) > min(rewards)))
@settings(deadline=None)
def test_better_rewards_get_greater_advantages(rewards):
    advantages = group_advantages(rewards, Advantage.group_std)
    best, worst = int(np.argmax(rewards)), int(np.argmin(rewards))
    assert advantages[best] == advantages.max() > 0 > advantages.min() == advantages[worst]


def test_rounding_noise_does_not_become_a_signal():
    assert 0.1 + 0.2 != 0.3
    advantages = group_advantages([0.1 + 0.2, 0.3, 0.3, 0.3], Advantage.group_std)
    assert 0 < np.abs(advantages).max() < 1e-9


def test_binary_rewards_by_hand():
    """One of four right: mean 1/4, sample std 1/2."""
    assert group_advantages([1.0, 0.0, 0.0, 0.0], Advantage.group_std).tolist() == pytest.approx(
        [1.5, -0.5, -0.5, -0.5], rel=1e-5
    )
    assert group_advantages([1.0, 0.0, 0.0, 0.0], Advantage.group_mean).tolist() == [
        0.75,
        -0.25,
        -0.25,
        -0.25,
    ]


def test_vectors_of_verl_low_variance_rewards():
    """verl tests/trainer/ppo/test_core_algos_on_cpu.py, test_grpo_vectorized_matches_original_for_low_variance_rewards:
    std 7.07e-6 and epsilon 1e-6. verl's float32 rewards are 1 and 1.00001; the value here is the one in float64."""
    expected = 5e-6 / (1e-5 / math.sqrt(2) + 1e-6)
    advantages = group_advantages([1.0, 1.00001], Advantage.group_std)
    assert advantages.tolist() == pytest.approx([-expected, expected], rel=1e-5)


@pytest.mark.parametrize("kind", Advantage)
def test_groups_of_one_and_of_none(kind):
    assert group_advantages([0.7], kind).tolist() == [0.0]
    assert group_advantages([], kind).tolist() == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_no_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        group_advantages([0.0, bad], Advantage.group_std)
