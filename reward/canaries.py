"""Canaries: responses with known scores, one right and one wrong per domain, that a ready service grades periodically.

A third canary hangs. It needs no text: code runs `HANGING_PROGRAM`, and graders get the message {"spin": true}, which
makes a worker compute forever and cannot come in over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A response and the `score` that it must get."""

    response: str
    task: Mapping[str, Any]
    score: float


DOUBLE = {"inputs": ["1\n", "21\n"], "outputs": ["2\n", "42\n"]}
_SUM = {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}}
_NO_COMMA = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}


HANGING_PROGRAM = "<think>so</think>\n```python\nwhile True:\n    pass\n```"


def _boxed(answer: str) -> str:
    return f"<think>so</think> \\boxed{{{answer}}}"


CANARIES: dict[str, tuple[Canary, ...]] = {
    "math": (
        Canary(response=_boxed("\\frac{1}{2}"), task={"answer": "0.5"}, score=1.0),
        Canary(response=_boxed("\\frac{1}{3}"), task={"answer": "0.5"}, score=0.0),
    ),
    "stem": (
        Canary(response=_boxed("(B)"), task={"answer": "B"}, score=1.0),
        Canary(response=_boxed("C"), task={"answer": "B"}, score=0.0),
    ),
    "code": (
        Canary(response="<think>so</think>\n```python\nprint(2 * int(input()))\n```", task=DOUBLE, score=1.0),
        Canary(response="<think>so</think>\n```python\nprint(3 * int(input()))\n```", task=DOUBLE, score=0.0),
    ),
    "logic": (
        Canary(response="<think>so</think><answer>7</answer>", task=_SUM, score=1.0),
        Canary(response="<think>so</think><answer>8</answer>", task=_SUM, score=0.0),
    ),
    "instruction": (
        Canary(response="<think>so</think>No comma here.", task=_NO_COMMA, score=1.0),
        Canary(response="<think>so</think>One, two.", task=_NO_COMMA, score=0.0),
    ),
}
