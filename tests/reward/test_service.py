"""Tests of a service without HTTP, with real workers: what it says of itself, and what it loads."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator

import pytest

pytest.importorskip("langdetect")

from reward.answers import NoReply
from reward.protocol import GradeStatus, ScoreRequest
from reward.readiness import Readiness
from reward.service import Service
from tests.reward.serving import PYTHON, ROOT

WithService = Callable[[Callable[[Service], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def with_service() -> Iterator[WithService]:
    """Runs a coroutine with a service without a sandbox, which all tests share because its start takes seconds."""
    service = Service(None, num_workers=1, version="test")
    with asyncio.Runner() as runner:
        runner.run(service.open())
        yield lambda use: runner.run(use(service))
        runner.run(service.close())


def test_without_a_sandbox_code_is_refused_and_the_rest_goes_on(with_service: WithService) -> None:
    async def use(service: Service) -> None:
        task = {"inputs": ["1\n"], "outputs": ["2\n"]}
        code = await service.score(ScoreRequest(request_id="r", domain="code", response="", task=task))
        assert (code.status, code.score, code.verdict) == (GradeStatus.infra_error, None, "no_sandbox")
        readiness = Readiness(service)
        await readiness.first_round()
        report = readiness.report()
        assert (report["ready"], report["sandbox"], readiness.defect()) == (True, "none", "")
        assert {name for name, state in report["domains"].items() if state.get("is_refused")} == {"code"}

    with_service(use)


def test_a_service_whose_workers_cannot_import_does_not_start(
    with_service: WithService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sympy would take a module that it does not find for a wrong answer."""
    monkeypatch.setattr("reward.service.LATE_MODULES", ("reward.hidden",))

    async def use(service: Service) -> None:
        readiness = Readiness(service)
        await readiness.first_round()
        assert "cannot be graded: a grader could not import" in readiness.defect()
        assert "reward.hidden" in readiness.report()["domains"]["math"]["reason"]
        assert not readiness.report()["ready"]
        monkeypatch.setattr("reward.service.LATE_MODULES", ("colorsys",))
        await readiness.first_round()
        assert (readiness.report()["ready"], readiness.defect()) == (True, ""), "the module is there again"

    with_service(use)


def test_workers_that_die_while_they_import_may_recover(
    with_service: WithService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service) -> None:
        async def dies(domain: str) -> NoReply:
            return NoReply(f"the worker of {domain} died")

        monkeypatch.setattr(service, "failed_import", dies)
        readiness = Readiness(service)
        await readiness.first_round()
        assert readiness.report()["domains"]["math"]["reason"] == "the worker of math died"
        assert readiness.defect() == ""

    with_service(use)


def test_a_service_that_grades_a_known_answer_wrongly_is_not_ready(
    with_service: WithService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service) -> None:
        right, wrong = await service.known_answers("math")

        async def swapped(domain: str) -> tuple[object, ...]:
            return (right, type(wrong)(response=right.response, task=right.task, score=0.0))

        monkeypatch.setattr(service, "known_answers", swapped)
        readiness = Readiness(service)
        await readiness.first_round()
        assert readiness.report()["domains"]["math"]["reason"] == "a known answer got 1.0 (correct), not 0.0"
        assert not readiness.report()["ready"]

    with_service(use)


def test_only_the_graders_that_are_asked_for_are_loaded() -> None:
    program = "import sys; from reward import worker; worker.preload(['instruction']); print(*sys.modules)"
    loaded = subprocess.run(
        [PYTHON, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "reward.graders.constraints" in loaded
    assert not {"reasoning_gym", "sympy"} & set(loaded)
