"""Responses with known scores, at least one right and one wrong per domain, that a ready service grades periodically.

A worker gets {"known_answers": domain}, which cannot come in over HTTP, and grades them by itself. One of those of code
hangs and is ended. Workers that grade other domains get {"hang": LATE_MODULES} as well, with which they import these
modules, as programs of code do, and then compute forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """A response and the `score` that it must get."""

    response: str
    task: Mapping[str, Any]
    score: float


_DOUBLE = {"inputs": ["1\n", "21\n"], "outputs": ["2\n", "42\n"]}
_SUM = {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}}
_NO_COMMA = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
LATE_MODULES = ("colorsys", "sortedcontainers.sorteddict", "reward.version")
"""Modules of the standard library, of the packages and of this one that nothing else makes a worker load. So whether
they can be imported tells whether a confined process can still import what a library needs late."""


def _pair(task: Mapping[str, Any], form: str, right: str, wrong: str) -> tuple[KnownAnswer, ...]:
    """Returns a right and a wrong response; `form` has %s in place of the answer."""
    return tuple(
        KnownAnswer(response=f"<think>so</think>{form % answer}", task=task, score=score)
        for answer, score in ((right, 1.0), (wrong, 0.0))
    )


KNOWN_ANSWERS: dict[str, tuple[KnownAnswer, ...]] = {
    "math": _pair({"answer": "0.5"}, " \\boxed{%s}", "\\frac{1}{2}", "\\frac{1}{3}"),
    "stem": _pair({"answer": "B"}, " \\boxed{%s}", "(B)", "C"),
    "code": (
        *_pair(_DOUBLE, "\n```python\nimport colorsys\nprint(%s * int(input()))\n```", "2", "3"),
        KnownAnswer(
            response="```python\nwhile True:\n    pass\n```", task={**_DOUBLE, "cpu_s": 0.2}, score=0.0
        ),
    ),
    "logic": _pair(_SUM, "<answer>%s</answer>", "7", "8"),
    "instruction": _pair(_NO_COMMA, "%s", "No comma here.", "One, two."),
}
