"""Tests of `make profile`: functions are found in the phase that called them."""

from __future__ import annotations

import pstats
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.profile_step import REST, ProfilingStopwatch, place


@pytest.fixture
def stopwatch() -> Iterator[ProfilingStopwatch]:
    one = ProfilingStopwatch()
    yield one
    one.switch_to("")


def in_phase() -> None:
    """A function that the test looks for in the profile of its phase."""


def between_phases() -> None:
    """A function that the test looks for in the profile between phases."""


def names(stopwatch: ProfilingStopwatch) -> dict[str, set[str]]:
    stopwatch.switch_to("")
    return {
        phase: {name for _, _, name in pstats.Stats(profile).stats}  # type: ignore[attr-defined]
        for phase, profile in stopwatch.profiles.items()
    }


def step(stopwatch: ProfilingStopwatch) -> None:
    stopwatch.restart()
    between_phases()
    with stopwatch.measure("updates_s"):
        in_phase()
        with stopwatch.measure("refit_s"):
            in_phase()
        in_phase()
    between_phases()


def test_functions_are_found_in_their_phase_and_nowhere_else(stopwatch: ProfilingStopwatch) -> None:
    step(stopwatch)
    found = names(stopwatch)
    assert found.keys() == {REST, "updates_s", "refit_s"}
    assert "between_phases" in found[REST]
    assert "in_phase" not in found[REST]
    assert "in_phase" in found["updates_s"] & found["refit_s"]
    assert "between_phases" not in found["updates_s"] | found["refit_s"]
    assert stopwatch.seconds["updates_s"] >= stopwatch.seconds["refit_s"] > 0


def test_what_follows_a_step_is_in_no_profile(stopwatch: ProfilingStopwatch) -> None:
    step(stopwatch)
    stopwatch.switch_to("")
    before = {phase: len(pstats.Stats(p).stats) for phase, p in stopwatch.profiles.items()}  # type: ignore[attr-defined]
    sorted([2, 1], key=lambda value: -value)
    assert {phase: len(pstats.Stats(p).stats) for phase, p in stopwatch.profiles.items()} == before  # type: ignore[attr-defined]


def test_places_are_told_from_the_root_or_from_their_package() -> None:
    root = Path(__file__).resolve().parents[2]
    assert place(str(root / "nemo_prorl/run.py"), 3, "train") == "nemo_prorl/run.py:3 train"
    assert place(str(root / ".venv/lib/site-packages/torch/nn/x.py"), 1, "f") == "torch/nn/x.py:1 f"
    assert place("~", 0, "<built-in method x>") == "<built-in method x>"
