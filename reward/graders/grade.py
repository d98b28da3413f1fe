"""The result of a grader, and the error for a task that cannot be graded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The result of a grader. Example: Grade(score=0.5, verdict="partial", details={"followed": [True, False]})"""

    score: float
    verdict: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"score": self.score, "verdict": self.verdict, "details": self.details}


class InvalidTask(ValueError):
    """The caller's task cannot be graded, whatever the response; the message is one sentence."""


def is_number(value: object) -> bool:
    """Whether a JSON value is a number: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def require(condition: bool, sentence: str) -> None:
    """Raises InvalidTask(sentence) unless the condition holds."""
    if not condition:
        raise InvalidTask(sentence)
