"""The result of a grader, the error for a task that cannot be graded, and the gate before every grader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reward.extract import is_open_thought, thinks, visible_text


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


def gate(response: str, task: Mapping[str, Any], *, in_thought: bool = False) -> str | Grade:
    """Returns the answer to grade, or the Grade of a response that has none because its thought never ended (see
    reward.extract). `in_thought`: the response begins inside a thought. Raises InvalidTask."""
    require_think = task.get("require_think", False)
    require(isinstance(require_think, bool), 'the task\'s "require_think" must be true or false')
    if is_open_thought(response, in_thought):
        return Grade(score=0.0, verdict="open_thought")
    if require_think and not thinks(response):
        return Grade(score=0.0, verdict="no_think_end")
    return visible_text(response)
