"""Repetition loops of a policy: reading them takes linear time, and they are graded.

Responses that are not graded are left out of training, so a response that exhausts its grader would avoid a 0.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("langdetect")

from reward import extract
from reward.graders import constraints
from reward.graders.code.blocks import code_blocks
from reward.protocol import MAX_RESPONSE_BYTES
from tests.reward.serving import Server, request
from tests.reward.test_constraints import ARGUMENTS

UNITS = (
    "[", "]", "[]", "<<", ">>", "<<a", "*", "**", "***", "* ", "*\n", "-", "- ", "-\n", " ", "\t", "\n", " \n", "\r",
    "a", "A", "A ", "A. ", "I. B. ", "1", "1 ", "1. ", ".", ". ", "...", "... ", "? ", "!", "vs. ", "Dr. ", "e.g. ",
    "a.) ", "a.\n\n", '"', '" ', "'", "A' ", "don't ", ",", ", ", ":", "P.S.", "p. ", "PART 1 ", "(", "{", "}",
    "\\boxed{", "\\boxed{1}", "\\boxed{1}, ", "\\boxed{1} and ", "`", "```", "``` ", "```\n", '```\n\\"""\n```py\n',
    '"""', "</answer>", "<answer>", "</think>", "word ",
)  # fmt: skip
RULES = {
    name: arguments
    for name, arguments in ARGUMENTS.items()
    if not name.startswith("language") and not name.startswith("change_case:english")
}
"""All rules but those for a language, for which langdetect reads only the first 10,000 characters."""


def of_rule(name: str) -> Callable[[str], Any]:
    return lambda text: constraints.RULES[name].follows(text, **RULES[name])


READERS: dict[str, Callable[[str], Any]] = {
    **{name: of_rule(name) for name in RULES},
    "code": code_blocks,
    "code in Python": lambda text: code_blocks(f"```python\n{text}"),
    "code without a label": lambda text: code_blocks(f"```\n{text}"),
    "code that ends with a backslash": lambda text: code_blocks(f"```python\n{text}\\"),
    "code, a fence that goes on": lambda text: code_blocks(f"```{text}`"),
    "box": extract.last_box,
    "boxes around": lambda text: extract.joined_boxes(f"\\boxed{{1}}{text}x\\boxed{{2}}"),
    "boxes around a comma": lambda text: extract.joined_boxes(f"\\boxed{{1}},{text}x\\boxed{{2}}"),
    "boxes inside": lambda text: extract.last_box(text + "}" * text.count("{")),
    "answer": extract.answer_tag,
    "thought": lambda text: extract.visible_text(text) if extract.is_open_thought(text) else None,
}
SMALL, LARGE = 4_000, 32_000
NOTHING_S = 0.008
"""A smaller time for the short text is too short to compare."""
GROWTH = 24
"""Limit for a text eight times as long: linear growth is 8, quadratic 64."""


def cpu_s(read: Callable[[str], Any], text: str) -> float:
    """CPU time, which other load on the machine hardly changes."""
    start = time.thread_time()
    read(text)
    return time.thread_time() - start


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Switches garbage collection off: it runs at any time, and takes longer the more objects there are."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.medium
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", READERS)
def test_the_work_grows_with_the_text_and_no_faster(name: str) -> None:
    read, too_steep = READERS[name], []
    for unit in UNITS:
        small, large = ((unit * size)[:size] for size in (SMALL, LARGE))
        limit_s = GROWTH * max(NOTHING_S, cpu_s(read, small))
        if all(cpu_s(read, large) > limit_s for _ in range(3)):
            too_steep.append(unit)
    assert too_steep == []


def test_the_longest_response_of_repetitions_gets_its_verdict(server: Server) -> None:
    """A worker has 5 s of CPU time for a response; a judge of code has no such limit."""
    rules = {"instruction_id_list": list(RULES), "kwargs": list(RULES.values()), "aggregate": "all"}
    double = {"inputs": ["1\n"], "outputs": ["2\n"]}
    room = MAX_RESPONSE_BYTES - 100
    items = [
        request("instruction", (unit * room)[:room], rules, unit)
        for unit in ("[", "<<", "\n", " \n", "vs. ", "*")
    ]
    items.append(request("code", "```" + " " * room + "`", double, "code"))
    items.append(request("math", "\\boxed{4}" + " " * room + "x\\boxed{5}", {"answer": "4"}, "math"))
    results = server.batch(items)
    assert [(result["status"], result["score"]) for result in results] == [("graded", 0.0)] * len(items)
    assert {result["verdict"] for result in results} <= {"wrong", "partial", "no_code"}, results
