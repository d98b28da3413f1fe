"""Nothing ungraded becomes a reward: requests wait, are sent again, and get the result of their first try."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi import HTTPException

from reward.frontends.common import Options, scores
from reward.protocol import ScoreRequest, ScoreResult, Status
from reward.rows import request_of_label
from reward.server import Front

REQUEST = request_of_label("\\boxed{4}", "4")


class Scripted:
    """A service that answers with the given statuses in turn, then repeats the last. `seconds`: time per answer."""

    version = "test"

    def __init__(self, *statuses: Status, seconds: float = 0.0, verdict: str = "v") -> None:
        self.statuses, self.seconds, self.verdict, self.calls = list(statuses), seconds, verdict, 0
        self.deadlines_ms: list[int | None] = []

    async def score(self, request: ScoreRequest) -> ScoreResult:
        status = self.statuses[min(self.calls, len(self.statuses) - 1)]
        self.calls += 1
        self.deadlines_ms.append(request.deadline_ms)
        await asyncio.sleep(self.seconds)
        score = 1.0 if status is Status.graded else None
        return ScoreResult(
            request_id=request.request_id,
            status=status,
            score=score,
            verdict=self.verdict,
            details={"reason": "broken"},
        )


def ask(service: Scripted, wait_s: float, tries: int = 1) -> list[list[float] | HTTPException]:
    """Sends the same request several times in succession and returns the outcome of each try."""

    async def main() -> list[Any]:
        front, answers = Front(service, None, None), []  # type: ignore[arg-type]
        for _ in range(tries):
            try:
                answers.append(await scores(front, [REQUEST], Options(wait_s=wait_s)))
            except HTTPException as error:
                answers.append(error)
        return answers

    return asyncio.run(main())


def test_a_busy_service_is_waited_for() -> None:
    assert ask(Scripted(Status.overloaded, Status.overloaded, Status.graded), 30) == [[1.0]]


def test_a_service_that_stays_busy_is_503_with_retry_after() -> None:
    (refusal,) = ask(Scripted(Status.overloaded), 0.2)
    assert isinstance(refusal, HTTPException)
    assert (refusal.status_code, refusal.headers) == (503, {"Retry-After": "2"})


def test_a_service_that_fails_is_503_and_says_why() -> None:
    service = Scripted(Status.infra_error)
    (refusal,) = ask(service, 0.7)
    assert isinstance(refusal, HTTPException)
    assert (refusal.status_code, service.calls) == (503, 2)
    assert "broken" in refusal.detail


def test_a_service_that_cannot_grade_code_says_so_at_once() -> None:
    service = Scripted(Status.infra_error, verdict="no_sandbox")
    assert isinstance(ask(service, 30)[0], HTTPException)
    assert service.calls == 1


def test_one_failure_is_tried_again() -> None:
    assert ask(Scripted(Status.infra_error, Status.graded), 30) == [[1.0]]


def test_a_client_that_comes_again_gets_the_result_of_its_first_try() -> None:
    service = Scripted(Status.graded, seconds=0.3)
    answers = ask(service, 0.05, tries=20)
    assert isinstance(answers[0], HTTPException)
    assert answers[-1] == [1.0]
    assert service.calls == 1


# ------------------------------------------------------------------------------------------------ equal requests
def results_of(service: Scripted, *deadlines_ms: int | None) -> list[ScoreResult]:
    """Returns the results of equal requests that arrive together and differ in their deadlines."""

    async def main() -> list[ScoreResult]:
        front = Front(service, None, None)  # type: ignore[arg-type]
        bodies = [{**REQUEST.to_json(), "deadline_ms": deadline_ms} for deadline_ms in deadlines_ms]
        results = await front.score_all(bodies)
        assert front._running == {}
        return results

    return asyncio.run(main())


def test_a_request_does_not_inherit_the_shorter_deadline_of_an_equal_one() -> None:
    service = Scripted(Status.overloaded, Status.graded, seconds=0.05)
    results = results_of(service, 1, 60_000, None, 60_000)
    assert [result.status for result in results] == [Status.overloaded, *[Status.graded] * 3]
    assert service.calls == 2
    first, second = service.deadlines_ms
    assert first == 1
    assert second is not None
    assert second < 60_000  # the time that it waited for the other is gone


def test_equal_requests_are_graded_once() -> None:
    for status in (Status.graded, Status.infra_error):
        service = Scripted(status, seconds=0.05)
        assert [result.status for result in results_of(service, 1, None, 60_000)] == [status] * 3
        assert service.calls == 1
