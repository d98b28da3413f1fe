"""Tests that a confined worker grades as the grader does in this process: its libraries find what they import late, and
say nothing about what they do not find."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langdetect", reason="needs the reward environment")

from reward import frames
from reward.answers import Grade, Reply
from reward.graders import grade
from reward.graders.code import grader
from reward.graders.registry import domains
from reward.pool import ForkedWorker
from reward.sandbox import launch
from reward.sandbox.cell import Level
from reward.sandbox.execution import Sandbox
from reward.sandbox.launch import Zygote
from reward.sandbox.probe import failure_of
from tests.reward.serving import rows

CASES = rows("red_team_cases.jsonl")
IN_WORKERS = [case for case in CASES if case["domain"] != "code"]
BY_JUDGES = [case for case in CASES if case["domain"] == "code"]


class Blind:
    """A worker that finds no file of its interpreter, its packages or its own package, as if they all lay below what
    the cell covers. Whatever it grades right, it has loaded before it was confined."""

    def __init__(self, zygote: Zygote) -> None:
        self.zygote, self.worker = zygote, ForkedWorker(zygote)

    def ask(self, message: dict[str, Any]) -> Reply:
        frames.write(self.worker.socket.fileno(), {"requests": [message]})
        reply = Reply.from_frame(frames.read(self.worker.socket.fileno()))
        if reply.retire:
            self.worker.end()
            self.worker = ForkedWorker(self.zygote)
        return reply

    def grade(self, case: dict[str, Any]) -> Grade:
        message = {key: case[key] for key in ("domain", "response", "task")}
        (answer,) = self.ask({**message, "in_thought": False}).answers
        assert isinstance(answer, Grade)
        return answer


@pytest.fixture(scope="module")
def blind() -> Iterator[Blind]:
    if failure := failure_of(Level.namespaces):
        pytest.skip(f"this machine has no level {Level.namespaces}: {failure}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "read_paths", lambda _role: ())
        zygote = Zygote("graders", Level.namespaces, domains())
    blind = Blind(zygote)
    yield blind
    blind.worker.end()
    zygote.close()


@pytest.mark.medium
@pytest.mark.parametrize("case", IN_WORKERS, ids=lambda case: case["kind"])
def test_a_case_of_the_red_team(case: dict[str, Any], blind: Blind) -> None:
    here = grade(case["domain"], case["response"], case["task"])
    assert here.score == case["want"], (case["task"], case["response"])
    there = blind.grade(case)
    assert (there.score, there.verdict) == (here.score, here.verdict)
    assert there.details == json.loads(json.dumps(here.details))


@pytest.mark.parametrize("case", BY_JUDGES, ids=lambda case: case["kind"])
def test_a_program_of_the_red_team(case: dict[str, Any], sandbox: Sandbox) -> None:
    assert grader.grade(sandbox, case["response"], case["task"]).score == case["want"], case
