"""Tests of pools without HTTP: what happens if a worker cannot be started, hangs, dies or is flooded."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

pytest.importorskip("langdetect")

from reward.answers import NoAnswer, TimedOut
from reward.pool import Pool
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from reward.readiness import Readiness
from reward.service import Service
from tests.reward.serving import PYTHON, ROOT

TESTS = {"inputs": ["1\n"], "outputs": ["2\n"]}


def ask(domain: str = "math", response: str = "\\boxed{5}", **task: object) -> ScoreRequest:
    return ScoreRequest(request_id="r", domain=domain, response=response, task=task or {"answer": "5"})


Use = Callable[[Service], Awaitable[None]]


@pytest.fixture(scope="module")
def with_service() -> Iterator[Callable[[Use], None]]:
    """Runs a coroutine with a service without a sandbox, which all tests share because its start takes seconds."""
    service = Service(None, num_workers=1, version="test")

    async def use_it(use: Use) -> None:
        assert (await service.score(ask())).score == 1, (
            "the worker is there again after what the last test did"
        )
        await use(service)

    with asyncio.Runner() as runner:
        runner.run(service.open())
        yield lambda use: runner.run(use_it(use))
        runner.run(service.close())


def test_without_a_sandbox_code_is_refused_and_the_rest_goes_on(with_service: Callable[[Use], None]) -> None:
    async def use(service: Service) -> None:
        code = await service.score(ask("code", "```\nprint(2)\n```", **TESTS))
        assert (code.status, code.score, code.verdict) == (GradeStatus.infra_error, None, "no_sandbox")
        assert "sandbox" in code.details["reason"]
        assert (await service.score(ask())).score == 1
        readiness = Readiness(service)
        await readiness.first_round()
        report = readiness.report()
        assert report["ready"]
        assert report["sandbox"] == "none"
        assert not report["domains"]["code"]["ready"]

    with_service(use)


def test_a_service_whose_workers_cannot_import_is_not_ready(
    with_service: Callable[[Use], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """sympy would take a module that it does not find for a wrong answer."""
    monkeypatch.setattr("reward.service.LATE_MODULES", ("reward.hidden",))

    async def use(service: Service) -> None:
        readiness = Readiness(service)
        await readiness.first_round()
        report = readiness.report()
        assert not report["ready"]
        for domain in ("math", "logic"):
            assert "could not import" in report["domains"][domain]["reason"]
            assert "reward.hidden" in report["domains"][domain]["reason"]
            assert report["domains"][domain]["is_broken"]
        monkeypatch.setattr("reward.service.LATE_MODULES", ("colorsys",))
        await readiness.first_round()
        report = readiness.report()
        assert report["ready"], "the module is there again"
        assert not any("is_broken" in state for state in report["domains"].values())

    with_service(use)


def test_workers_that_die_while_they_import_may_recover(
    with_service: Callable[[Use], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service) -> None:
        async def dies(domain: str) -> NoAnswer:
            return NoAnswer(f"the worker of {domain} died")

        monkeypatch.setattr(service, "failed_import", dies)
        readiness = Readiness(service)
        await readiness.first_round()
        states = readiness.report()["domains"]
        assert states["math"]["reason"] == "the worker of math died"
        assert "is_broken" not in states["math"]

    with_service(use)


def test_a_flood_is_refused_at_once_and_what_was_taken_is_graded(
    with_service: Callable[[Use], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service) -> None:
        pool = service.pool("math")
        assert isinstance(pool, Pool)
        monkeypatch.setattr(pool, "options", replace(pool.options, queue=8))
        hang = asyncio.ensure_future(pool.run({"spin": True}, cpu_s=0.5))
        await asyncio.sleep(0.05)
        results: list[ScoreResult] = await asyncio.gather(*(service.score(ask()) for _ in range(40)))
        taken = [result for result in results if result.status is GradeStatus.graded]
        refused = [result for result in results if result.status is GradeStatus.overloaded]
        assert len(taken) == 8
        assert len(refused) == 32
        assert all(result.score == 1 for result in taken)
        assert await hang == TimedOut()

    with_service(use)


def test_a_deadline_passes_while_all_workers_are_busy(with_service: Callable[[Use], None]) -> None:
    async def use(service: Service) -> None:
        pool = service.pool("math")
        assert pool is not None
        hang = asyncio.ensure_future(pool.run({"spin": True}, cpu_s=0.3))
        await asyncio.sleep(0.05)
        late, patient = await asyncio.gather(
            service.score(replace(ask(), deadline_ms=1)), service.score(replace(ask(), deadline_ms=300_000))
        )
        assert (late.status, late.verdict) == (GradeStatus.overloaded, "deadline_passed")
        assert patient.score == 1
        assert await hang == TimedOut()
        assert pool.depth == 0

    with_service(use)


def test_a_worker_that_dies_is_replaced_and_its_request_tried_again(
    with_service: Callable[[Use], None],
) -> None:
    async def use(service: Service) -> None:
        pool = service.pool("math")
        assert pool is not None
        for _ in range(3):
            os.kill(pool.pids[0], signal.SIGKILL)
            assert (await service.score(ask())).score == 1

    with_service(use)


def test_a_defect_of_ours_is_no_verdict_and_stays_with_its_request(
    with_service: Callable[[Use], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service) -> None:
        run = Pool.run

        async def broken(pool: Pool, message: dict[str, str], *rest: object, **options: object) -> object:
            if message["response"] == "broken":
                raise KeyError("a defect")
            return await run(pool, message, *rest, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Pool, "run", broken)
        bad, good = await asyncio.gather(service.score(ask(response="broken")), service.score(ask()))
        assert (bad.status, bad.score, bad.verdict) == (GradeStatus.infra_error, None, "internal_error")
        assert good.score == 1

    with_service(use)


def test_a_task_that_nests_too_deep_for_a_worker_is_invalid(with_service: Callable[[Use], None]) -> None:
    async def use(service: Service) -> None:
        nested: list[object] = []
        for _ in range(100_000):
            nested = [nested]
        result = await service.score(ask(answer="5", nested=nested))
        assert (result.status, result.score) == (GradeStatus.invalid_request, None)
        assert (await service.score(ask())).score == 1

    with_service(use)


def test_only_the_graders_that_are_asked_for_are_loaded() -> None:
    program = "import sys; from reward import worker; worker.preload(['instruction']); print(*sys.modules)"
    loaded = subprocess.run(
        [PYTHON, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "reward.graders.constraints" in loaded
    assert not {"reasoning_gym", "sympy"} & set(loaded)
