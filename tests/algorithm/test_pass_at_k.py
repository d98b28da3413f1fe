"""Tests of pass@k against all subsets of the samples."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product
from math import comb

import pytest

from nemo_prorl.algorithm.pass_at_k import mean_pass_at_k, pass_at_k


@pytest.mark.parametrize("n", range(1, 8))
def test_equals_the_share_of_subsets_with_a_right_sample(n):
    for c, k in product(range(n + 1), range(1, n + 1)):
        samples = [True] * c + [False] * (n - c)
        subsets = list(combinations(samples, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15), (c, k)


def test_pass_at_one_is_the_mean():
    assert pass_at_k(16, 5, 1) == 5 / 16


def test_is_exact_for_many_samples():
    """One of 4096 samples is right: a product of floats would keep 12 digits, and C(4096, 2048) does not fit a
    float."""
    assert pass_at_k(4096, 1, 1) == 1 / 4096
    assert pass_at_k(4096, 1, 2048) == 0.5
    exact = 1 - Fraction(comb(4096 - 3, 256), comb(4096, 256))
    assert pass_at_k(4096, 3, 256) == float(exact)


def test_grows_with_k_and_with_right_samples():
    for c in range(1, 16):
        values = [pass_at_k(16, c, k) for k in range(1, 17)]
        assert values == sorted(values)
        assert values[-1] == 1.0
    assert all(pass_at_k(16, c, 4) < pass_at_k(16, c + 1, 4) for c in range(12))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [([[1, 0, 1]], 2 / 3), ([[1, 1, 1]], 1.0), ([[0, 0, 0]], 0.0), ([[1, 0, 1], [0, 1, 0]], 0.5)],
)
def test_vectors_of_nemo_rl(groups, expected):
    """NVIDIA-NeMo/RL tests/unit/evals/test_eval.py, test_eval_pass_k_*: rewards of each prompt, k = 1."""
    assert mean_pass_at_k([(len(group), sum(group)) for group in groups], 1) == pytest.approx(expected)


def test_mean_counts_prompts_equally():
    assert mean_pass_at_k([(2, 1), (100, 0)], 1) == 0.25


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 5), (4, 2, 0), (0, 0, 1), (4, 5, 1), (4, -1, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match=r"sample"):
        pass_at_k(n, c, k)
    with pytest.raises(ValueError, match=r"sample"):
        mean_pass_at_k([(4, 2), (n, c)], k)


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one prompt"):
        mean_pass_at_k([], 1)
