"""What becomes of a request to a worker. A worker sends its own answers as frames; the pool adds what it finds out when
a worker sends none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from reward.graders.grade import Grade
from reward.known_answers import KnownAnswer


# ------------------------------------------------------------------------------------- sent by workers
@dataclass(frozen=True, slots=True)
class Invalid:
    """The task cannot be graded, whatever the response."""

    reason: str


@dataclass(frozen=True, slots=True)
class PluginRaised:
    """A plug-in raised an error, and the response is not graded."""

    reason: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Retry:
    """The worker could not do its work; another one may."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """No worker could do its work, and the response is not to blame."""

    reason: str


# ------------------------------------------------------------------------------------- found out about workers
@dataclass(frozen=True, slots=True)
class TimedOut:
    """The response has used up its CPU time."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The response crashed its worker."""

    signal: int


@dataclass(frozen=True, slots=True)
class Late:
    """The deadline passed before a worker was free."""


@dataclass(frozen=True, slots=True)
class NoReply:
    """Workers died or gave no answer in time. A busy machine may be the reason, so the response is not graded."""

    reason: str


Sent = Grade | Invalid | PluginRaised | Retry | Failed
Answer = Sent | TimedOut | Crashed | Late | NoReply
_KINDS = {kind.__name__: kind for kind in get_args(Sent)}


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's reply to one message: its answers to the first requests of the message, at least one."""

    answers: tuple[Sent, ...]
    retire: bool = False
    """Whether the worker asks to be replaced."""
    spent_s: float = 0.0
    """CPU seconds that the worker has used in all."""

    def to_frame(self) -> dict[str, Any]:
        answers = [
            {type(answer).__name__: {field.name: getattr(answer, field.name) for field in fields(answer)}}
            for answer in self.answers
        ]
        return {"answers": answers, "retire": self.retire, "spent_s": self.spent_s}

    @classmethod
    def from_frame(cls, frame: Any) -> Reply:
        """Raises ValueError if a worker would not send such a frame."""
        try:
            answers: list[Sent] = []
            for body in frame["answers"]:
                ((kind, values),) = body.items()
                answers.append(_KINDS[kind](**values))
            reply = cls(tuple(answers), bool(frame["retire"]), float(frame["spent_s"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a worker's answer is malformed: {error!r}") from error
        if not answers:
            raise ValueError("a worker's answer is empty")
        return reply


def to_known_answers(known: Iterable[KnownAnswer], grade: Callable[[str, Mapping[str, Any]], Grade]) -> Grade:
    """Grades responses with known scores. Returns 1 if all get theirs, or else 0 and the first that does not as the
    "reason"."""
    for answer in known:
        found = grade(answer.response, answer.task)
        if found.score != answer.score:
            reason = f"a known answer got {found.score} ({found.verdict}), not {answer.score}"
            return Grade(score=0.0, verdict="wrong", details={"reason": reason})
    return Grade(score=1.0, verdict="correct")
