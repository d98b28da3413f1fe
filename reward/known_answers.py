"""Responses with known scores, one right and one wrong per domain, that a ready service grades periodically.

Two further checks need no text, and cannot come in over HTTP. One hangs: code runs `HANGING_PROGRAM`, and graders get
the message {"spin": true}, which makes a worker compute forever. The other imports: graders get the message {"import":
LATE_MODULES}, and the programs of code import a module themselves.
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


DOUBLE = {"inputs": ["1\n", "21\n"], "outputs": ["2\n", "42\n"]}
_SUM = {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}}
_NO_COMMA = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
LATE_MODULES = ("colorsys", "sortedcontainers.sorteddict", "reward.version")
"""Modules of the standard library, of the packages and of this one that nothing else makes a worker load. So whether
they can be imported tells whether a confined process can still import what a library needs late."""
HANGING_PROGRAM = "<think>so</think>\n```python\nwhile True:\n    pass\n```"


def _pair(task: Mapping[str, Any], form: str, right: str, wrong: str) -> tuple[KnownAnswer, ...]:
    """Returns a right and a wrong response; `form` has %s in place of the answer."""
    return tuple(
        KnownAnswer(response=f"<think>so</think>{form % answer}", task=task, score=score)
        for answer, score in ((right, 1.0), (wrong, 0.0))
    )


KNOWN_ANSWERS: dict[str, tuple[KnownAnswer, ...]] = {
    "math": _pair({"answer": "0.5"}, " \\boxed{%s}", "\\frac{1}{2}", "\\frac{1}{3}"),
    "stem": _pair({"answer": "B"}, " \\boxed{%s}", "(B)", "C"),
    "code": _pair(DOUBLE, "\n```python\nimport colorsys\nprint(%s * int(input()))\n```", "2", "3"),
    "logic": _pair(_SUM, "<answer>%s</answer>", "7", "8"),
    "instruction": _pair(_NO_COMMA, "%s", "No comma here.", "One, two."),
}
