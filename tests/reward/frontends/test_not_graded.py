"""Nothing ungraded becomes a reward: requests wait, are sent again, and get the result of their first try."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi import HTTPException

from reward.frontends import sandbox_fusion
from reward.frontends.common import Options, scores
from reward.frontends.sandbox_fusion import Runs
from reward.protocol import ScoreRequest, ScoreResult, Status
from reward.rows import request_of_label
from reward.sandbox.programs import Program, ProgramRun
from reward.server import Front
from reward.service import NotRun

REQUEST = request_of_label("\\boxed{4}", "4")
PROGRAM = Program(source="print(1)", stdin="", cpu_s=5.0, memory=512 << 20)
RAN = ProgramRun(end="exit", return_code=0, stdout="1\n", stderr="", cpu_s=0.01)


class Scripted:
    """A service that answers with the given statuses in turn, then repeats the last. `seconds`: time per answer."""

    version = "test"

    def __init__(self, *statuses: Status, seconds: float = 0.0, verdict: str = "v") -> None:
        self.statuses, self.seconds, self.verdict, self.calls = list(statuses), seconds, verdict, 0
        self.gate: asyncio.Event | None = None
        """Programs wait for this event before they end."""
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

    async def run_program(self, program: Program) -> ProgramRun:
        status = self.statuses[min(self.calls, len(self.statuses) - 1)]
        self.calls += 1
        await asyncio.sleep(self.seconds)
        if self.gate is not None:
            await self.gate.wait()
        if status is not Status.graded:
            raise NotRun("broken", is_busy=status is Status.overloaded)
        return RAN


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


def run(service: Scripted, wait_s: float, tries: int = 1) -> list[ProgramRun | NotRun | None]:
    async def main() -> list[Any]:
        runs, answers = Runs(service), []  # type: ignore[arg-type]
        for _ in range(tries):
            try:
                answers.append(await runs.result(PROGRAM, wait_s))
            except NotRun as error:
                answers.append(error)
        return answers

    return asyncio.run(main())


def test_programs_wait_as_well() -> None:
    assert run(Scripted(Status.overloaded, Status.graded), 30) == [RAN]
    assert run(Scripted(Status.overloaded), 0.1) == [None]
    (failure,) = run(Scripted(Status.infra_error), 30)
    assert isinstance(failure, NotRun)
    service = Scripted(Status.graded, seconds=0.3)
    answers = run(service, 0.05, tries=8)
    assert (answers[0], RAN in answers) == (None, True)
    assert service.calls <= 2  # a result is given once; whoever asks after that has it run again


def test_results_that_nobody_takes_are_forgotten() -> None:
    async def main() -> int:
        runs = Runs(Scripted(Status.graded, seconds=0.01))  # type: ignore[arg-type]
        for number in range(600):
            program = Program(source=str(number), stdin="", cpu_s=1.0, memory=1 << 30)
            assert await runs.result(program, 1e-9) is None
        await asyncio.sleep(0.2)
        await runs.result(PROGRAM, 5)
        return len(runs._tasks)

    assert asyncio.run(main()) <= 256


def program_of_size(size: int) -> Program:
    return Program(source="", stdin="x" * size, cpu_s=1.0, memory=1 << 30)


@pytest.mark.parametrize(("programs", "characters"), [(3, 1 << 30), (1000, 350)])
def test_programs_beyond_the_bounds_wait_for_room(
    monkeypatch: pytest.MonkeyPatch, programs: int, characters: int
) -> None:
    monkeypatch.setattr(sandbox_fusion, "_MAX_RUNNING", programs)
    monkeypatch.setattr(sandbox_fusion, "_MAX_CHARACTERS_RUNNING", characters)

    async def main() -> None:
        service = Scripted(Status.graded)
        service.gate = asyncio.Event()
        runs = Runs(service)  # type: ignore[arg-type]
        for number in range(10):
            assert await runs.result(program_of_size(100 + number), 0.01) is None
        assert service.calls == 3
        service.gate.set()
        waiting = [runs.result(program_of_size(100 + number), 30) for number in range(10)]
        assert await asyncio.gather(*waiting) == [RAN] * 10
        assert await runs.result(program_of_size(5_000), 30) == RAN  # larger than all the room, and alone
        assert (runs._num_running, runs._characters_running) == (0, 0)

    asyncio.run(main())


def test_the_memory_of_results_holds_no_program() -> None:
    async def main() -> list[bytes]:
        service = Scripted(Status.graded)
        service.gate = asyncio.Event()
        runs = Runs(service)  # type: ignore[arg-type]
        for number in (1, 1, 2):
            assert await runs.result(program_of_size(number << 20), 0.01) is None
        return list(runs._tasks)

    keys = asyncio.run(main())
    assert [len(key) for key in keys] == [32, 32]


def test_a_client_cannot_ask_for_an_endless_wait() -> None:
    waits: list[float] = []

    class Waits:
        async def result(self, _program: Program, wait_s: float) -> ProgramRun:
            waits.append(wait_s)
            return RAN

    for seconds in (5, 1e6):
        body = {"code": "", "run_timeout": seconds, "compile_timeout": seconds}
        asyncio.run(sandbox_fusion.run_code(Waits(), Options(), body))  # type: ignore[arg-type]
    assert waits == [18.0, 3600.0]


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
