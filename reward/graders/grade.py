"""What a grader returns, and what it raises when the task itself makes no sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """Example: Grade(score=0.5, verdict="partial", details={"followed": [True, False]})"""

    score: float
    verdict: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"score": self.score, "verdict": self.verdict, "details": self.details}


class InvalidTask(ValueError):
    """The caller's task cannot be graded, whatever the response: one clear sentence, never a pass."""


def require(condition: bool, sentence: str) -> None:
    """Raises InvalidTask(sentence) unless the condition holds."""
    if not condition:
        raise InvalidTask(sentence)
