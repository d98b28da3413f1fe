"""Turns the library's score of a puzzle into a training reward: nothing for answers that ignore the question.

Many of Reasoning Gym's scorers give partial credit: for part of an answer, for a number near the right one, or for the
right form. A policy can earn it without solving anything: all zeros get 0.955 in game_of_life, everybody a knave 0.618
in knights_knaves. So each task has a *floor* in data/puzzle_constants.json: scores up to it become 0, the rest of the
scale is stretched to 0 to 1, and with a floor of 1 only right answers count. experiments/puzzles measured the
floors; experiments/puzzles/README.md lists them with the measurements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


def training_credit(score: float, floor: float) -> float:
    """max(0, (score - floor) / (1 - floor)), and 1 for a right answer whatever the floor. Everything is from 0 to 1."""
    if score == 1.0 or floor >= 1.0:
        return float(score == 1.0)
    return max(0.0, (score - floor) / (1.0 - floor))


def floor(task: str) -> float:
    """Returns the floor of a Reasoning Gym task, by its present name; 1 (only right answers count) for unmeasured
    tasks."""
    return floors().get(task, 1.0)


@cache
def floors() -> Mapping[str, float]:
    """Returns the floor of each task that was measured."""
    text = files("reward").joinpath("data/puzzle_constants.json").read_text(encoding="utf-8")
    return {task: measured["floor"] for task, measured in json.loads(text)["tasks"].items()}
