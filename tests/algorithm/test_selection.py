"""Tests of which groups are informative, however scores are rounded and in whichever order they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb, pi, sin
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.selection import Informativeness, chance_of_so_few, keep_first, known_to_be_kept
from nemo_prorl.algorithm.selection import classify as classify_by
from nemo_prorl.config import InformativeBy
from nemo_prorl.types import RolloutGroup
from tests.training.conftest import make_group


def classify(group: RolloutGroup, by: InformativeBy = InformativeBy.score) -> Informativeness:
    return classify_by(group, by)


def group(
    scores: Sequence[float],
    rewards: Sequence[float] | None = None,
    num_failed: int = 0,
    in_loss: Sequence[bool] | None = None,
) -> RolloutGroup:
    made = make_group("p#0", [*scores, *[None] * num_failed])
    each = zip(made.members, rewards or scores, in_loss or [True] * len(scores), strict=True)
    members = (replace(member, reward=reward, in_loss=counts) for member, reward, counts in each)
    return replace(made, members=tuple(members))


@pytest.mark.parametrize(
    ("scores", "rewards", "kind"),
    [
        ([1.0, 0.0], None, "informative"),
        ([1.0, 1.0, 1.0], None, "all_right"),
        ([0.0, 0.0], None, "all_wrong"),
        ([0.5, 0.5], None, "all_equal"),
        # Of two reward functions, one of which scores the form.
        ([1.5, 1.5], None, "all_right"),
        ([-1.0, -1.0], None, "all_wrong"),
        ([1 / 3, 1 / 3, 2 / 3], None, "informative"),
        # One of two right answers was punished for its length: equal scores have nothing more to teach.
        ([1.0, 1.0], [1.0, 0.4], "all_right"),
        ([0.0, 0.0, 0.0], [0.0, -1.0, -0.2], "all_wrong"),
        ([0.5, 0.5], [0.5, 0.25], "all_equal"),
        # Two right answers with equal rewards after shaping: nothing to compare, and still all right.
        ([1.0, 1.0], [0.5, 0.5], "all_right"),
        # With termination_factor 0, a right answer without end-of-sequence earns as much as a wrong one.
        ([1.0, 0.0], [0.0, 0.0], "all_equal"),
        # The scores differ by one unit in the last place.
        ([0.3, 0.1 + 0.2], None, "informative"),
        ([1.0], None, "service_failure"),
        ([], None, "service_failure"),
    ],
)
def test_kinds(scores, rewards, kind):
    assert classify(group(scores, rewards)) is Informativeness(kind)


@pytest.mark.parametrize(
    ("scores", "rewards", "kind"),
    [
        ([1.0, 1.0], [1.0, 0.4], "informative"),
        ([0.0, 0.0], [0.0, -1.0], "informative"),
        ([1.0, 1.0], [0.5, 0.5], "all_right"),
        ([1.0, 0.0], [0.0, 0.0], "all_equal"),
        ([1.0, 0.0], None, "informative"),
    ],
)
def test_kinds_by_the_shaped_reward(scores, rewards, kind):
    assert classify(group(scores, rewards), InformativeBy.reward) is Informativeness(kind)


@pytest.mark.parametrize("by", InformativeBy)
def test_a_group_without_a_rollout_in_the_loss_teaches_nothing(by):
    assert classify(group([1.0, 0.0], in_loss=[False, False]), by) is Informativeness.all_filtered
    assert classify(group([1.0, 0.0], in_loss=[False, True]), by) is Informativeness.informative


def test_failures_of_the_service_do_not_make_a_group_wrong():
    assert classify(group([0.0], num_failed=15)) is Informativeness.service_failure
    assert classify(group([0.0, 1.0], num_failed=14)) is Informativeness.informative
    assert classify(group([0.0, 0.0], num_failed=14)) is Informativeness.all_wrong


@pytest.mark.parametrize("n", [2, 8, 16, 32])
def test_no_constant_group_of_fractions_passes(n):
    """Trainers that test a floating-point std keep 12 to 35 of the 101 groups of k/100 (n = 16)."""
    fractions = {k / m for m in (*range(1, 21), 100) for k in range(m + 1)}
    kinds = {reward: classify(group([reward] * n)) for reward in fractions}
    assert kinds.pop(0.0) is Informativeness.all_wrong
    assert kinds.pop(1.0) is Informativeness.all_right
    assert set(kinds.values()) == {Informativeness.all_equal}


def test_vectors_of_skyrl_filter_sampling():
    """NovaSky-AI/SkyRL tests/train/test_trainer_utils.py, test_handle_filter_sampling_*: rewards per prompt, and which
    prompts are kept. Its rewards are no scores from 0 to 1, so the scores here are constant."""
    rewards = {"uid1": [1.0, 2.0], "uid2": [1.0, 1.0], "uid3": [3.0, 4.0]}
    kinds = [classify(group([0.5, 0.5], pair), InformativeBy.reward) for pair in rewards.values()]
    assert keep_first(kinds, 1) == ((0,), (2,))
    assert keep_first(kinds, 2) == ((0, 2), ())


KINDS = st.lists(st.sampled_from(Informativeness), max_size=30)


@given(kinds=KINDS, needed=st.integers(0, 12))
@settings(deadline=None)
def test_keeps_the_first_informative_in_prompt_order(kinds, needed):
    kept, surplus = [], []
    for index, kind in enumerate(kinds):
        if kind == "informative":
            if len(kept) < needed:
                kept.append(index)
            else:
                surplus.append(index)
    assert keep_first(kinds, needed) == (tuple(kept), tuple(surplus))


@given(kinds=KINDS, needed=st.integers(0, 12), order=st.randoms(use_true_random=False))
@settings(deadline=None)
def test_what_is_decided_early_is_what_is_decided_in_the_end(kinds, needed, order):
    """Verdicts come in any order; no group is undecided longer than necessary."""
    kept = keep_first(kinds, needed)[0]
    known = [None] * len(kinds)
    for index in order.sample(range(len(kinds)), len(kinds)):
        decided = known_to_be_kept(known, needed)
        for place, is_kept in enumerate(decided):
            assert is_kept in (None, place in kept)
            if is_kept is None:  # the missing verdicts could make it informative or not
                best, worst = Informativeness.informative, Informativeness.all_wrong
                before = [kind or worst for kind in known[:place]]
                assert place in keep_first([*before, known[place] or best], needed)[0]
                before = [kind or best for kind in known[:place]]
                assert place not in keep_first([*before, known[place] or worst], needed)[0]
        known[index] = kinds[index]
    assert known_to_be_kept(known, needed) == [place in kept for place in range(len(kinds))]


def test_the_chance_of_so_few_is_the_mean_over_the_shares_that_fit_what_was_seen() -> None:
    """By Bayes' rule on a grid of shares, with Jeffreys' prior 1 / sqrt(p (1 - p)): p = sin(t)^2 makes it uniform."""
    shares = [sin((index + 0.5) * pi / 40_000) ** 2 for index in range(20_000)]
    for num_found, num_prompts, found_before, prompts_before in [
        (0, 1, 0, 0), (0, 32, 7, 64), (3, 40, 7, 64), (0, 128, 14, 128), (5, 8, 10, 12), (8, 8, 1, 2),
    ]:  # fmt: skip
        weights = [p**found_before * (1 - p) ** (prompts_before - found_before) for p in shares]
        few = [
            sum(comb(num_prompts, k) * p**k * (1 - p) ** (num_prompts - k) for k in range(num_found + 1))
            for p in shares
        ]
        mean = sum(map(mul, weights, few)) / sum(weights)
        found = chance_of_so_few(num_found, num_prompts, found_before, prompts_before)
        assert found == pytest.approx(mean, rel=1e-6)


def test_a_share_that_is_certain_has_the_binomial_chance() -> None:
    assert chance_of_so_few(0, 32, 0.11e9, 1e9) == pytest.approx(0.89**32, rel=1e-4)
