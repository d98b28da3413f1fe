"""Tests of the forecast of a learning curve: by another integral, by its coverage, and where it must not tell."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nemo_prorl.algorithm.forecast import (
    B_RANGE,
    LEAST_VALUES,
    M_FACTOR,
    PRIOR_DEVIATION,
    PRIOR_MEAN,
    S_RANGE,
    WINDOW,
    forecast,
)


def sigmoid(steps, low, high, middle, power):
    return low + (high - low) / (1 + (middle / steps) ** power)


def numbered(scores):
    return list(enumerate(map(float, scores), start=1))


@pytest.mark.medium
@pytest.mark.parametrize("at", [40, 100])
def test_equals_importance_sampling_from_the_priors(at):
    """ScaleRL's formula with all five parameters drawn, which integrates nothing by hand and has no grid."""
    random, num_draws = np.random.default_rng(3), 300_000
    steps = np.arange(1, 21)
    scores = sigmoid(steps, 0.2, 0.7, 15.0, 1.5) + random.normal(0, 0.08, len(steps))
    log = np.log
    middle = np.exp(random.uniform(0, log(M_FACTOR * 20), num_draws))
    power = np.exp(random.uniform(*map(math.log, B_RANGE), num_draws))
    noise = np.exp(random.uniform(*map(math.log, S_RANGE), num_draws))
    low, high = random.normal(PRIOR_MEAN, PRIOR_DEVIATION, (2, num_draws))
    likelihood = np.zeros(num_draws)
    for step, score in zip(steps, scores, strict=True):
        curve = sigmoid(step, low, high, middle, power)
        likelihood += -0.5 * ((score - curve) / noise) ** 2 - log(noise)
    weights = np.exp(likelihood - likelihood.max())
    chosen = random.choice(num_draws, 50_000, p=weights / weights.sum())

    def curve_at(end):
        window = range(end - WINDOW + 1, end + 1)
        return np.mean([sigmoid(step, low, high, middle, power)[chosen] for step in window], axis=0)

    then = curve_at(at) + random.normal(size=50_000) * noise[chosen] / math.sqrt(WINDOW)
    (found,) = forecast(numbered(scores), [at])
    expected = np.quantile(then, [0.1, 0.5, 0.9])
    assert [found.low, found.middle, found.high] == pytest.approx(expected, abs=0.015)
    assert found.gain == pytest.approx(np.quantile(curve_at(at) - curve_at(20), [0.1, 0.5, 0.9]), abs=0.015)


@pytest.mark.medium
def test_the_interval_holds_80_percent_of_synthetic_curves():
    """With parameters from the priors: 250 curves, so that two standard errors are 5 %."""
    random, held = np.random.default_rng(0), []
    for _ in range(250):
        low, high = random.normal(PRIOR_MEAN, PRIOR_DEVIATION, 2)
        middle = math.exp(random.uniform(0, math.log(M_FACTOR * 30)))
        power, noise = (math.exp(random.uniform(*map(math.log, one))) for one in (B_RANGE, S_RANGE))
        scores = sigmoid(np.arange(1, 81), low, high, middle, power) + random.normal(0, noise, 80)
        truth = min(1.0, max(0.0, scores[-WINDOW:].mean()))
        (found,) = forecast(numbered(scores[:30]), [80])
        if not found.reason:
            held.append(found.low <= truth <= found.high)
    assert len(held) >= 240, "curves that are sigmoids are told"
    assert np.mean(held) == pytest.approx(0.8, abs=0.05)


def test_a_plateau_gains_nothing():
    random = np.random.default_rng(1)
    (found,) = forecast(numbered(0.6 + random.normal(0, 0.03, 120)), [220])
    low, middle, high = found.gain
    assert low <= 0 <= high
    assert abs(middle) < 0.01
    assert high - low < 0.1
    assert found.low < 0.6 < found.high


def test_a_rise_goes_on_and_is_uncertain_far_away():
    scores = sigmoid(np.arange(1, 41), 0.1, 0.9, 60.0, 1.2) + np.random.default_rng(2).normal(0, 0.02, 40)
    near, far = forecast(numbered(scores), [50, 200])
    assert near.gain[0] > 0
    assert far.middle > near.middle > scores[-WINDOW:].mean()
    assert far.high - far.low > 2 * (near.high - near.low)
    assert 0 <= far.low < far.high <= 1


def test_it_is_deterministic_and_each_step_is_told_alone():
    values = numbered(np.random.default_rng(5).uniform(0.2, 0.4, 30))
    assert forecast(values, [60, 90]) == [forecast(values, [60])[0], forecast(values, [90])[0]]


def test_gaps_between_steps_count():
    """Every third step of a curve says about the same as all of them, at the same steps."""
    scores = sigmoid(np.arange(1, 91), 0.1, 0.8, 40.0, 1.5)
    (whole,), (third,) = forecast(numbered(scores), [150]), forecast(numbered(scores)[2::3], [150])
    assert third.middle == pytest.approx(whole.middle, abs=0.02)


@pytest.mark.parametrize("count", [0, 1, LEAST_VALUES - 1])
def test_few_values_say_nothing(count):
    first, second = forecast(numbered([0.5] * count), [100, 200])
    assert f"{count} step" in first.reason
    assert first.reason == second.reason
    assert math.isnan(first.middle)


@pytest.mark.parametrize("after", [0.1, 0.95])
def test_a_jump_at_the_end_is_not_told(after):
    scores = [*(0.5 + np.random.default_rng(4).normal(0, 0.02, 80)), *[after] * 4]
    assert not forecast(numbered(scores[:80]), [120])[0].reason
    assert "the curve of those before leads to" in forecast(numbered(scores), [120])[0].reason


def test_steps_are_counted_from_1():
    with pytest.raises(ValueError, match="from 1"):
        forecast([(step, 0.5) for step in range(20)], [30])
