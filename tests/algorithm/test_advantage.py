"""Tests of advantages: against the statistics module, on constant groups, and for a whole step."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.advantage import group_advantages, response_kl, rewards_after_kl, step_advantages
from nemo_prorl.config import Advantage, AlgorithmConfig, KlEstimator, KlIn
from nemo_prorl.types import RolloutGroup
from tests.algorithm.oracle import oracle_kl
from tests.training.conftest import make_group

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
        Advantage.maxrl: [(r - mean) / ((mean - min(rewards)) or 1) for r in rewards],
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
    """Samuelson's inequality: no value is more than (n - 1) / sqrt(n) sample standard deviations from the mean."""
    n = len(rewards)
    advantages = group_advantages(rewards, Advantage.group_std)
    assert np.abs(advantages).max() <= (n - 1) / math.sqrt(n) * (1 + 1e-6)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_maxrl_follows_the_log_of_the_pass_rate(n):
    """Enumerates the outcomes of n rollouts. In expectation the gradient is that of log p times 1 - (1 - p)^(n - 1),
    which is its series up to order n - 1 (MaxRL, arXiv 2602.02710); that of group_mean is p's, times 1 - 1 / n."""
    for p in (0.05, 0.3, 0.9):
        found = dict.fromkeys((Advantage.maxrl, Advantage.group_mean), 0.0)
        for outcome in itertools.product((0.0, 1.0), repeat=n):
            probability = math.prod(p if right else 1 - p for right in outcome)
            slopes = [1 / p if right else -1 / (1 - p) for right in outcome]  # of log-probabilities, by p
            for kind in found:
                found[kind] += probability * float(np.mean(group_advantages(outcome, kind) * slopes))
        assert found[Advantage.maxrl] == pytest.approx((1 - (1 - p) ** (n - 1)) / p, rel=1e-9)
        assert found[Advantage.group_mean] == pytest.approx(1 - 1 / n, rel=1e-9)


@pytest.mark.parametrize("num_right", range(1, 16))
def test_maxrl_is_the_same_whatever_a_wrong_answer_scores(num_right):
    expected = group_advantages([1.0] * num_right + [0.0] * (16 - num_right), Advantage.maxrl)
    for wrong, right in ((-1.0, 1.0), (0.1, 1.0), (0.0, 10.0)):
        rewards = [right] * num_right + [wrong] * (16 - num_right)
        assert group_advantages(rewards, Advantage.maxrl) == pytest.approx(expected)


@given(rewards=REWARDS, penalty=st.floats(-2.0, 0.0), kind=st.sampled_from(Advantage))
@settings(deadline=None)
def test_a_group_whose_rewards_differ_teaches(rewards, penalty, kind):
    """So that groups which are kept by their rewards do not fill a step in vain. maxrl stays below n."""
    rewards = [rewards[0] + penalty, *rewards[1:]]
    advantages = group_advantages(rewards, kind)
    assert advantages.any() == (len(set(rewards)) > 1)
    assert kind is not Advantage.maxrl or np.abs(advantages).max() < len(rewards)


def test_rounding_noise_does_not_become_a_signal():
    assert 0.1 + 0.2 != 0.3
    advantages = group_advantages([0.1 + 0.2, 0.3, 0.3, 0.3], Advantage.group_std)
    assert 0 < np.abs(advantages).max() < 1e-9


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


# --- A whole step -----------------------------------------------------------------------------------------------------


def group_of(rewards: list[float], num_tokens: list[int], *, filtered: tuple[int, ...] = ()) -> RolloutGroup:
    made = make_group("p", rewards)
    members = (
        replace(member, rollout=replace(member.rollout, num_tokens=n), in_loss=i not in filtered)
        for i, (member, n) in enumerate(zip(made.members, num_tokens, strict=True))
    )
    return replace(made, members=tuple(members))


STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 10).map(lambda i: i / 10), st.integers(1, 30)), min_size=2, max_size=5),
    min_size=1,
    max_size=5,
)
BATCH_STD = AlgorithmConfig(advantage=Advantage.batch_std)


@pytest.mark.medium
@given(step=STEPS)
@settings(deadline=None)
def test_batch_std_normalises_over_every_token_of_the_step(step):
    """Uses one value per token, as the peers do; mean and standard deviation are those of the standard library."""
    groups = [group_of([reward for reward, _ in rows], [n for _, n in rows]) for rows in step]
    deviations, of_tokens = [], []
    for rows in step:
        mean = statistics.mean(reward for reward, _ in rows)
        for reward, n in rows:
            deviations.append(reward - mean)
            of_tokens += [reward - mean] * n
    mean, spread = statistics.fmean(of_tokens), math.sqrt(max(statistics.pvariance(of_tokens), 1e-8))
    expected = [(deviation - mean) / spread for deviation in deviations]
    advantages = step_advantages(groups, BATCH_STD)
    assert [len(part) for part in advantages] == [len(rows) for rows in step]
    assert all(part.dtype == np.float32 for part in advantages)
    assert np.concatenate(advantages).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_step_of_equal_rewards_has_advantages_of_zero():
    """The deviations are exactly 0, and remain so after a division by the floor of the variance."""
    groups = [group_of([0.3, 0.3], [5, 2]), group_of([0.1, 0.1, 0.1], [2, 9, 4])]
    assert not np.concatenate(step_advantages(groups, BATCH_STD)).any()


def test_what_is_kept_out_of_the_loss_counts_in_its_group_and_not_in_the_batch():
    """As in NeMo RL, which multiplies the masks of tokens and samples."""
    groups = [group_of([1.0, 0.0, 0.0], [1, 3, 100], filtered=(2,)), group_of([0.5, 0.0], [2, 2])]
    deviations = [2 / 3, -1 / 3, -1 / 3, 0.25, -0.25]
    of_tokens = [2 / 3, *[-1 / 3] * 3, 0.25, 0.25, -0.25, -0.25]
    mean, spread = statistics.fmean(of_tokens), statistics.pstdev(of_tokens)
    expected = [(deviation - mean) / spread for deviation in deviations]
    assert np.concatenate(step_advantages(groups, BATCH_STD)).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [Advantage.group_std, Advantage.group_mean, Advantage.leave_one_out])
def test_the_other_advantages_know_only_their_group(kind):
    rewards, config = [[1.0, 0.0, 0.25], [0.5, 0.75]], AlgorithmConfig(advantage=kind)
    advantages = step_advantages([group_of(rewards[0], [3, 1, 9]), group_of(rewards[1], [2, 2])], config)
    for got, of_group in zip(advantages, rewards, strict=True):
        assert got.tolist() == group_advantages(of_group, kind).astype(np.float32).tolist()


# --- The KL in the reward ---------------------------------------------------------------------------------------------

REWARDS_OF_FOUR = [1.0, 0.0, 0.5, 0.25]
OLD = [[-1.06, -0.44, -0.72, -1.98], [-1.81], [-0.49, -2.49, -0.61], [-0.67, -1.42]]
REFERENCE = [[-3.36, -1.16, -2.19, -3.19], [-0.22], [-1.7, -2.54, 0.72], [-1.55, -1.59]]
NO_REFERENCE = [[math.nan] * len(row) for row in OLD]


def in_reward(**options: object) -> AlgorithmConfig:
    unclamped: dict[str, object] = {"kl_clamp_log_ratio": 0.0, "kl_clamp_value": 0.0, "kl_beta": 0.05}
    return AlgorithmConfig(kl_in=KlIn.reward, **(unclamped | options))  # type: ignore[arg-type]


def kl_sums(config: AlgorithmConfig, reference: list[list[float]] = REFERENCE) -> list[float]:
    pairs = zip(OLD, reference, strict=True)
    return [response_kl(np.float32(o), np.float32(r), config) for o, r in pairs]


GROUP_OF_FOUR = group_of(REWARDS_OF_FOUR, [4, 1, 3, 2])


@pytest.mark.parametrize("estimator", KlEstimator)
def test_the_kl_of_the_response_is_taken_from_the_reward(estimator):
    config = in_reward(kl_estimator=estimator, kl_clamp_value=1.3)
    expected = [
        reward - 0.05 * sum(oracle_kl(o, r, config) for o, r in zip(old, reference, strict=True))
        for reward, old, reference in zip(REWARDS_OF_FOUR, OLD, REFERENCE, strict=True)
    ]
    assert rewards_after_kl(REWARDS_OF_FOUR, kl_sums(config), config) == pytest.approx(expected, rel=1e-6)


def test_rloo_with_the_kl_in_the_reward_is_trls():
    """The numbers were recorded from RLOOTrainer of TRL 1.16.0 with beta 0.05; test_peers.py says how."""
    config = in_reward(kl_estimator=KlEstimator.k1, advantage=Advantage.leave_one_out)
    (advantages,) = step_advantages([GROUP_OF_FOUR], config, [kl_sums(config)])
    assert advantages.tolist() == pytest.approx([0.454833333, -0.3925, 0.172833333, -0.235166667], abs=1e-6)


@pytest.mark.parametrize("config", [in_reward(kl_beta=0.0), AlgorithmConfig(kl_in=KlIn.loss)])
def test_a_reward_without_kl_needs_no_reference(config):
    (advantages,) = step_advantages([GROUP_OF_FOUR], config)
    expected = group_advantages(REWARDS_OF_FOUR, Advantage.group_std)
    assert advantages.tolist() == expected.astype(np.float32).tolist()


def test_a_kl_that_is_missing_is_not_taken_for_0():
    with pytest.raises(ValueError, match="zip"):
        step_advantages([GROUP_OF_FOUR], in_reward())


def test_a_kl_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="finite"):
        step_advantages([GROUP_OF_FOUR], in_reward(), [kl_sums(in_reward(), NO_REFERENCE)])
