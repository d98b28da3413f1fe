"""The learning rate that the number of weights and the rank give."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_prorl.algorithm.learning_rate import LEAST, chosen_rate


@pytest.mark.parametrize(
    ("num_weights", "least", "most"),
    [
        (605_000, 5e-5, 2e-4),  # the demo's policy, which collapses at 8e-4 (experiments/learning_rate.md)
        (134_500_000, 5e-6, 2e-5),  # SmolLM2-135M (experiments/real_model.md)
        (1_777_088_000, 2e-6, 2e-6),  # ProRL
        (7_620_000_000, 1e-6, 1e-6),  # DAPO, Dr. GRPO and others: 7B to 32B
        (32_800_000_000, 1e-6, 1e-6),
    ],
)
def test_it_is_what_models_of_this_size_were_trained_with(
    num_weights: int, least: float, most: float
) -> None:
    assert least <= chosen_rate(num_weights, hidden_size=1) <= most


def test_it_never_rises_with_the_size_and_has_two_digits() -> None:
    rates = [chosen_rate(int(10**power), hidden_size=1) for power in np.arange(3, 13, 0.1)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == LEAST
    assert [float(f"{rate:.1e}") for rate in rates] == rates


@pytest.mark.parametrize(("rank", "scale"), [(1, 1.0), (32, 1.0), (8, 2.0)])
def test_the_first_update_of_factors_moves_outputs_as_far_as_one_of_all_weights(
    rank: int, scale: float
) -> None:
    """Adam's first update is the rate times the gradient's sign. For an input x and a gradient g of the outputs, all
    weights change by rate g' x' (signs) and B by rate g' (A x)' (signs)."""
    hidden, stream = 1024, np.random.default_rng(1)
    ratios = []
    for _ in range(400):
        x, a = stream.normal(size=hidden), stream.normal(size=(rank, hidden)) / np.sqrt(rank)
        of_all = chosen_rate(10**9, hidden_size=hidden) * np.abs(x).sum()
        of_factors = (
            chosen_rate(10**9, hidden_size=hidden, rank=rank, scale=scale) * scale * np.abs(a @ x).sum()
        )
        ratios.append(of_factors / of_all)
    assert np.mean(ratios) == pytest.approx(1.0, rel=0.12)
