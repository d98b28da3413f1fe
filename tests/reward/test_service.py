"""Tests of a service without HTTP, with real workers: what it says of itself, and what it loads."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("langdetect")

from reward.answers import Answer, Failed, Late, NoReply, TimedOut
from reward.graders.grade import Grade
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
    monkeypatch.setattr("reward.readiness.LATE_MODULES", ("reward.hidden",))

    async def use(service: Service) -> None:
        readiness = Readiness(service)
        await readiness.first_round()
        assert "cannot be graded: a grader could not import" in readiness.defect()
        assert "reward.hidden" in readiness.report()["domains"]["math"]["reason"]

    with_service(use)


WRONG = Grade(score=0.0, verdict="wrong", details={"reason": "a known answer got 1.0 (correct), not 0.0"})
RIGHT = Grade(score=1.0, verdict="correct")


@pytest.mark.parametrize(
    ("known", "hang", "why", "is_defect"),
    [
        (WRONG, None, "got 1.0 (correct), not 0.0", False),
        (NoReply("the worker died"), None, "the worker died", False),
        (TimedOut(), None, "TimedOut", False),
        (RIGHT, NoReply("the worker died"), "the worker died", False),
        (RIGHT, Failed("no module"), "no module", True),
        (RIGHT, Late(), "were not graded", False),
    ],
)
def test_only_who_grades_known_answers_rightly_and_ends_a_hang_is_ready(
    known: Answer, hang: Answer, why: str, is_defect: bool
) -> None:
    answers = {"known_answers": known, "hang": hang}

    class ScriptedPool:
        async def run(self, message: dict[str, Any], **_: Any) -> Answer:
            (kind,) = message
            return answers[kind]

    service: Any = SimpleNamespace(pool=lambda _: ScriptedPool(), level=None, version="v", num_workers=1)
    readiness = Readiness(service)
    asyncio.run(readiness.first_round())
    assert not readiness.report()["ready"]
    assert why in readiness.report()["domains"]["math"]["reason"]
    assert bool(readiness.defect()) == is_defect
    answers |= {"known_answers": RIGHT, "hang": TimedOut()}
    asyncio.run(readiness.first_round())
    assert (readiness.report()["ready"], readiness.defect()) == (True, "")


def test_only_the_graders_that_are_asked_for_are_loaded() -> None:
    program = "import sys; from reward import worker; worker.preload(['instruction']); print(*sys.modules)"
    loaded = subprocess.run(
        [PYTHON, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "reward.graders.constraints" in loaded
    assert not {"reasoning_gym", "sympy"} & set(loaded)
