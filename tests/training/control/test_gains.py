"""What is said of a run that gains nothing, solves fewer problems or drifts, and how seldom of one that does not."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_prorl.training.control.gains import (
    HeldOut,
    best_is_recent,
    keeps_solving,
    slope_in_errors,
    steady_growth,
)

STEPS = tuple(range(0, 1001, 50))


def measured(*means: float, early: tuple[int, ...] = (), variance: float = 0.0) -> list[HeldOut]:
    """Returns validations 10 steps apart. early: which of them, by their place, were early."""
    return [HeldOut(10 * place, mean, variance, is_early=place in early) for place, mean in enumerate(means)]


@pytest.mark.parametrize(
    ("means", "early", "is_recent"),
    [
        pytest.param((0.3, 0.5, 0.6, 0.7), (), True, id="it rises"),
        pytest.param((0.3, 0.7, 0.6, 0.6), (), True, id="two since"),
        pytest.param((0.3, 0.7, 0.6, 0.6, 0.6), (), False, id="three since"),
        pytest.param((0.3, 0.4, 0.5, 0.6, 0.7, 0.6, 0.6, 0.6), (), True, id="more of the run led to it"),
        pytest.param((0.7, 0.6, 0.6, 0.6), (), False, id="it was best before it began"),
        pytest.param((0.7, 0.6, 0.6, 0.6, 0.6), (1, 2), True, id="early ones are no intervals"),
        pytest.param((0.3, 0.7, 0.6, 0.6, 0.7), (), True, id="as good again"),
        pytest.param((0.5,), (), True, id="the first"),
    ],
)
def test_the_best_validation_is_recent(
    means: tuple[float, ...], early: tuple[int, ...], is_recent: bool
) -> None:
    assert best_is_recent(measured(*means, early=early))[0] is is_recent


def test_a_lower_value_is_told_in_units_of_its_noise() -> None:
    _, text = best_is_recent(measured(0.3, 0.7, 0.6, 0.66, 0.67, variance=0.0002))
    assert (
        "0.700, was measured at step 10 of 40. None of the 3 validations since was better; the last has 0.670, 1.5"
        in text
    )


def simulated(
    rng: np.random.Generator, gain: float, *, sharpens: bool = False, num_prompts: int = 400
) -> list[HeldOut]:
    """Returns a run whose mean reward rises by `gain`. If it sharpens, prompts that it solved in at least 3 of 10
    rollouts come to be solved in all, and the others in none."""
    chances, found = rng.beta(0.5, 1.0, num_prompts), []
    for step in STEPS:
        share = step / STEPS[-1]
        now = np.clip(chances + gain * share, 0, 1)
        if sharpens:
            now = (1 - share) * now + share * (chances > 0.3)
        right = rng.binomial(4, now)
        found.append(HeldOut(step, float(right.mean()) / 4, 0.0, float((right > 0).mean()), 4, num_prompts))
    return found


def test_a_run_that_gains_a_little_has_its_best_at_the_end_and_solves_no_less() -> None:
    rng = np.random.default_rng(0)
    runs = [simulated(rng, gain=0.05) for _ in range(40)]
    assert all(best_is_recent(run)[0] for run in runs)
    assert all(keeps_solving(run, None) == (True, keeps_solving(run, None)[1]) for run in runs)  # type: ignore[index]


def test_a_run_that_stands_still_never_seems_to_solve_less_at_any_of_its_validations() -> None:
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(100):
        run = simulated(rng, gain=0.0, num_prompts=100)
        judged = [keeps_solving(run[:end], None) for end in range(1, len(run) + 1)]
        assert judged[:3] == [None] * 3
        alarms += any(one is not None and not one[0] for one in judged)
    assert alarms <= 2


def test_a_run_that_loses_problems_is_found_although_its_mean_rises() -> None:
    rng = np.random.default_rng(2)
    runs = [simulated(rng, 0.0, sharpens=True) for _ in range(20)]
    assert sum(not (keeps_solving(run, -0.81) or (True, ""))[0] for run in runs) >= 19
    assert all(run[-1].mean > run[0].mean + 0.05 for run in runs)
    _, text = keeps_solving(runs[0], -0.81) or (True, "")
    assert "while the entropy fell by 81%" in text
    assert "entropy fell" not in (keeps_solving(runs[0], -0.2) or (True, ""))[1]


def test_a_run_that_rose_before_it_lost_problems_is_found() -> None:
    values = [*np.linspace(0.5, 0.9, 10), *np.linspace(0.9, 0.7, 10)]
    run = [HeldOut(10 * place, 0.5, 0.0, value, 16, 500) for place, value in enumerate(values)]
    assert slope_in_errors([(one.step, one.pass_at_k) for one in run], 500) > 0
    is_fine, text = keeps_solving(run, None) or (True, "")
    assert not is_fine
    assert "from 0.900 at step 100 to 0.700" in text


@pytest.mark.parametrize(
    "run",
    [
        [HeldOut(step, 0.5, 0.0, 0.9 - step / 100, 1, 500) for step in range(0, 60, 10)],
        [HeldOut(step, 0.5, 0.0, 0.9 - step / 100, 16, 0) for step in range(0, 60, 10)],
        [HeldOut(step, 0.5, 0.0, 0.9 - step / 100, 16 if step > 20 else 8, 500) for step in range(0, 60, 10)],
    ],
    ids=["one rollout", "an unknown number of prompts", "three of this k"],
)
def test_what_cannot_be_judged_is_not(run: list[HeldOut]) -> None:
    assert keeps_solving(run, None) is None


@pytest.mark.parametrize("noise", [0.1, 0.25, 0.5])
def test_noise_and_a_jump_are_no_steady_growth(noise: float) -> None:
    rng = np.random.default_rng(3)
    runs = [list(np.exp(noise * rng.standard_normal(300))) for _ in range(20)]
    assert sum(any(steady_growth(run[:end]) for end in range(40, 301, 10)) for run in runs) <= 1
    jump = [value * (4 if step >= 150 else 1) for step, value in enumerate(runs[0])]
    assert steady_growth(jump[:200]) is None


@pytest.mark.parametrize(("length", "stretch"), [(39, None), (40, 40), (200, 200), (1000, 200)])
def test_steady_growth_is_found_in_the_newest_steps(length: int, stretch: int | None) -> None:
    rng = np.random.default_rng(4)
    growing = [3 ** (step / min(length, 200)) for step in range(min(length, 200))]
    values = np.array([*[1.0] * (length - len(growing)), *growing]) * np.exp(
        0.1 * rng.standard_normal(length)
    )
    found = steady_growth(list(values))
    assert (found and found[0]) == stretch
    if found:
        assert 1.0 < found[1] < 1.4
        assert 2.2 < found[2] < 3.0
