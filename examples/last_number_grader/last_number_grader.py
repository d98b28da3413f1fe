"""The domain `last_number`: the last number of the answer has to be the task's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reward.graders.grade import Grade, require
from reward.known_answers import KnownAnswer

KNOWN_ANSWERS = [
    KnownAnswer(response="<think>3 fours</think>That makes 12.", task={"number": 12}, score=1.0),
    KnownAnswer(response="<think>12</think>That makes 21.", task={"number": 12}, score=0.0),
]


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask if the task cannot be graded, whatever the response; then the response gets no score."""
    require(isinstance(task.get("number"), int), 'the task needs a "number"')


def grade(text: str, task: Mapping[str, Any]) -> Grade:
    """A pure function of the text after the thought."""
    numbers = re.findall(r"-?\d+", text)
    if not numbers:
        return Grade(score=0.0, verdict="no_number")
    is_right = numbers[-1] == str(task["number"])
    return Grade(
        score=float(is_right), verdict="correct" if is_right else "wrong", details={"found": numbers[-1]}
    )
