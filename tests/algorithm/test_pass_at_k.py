"""Tests of pass@k against all subsets of the samples."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from nemo_prorl.algorithm.pass_at_k import bootstrap_interval, mean_pass_at_k, pass_at_k, pass_at_k_bound


@pytest.mark.parametrize("n", range(1, 8))
def test_equals_the_share_of_subsets_with_a_right_sample(n):
    for c, k in product(range(n + 1), range(1, n + 1)):
        samples = [True] * c + [False] * (n - c)
        subsets = list(combinations(samples, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15), (c, k)


def test_is_exact_for_many_samples():
    """One of 4096 samples is right: a product of floats would keep 12 digits, and C(4096, 2048) does not fit a
    float."""
    assert pass_at_k(4096, 1, 1) == 1 / 4096
    assert pass_at_k(4096, 1, 2048) == 0.5
    exact = 1 - Fraction(comb(4096 - 3, 256), comb(4096, 256))
    assert pass_at_k(4096, 3, 256) == float(exact)


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


@pytest.mark.parametrize("k", [2, 3, 8, 64])
def test_the_bound_holds_and_is_the_papers_formula_for_known_rates(k: int) -> None:
    rng = np.random.default_rng(k)
    for _ in range(20):
        rates = rng.beta(0.3, 1.0, 50)
        counts = [(100_000, round(100_000 * rate)) for rate in rates]
        p = np.array([correct / n for n, correct in counts])
        paper = 1 - ((1 - p.mean()) ** 2 + p.var()) ** (k / 2)
        assert pass_at_k_bound(counts, k) == pytest.approx(paper, abs=1e-3)
        assert mean_pass_at_k(counts, k) <= pass_at_k_bound(counts, k) + 1e-12


def test_the_bound_is_tight_at_2_and_refused_at_1() -> None:
    counts = [(4, 0), (4, 1), (4, 3)]
    assert pass_at_k_bound(counts, 2) == pytest.approx(mean_pass_at_k(counts, 2))
    with pytest.raises(ValueError, match="at least 2"):
        pass_at_k_bound(counts, 1)


def test_the_bootstrap_covers_a_known_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        low, high = bootstrap_interval(list(rng.normal(0.3, 0.2, 60)), num_resamples=200, seed=trial)
        hits += low <= 0.3 <= high
    assert 180 <= hits <= 199
    assert bootstrap_interval([0.5] * 9, num_resamples=9, seed=0) == (0.5, 0.5)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_interval([], num_resamples=9, seed=0)
