"""verl's own SandboxFusion client (verl.utils.reward_score) against /run_code."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.gateway import HANG_UP, gateway
from tests.clients.real_code import import_alone
from tests.reward.serving import Server, request

if importlib.util.find_spec("verl") is None:
    pytest.skip("`make test-clients` runs these, with verl installed", allow_module_level=True)

Score = Callable[[str, str, Any], float]
STDIN = {"inputs": ["1\n", "3\n", "5\n", "0\n"], "outputs": ["2\n", "6\n", "10\n", "0\n"]}
CALLS = {"inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"], "fn_name": "plus"}


def fenced(source: str) -> str:
    return f"Here it is.\n```python\n{source}\n```\n"


DOUBLE = fenced("print(2 * int(input()))")
RESPONSES = [
    (DOUBLE, STDIN, 1.0),
    (fenced("n = int(input())\nprint(2 * n if n > 1 else 7)"), STDIN, 0.5),
    (fenced("print(3 * int(input()) + 1)"), STDIN, 0.0),
    (fenced("print(2 * int(input())"), STDIN, 0.0),
    (fenced("n = int(input())\n1 / n\nprint(2 * n)"), STDIN, 0.75),
    (fenced("import sys\nn = int(input())\nprint(2 * n)\nsys.exit(n == 3)"), STDIN, 0.75),
    (fenced("def plus(a, b):\n    return a + b"), CALLS, 1.0),
    (
        fenced("class Solution:\n    def plus(self, a, b):\n        return a + b if a < 2 else None"),
        CALLS,
        0.5,
    ),
    (fenced("def minus(a, b):\n    return a + b"), CALLS, 0.0),
    (fenced("x = bytearray(700 << 20)\nprint(2 * int(input()))"), STDIN, 1.0),  # less than verl's 1,024 MB
    ("no code", STDIN, 0.0),
]


@pytest.fixture(scope="module")
def score() -> Score:
    module = import_alone("verl.utils.reward_score")

    def score(url: str, response: str, tests: Any) -> float:
        return module.default_compute_score(
            "codecontests",
            response,
            json.dumps(tests),
            sandbox_fusion_url=f"{url}/run_code",
            concurrent_semaphore=threading.Semaphore(4),
            memory_limit_mb=1024,
        )

    return score


@pytest.mark.parametrize(("response", "tests", "wanted"), RESPONSES)
def test_rewards(score: Score, server: Server, response: str, tests: Any, wanted: float) -> None:
    assert score(server.url, response, tests) == wanted


def test_our_own_protocol_gives_the_same_rewards(server: Server) -> None:
    for number, (response, tests, wanted) in enumerate(RESPONSES[:9]):
        assert server.score(request("code", response, tests, f"same-{number}"))["score"] == wanted


def test_the_token_goes_into_the_url(score: Score, guarded_url: str) -> None:
    assert score(guarded_url, DOUBLE, STDIN) == 1.0


def test_it_tries_again_on_504(score: Score, server: Server) -> None:
    with gateway(server.url, 504, 504) as between:
        assert score(between.url, DOUBLE, {name: values[:1] for name, values in STDIN.items()}) == 1.0
        assert between.num_calls == 3


@pytest.mark.parametrize("status", [503, 400, HANG_UP])
def test_it_takes_every_other_failure_for_a_wrong_program(score: Score, server: Server, status: int) -> None:
    """This is why docs/other_trainers.md has another function for verl. If this test fails, verl has changed: correct
    the document."""
    with gateway(server.url, status) as between:
        assert score(between.url, DOUBLE, {name: values[:1] for name, values in STDIN.items()}) == 0.0
        assert between.num_calls == 1
