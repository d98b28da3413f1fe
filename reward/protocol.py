"""Requests and results as they are sent between a trainer and the reward service. Standard library only.

A result says who failed. With the status `graded` there is a score from 0 to 1, for which the model is responsible.
With every other status the service or the caller has failed, and the score is None: a service that is down must not
teach a policy that its answers are wrong.

Versions. PROTOCOL_VERSION is the number in the paths (`/v1/...`), in `/readyz` and in the ready line; a client refuses
a server with another number. The number stays when a server adds optional request fields whose absence means what it
meant before, domains, verdict names, keys of `details`, or paths; both sides ignore unknown fields. It changes when a
field is removed, renamed, made mandatory, or changes its type or meaning; when a status is added; and when a new field
changes verdicts but an older server would silently ignore it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PROTOCOL_VERSION = 1
DOMAINS = ("math", "stem", "code", "logic", "instruction")
MAX_RESPONSE_BYTES = 400 * 1024
"""A longer response (UTF-8) gets 0 with the verdict `too_long` and is not graded. 16k tokens are about 64 KB of
ordinary text; they only exceed this limit if a policy repeats long tokens, such as runs of spaces."""
MAX_BATCH_ITEMS = 256
MAX_ID_CHARACTERS = 500
"""A server refuses requests with a longer id."""


def id_of(*parts: object) -> str:
    """Returns a request's id: the parts joined by "/", or a hash of them where that would be longer than a server
    takes, so that names of any length can be part of an id.

    Example: id_of(7, "chain_sum/train/17#0", 3, 0) == "7/chain_sum/train/17#0/3/0"
    """
    text = "/".join(map(str, parts))
    return text if len(text) <= MAX_ID_CHARACTERS else hashlib.sha256(text.encode()).hexdigest()


class GradeStatus(StrEnum):
    """The outcome of a request. `graded`: the grader decided; `overloaded`: try elsewhere or later; `infra_error`: the
    service failed; `invalid_request`: the caller must change the request."""

    graded = "graded"
    overloaded = "overloaded"
    infra_error = "infra_error"
    invalid_request = "invalid_request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """One response to grade.

    Example: ScoreRequest(request_id="step7/prompt3/2", domain="math", response="<think>..</think> \\boxed{4}",
                          task={"answer": "4"})
    """

    request_id: str
    domain: str
    response: str
    """Everything that the model wrote, including its reasoning; only the text after the last </think> is graded."""
    in_thought: bool = False
    """Whether the response begins inside a thought that the prompt has opened, as with chat templates that end the
    prompt with <think>. Such a response has an answer only after </think>; without one it gets 0."""
    task: Mapping[str, Any]
    """What grading needs. math, stem: {"answer", "evaluated"?, "verifier"?}; code: {"inputs", "outputs", "fn_name"?,
    "cpu_s"?, "test_cpu_s"?}; logic: {"task", "entry", "credit"?}; instruction: {"instruction_id_list", "kwargs",
    "strict"?, "mode"?, "aggregate"?}. Any domain: {"require_think"?}. docs/graders.md has the rules."""
    deadline_ms: int | None = None
    """Milliseconds after which the caller no longer waits for the result."""

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "request_id": self.request_id,
            "domain": self.domain,
            "response": self.response,
            "task": dict(self.task),
        }
        if self.in_thought:
            body["in_thought"] = True
        if self.deadline_ms is not None:
            body["deadline_ms"] = self.deadline_ms
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The service's result for one response.

    Example: ScoreResult(request_id="step7/prompt3/2", status=GradeStatus.graded, score=1.0, verdict="correct",
                         details={"extracted": "4"}, version="0.1.0+9f2c")
    """

    request_id: str
    status: GradeStatus
    score: float | None
    """A number if and only if status is graded. The service's scores are from 0 to 1; a trainer's own reward function
    may return any finite number."""
    verdict: str
    """Short, stable name of the outcome: correct, wrong, no_box, timeout, syntax_error, ..."""
    details: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""

    def __post_init__(self) -> None:
        if (self.score is not None) != (self.status is GradeStatus.graded):
            raise ValueError(
                f"a {self.status} result must {'' if self.status is GradeStatus.graded else 'not '}have a score"
            )
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"score {self.score} is not a finite number")

    def to_json(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "status": self.status.value,
            "score": self.score,
            "verdict": self.verdict,
            "details": dict(self.details),
            "version": self.version,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ScoreResult:
        """Parses a result. Raises KeyError, TypeError or ValueError if the body is not a result of the service."""
        score = body["score"]
        if score is not None and not 0.0 <= score <= 1.0:
            raise ValueError(f"score {score} is outside 0 to 1")
        return cls(
            request_id=str(body["request_id"]),
            status=GradeStatus(body["status"]),
            score=None if score is None else float(score),
            verdict=str(body["verdict"]),
            details=dict(body["details"]),
            version=str(body["version"]),
        )
