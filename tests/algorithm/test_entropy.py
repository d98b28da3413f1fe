"""Tests of the adaptive entropy bonus, step by step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.entropy import active_entropy_coefficient, entropy_target, next_entropy_coefficient
from nemo_prorl.config import AlgorithmConfig, ConfigError, EntropyBonus

ADAPTIVE = AlgorithmConfig(
    entropy_bonus=EntropyBonus.adaptive, entropy_target=0.2, entropy_step=0.005, entropy_coefficient_max=0.02
)
"""Target and step size of arXiv 2505.22312; the upper bound is low, so that the test reaches it."""


def test_a_run_by_hand():
    """Entropy falls below the target, stays there until the coefficient reaches its bound, and recovers."""
    entropies = [0.5, 0.3, 0.19, 0.1, 0.05, 0.05, 0.05, 0.15, 0.2, 0.4, 0.4, 0.4, 0.4, 0.1]
    coefficient, coefficients, active = 0.0, [], []
    for entropy in entropies:
        active.append(active_entropy_coefficient(coefficient, entropy, ADAPTIVE))
        coefficient = next_entropy_coefficient(coefficient, entropy, ADAPTIVE)
        coefficients.append(coefficient)
    thousandths = [round(1000 * value) for value in coefficients]
    assert thousandths == [0, 0, 5, 10, 15, 20, 20, 20, 15, 10, 5, 0, 0, 5]
    # The coefficient in the step's loss: before the change, and only at or below the target.
    assert [round(1000 * value) for value in active] == [0, 0, 0, 5, 10, 15, 20, 20, 20, 0, 0, 0, 0, 0]


@given(coefficient=st.floats(0, 0.02), entropy=st.floats(0, 3))
@settings(deadline=None)
def test_moves_by_one_step_towards_the_target_and_stays_in_bounds(coefficient, entropy):
    moved = next_entropy_coefficient(coefficient, entropy, ADAPTIVE)
    assert 0.0 <= moved <= 0.02
    assert abs(moved - coefficient) <= 0.005 + 1e-15
    assert moved >= coefficient if entropy < 0.2 else moved <= coefficient


@given(state=st.floats(0, 1), entropy=st.floats(0, 3))
@settings(deadline=None)
def test_a_fixed_bonus_is_what_the_configuration_says(state, entropy):
    """The state does not matter, because a stage may follow one with an adaptive bonus or another coefficient."""
    config = AlgorithmConfig(entropy_coefficient=0.003)
    assert active_entropy_coefficient(state, entropy, config) == 0.003
    assert next_entropy_coefficient(state, entropy, config) is None


def test_without_a_state_the_configured_coefficient_is_the_first():
    """A coefficient that has fallen to 0 is a state, which a later stage continues."""
    config = replace(ADAPTIVE, entropy_coefficient=0.01)
    assert active_entropy_coefficient(None, 0.1, config) == 0.01
    assert next_entropy_coefficient(None, 0.1, config) == pytest.approx(0.015)
    assert active_entropy_coefficient(0.0, 0.1, config) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("rule", [active_entropy_coefficient, next_entropy_coefficient])
def test_an_entropy_that_is_no_number_is_refused(rule, bad):
    with pytest.raises(ValueError, match="entropy"):
        rule(0.01, bad, ADAPTIVE)


ANNEALED = replace(ADAPTIVE, entropy_target=0.6, entropy_target_end=0.2, entropy_anneal_steps=8)


def test_the_target_moves_linearly_and_stays():
    targets = [entropy_target(ANNEALED, step) for step in range(11)]
    assert targets == pytest.approx([0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.2, 0.2], rel=1e-12)
    rising = replace(ANNEALED, entropy_target_end=1.0)
    assert entropy_target(rising, 4) == pytest.approx(0.8)
    assert entropy_target(ADAPTIVE, 1000) == 0.2


def test_the_same_entropy_is_too_low_before_the_target_has_moved():
    for step in range(11):
        is_low = entropy_target(ANNEALED, step) > 0.42
        assert active_entropy_coefficient(0.01, 0.42, ANNEALED, num_steps=step) == (0.01 if is_low else 0.0)
        moved = next_entropy_coefficient(0.01, 0.42, ANNEALED, num_steps=step)
        assert moved == pytest.approx(0.015 if is_low else 0.005)


@pytest.mark.parametrize(
    ("whole", "options"),
    [
        (ADAPTIVE, {"entropy_target_end": 0.1}),
        (ADAPTIVE, {"entropy_anneal_steps": 100}),
        (ANNEALED, {"entropy_bonus": EntropyBonus.fixed}),
    ],
)
def test_a_schedule_needs_its_end_its_length_and_a_bonus_that_follows_it(whole, options):
    with pytest.raises(ConfigError, match=r"write both above 0, .* with algorithm\.entropy_bonus=adaptive"):
        replace(whole, **options)
