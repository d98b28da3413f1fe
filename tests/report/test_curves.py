"""Tests that curves keep what matters in the records: spikes, ends, resets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_prorl.report.curves import Curve, averaged, curve_of, thinned, trend


def curve(values: list[float]) -> Curve:
    return Curve(np.arange(1.0, len(values) + 1), np.array(values))


def test_a_curve_holds_finite_numbers_only() -> None:
    records = [
        {"step": 1, "kl": 0.5},
        {"step": 2},
        {"step": 3, "kl": float("nan")},
        {"step": 4, "kl": "much"},
        {"step": 5, "kl": float("inf")},
        {"step": 6, "kl": 2},
    ]
    steps, values = curve_of(records, "kl")
    assert steps.tolist() == [1, 6]
    assert values.tolist() == [0.5, 2]
    assert len(curve_of(records, "entropy").steps) == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_ends_and_extremes_and_makes_nothing_up(values: list[float], most: int) -> None:
    whole = curve(values)
    part = thinned(whole, most)
    assert len(part.steps) <= max(most, 4)
    assert set(zip(*part, strict=True)) <= set(zip(*whole, strict=True))
    assert (np.diff(part.steps) > 0).all()
    assert (part.steps[0], part.steps[-1]) == (whole.steps[0], whole.steps[-1])
    assert (part.values.min(), part.values.max()) == (whole.values.min(), whole.values.max())


def test_one_bad_step_in_thousands_stays_visible() -> None:
    values = [0.01] * 3000
    values[1733] = 5.0
    part = thinned(curve(values))
    assert (1734.0, 5.0) in set(zip(*part, strict=True))


def test_a_trend_of_a_straight_line_is_that_line_up_to_its_ends() -> None:
    values = [3 - 0.002 * i for i in range(3000)]
    assert trend(curve(values)).values == pytest.approx(values, abs=1e-9)


def test_a_trend_is_the_best_line_of_its_window() -> None:
    """Compares with numpy's fit, window by window."""
    values = np.random.default_rng(3).standard_normal(200)
    got = trend(curve(list(values))).values
    for i in range(200):
        window = np.arange(max(0, i - 2), min(200, i + 3))
        expected = np.polyval(np.polyfit(window, values[window], 1), i)
        assert got[i] == pytest.approx(expected, abs=1e-9)


def test_a_trend_never_looks_across_a_reset() -> None:
    values = [0.3] * 500 + [0.0] * 500
    smooth = trend(curve(values), breaks=[500]).values
    assert smooth[:500] == pytest.approx(0.3)
    assert smooth[500:] == pytest.approx(0.0)
    assert 0.1 < trend(curve(values)).values[499] < 0.25  # and it would, if nobody told it


def test_averages_of_equal_stretches_keep_the_mean() -> None:
    values = np.random.default_rng(0).random(1000)
    part = averaged(curve(list(values)), 100)
    assert len(part.steps) == 100
    assert part.values.mean() == pytest.approx(values.mean())
    assert part.steps[-1] == 1000
