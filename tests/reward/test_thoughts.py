"""Tests of what is thought and what is answer, in every domain, whether the response or its prompt opens the
thought."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

pytest.importorskip("fastapi")

from reward.graders.grade import Grade, InvalidTask, gate
from reward.offline import explanation
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from tests.reward.serving import Server, request

ANSWERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "math": ("math", "So it is \\boxed{4}.", {"answer": "4"}),
    "stem": ("stem", "Hence \\boxed{B}.", {"answer": "B"}),
    "code": (
        "code",
        "```python\nprint(2 * int(input()))\n```",
        {"inputs": ["1\n", "21\n"], "outputs": ["2\n", "42\n"]},
    ),
    "logic": (
        "logic",
        "<answer>7</answer>",
        {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}},
    ),
    "instruction": (
        "instruction",
        "No comma stands here",
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    ),
}
"""A right answer for each domain."""


def request_body(name: str, response: str, request_id: str, **changes: Any) -> dict[str, Any]:
    domain, _, task = ANSWERS[name]
    return {**request(domain, response, task, request_id), **changes}


def outcome(result: dict[str, Any]) -> tuple[str, float | None, str]:
    return result["status"], result["score"], result["verdict"]


OPEN = ("graded", 0.0, "open_thought")
CORRECT = ("graded", 1.0, "correct")


@pytest.mark.parametrize("name", ANSWERS)
def test_every_domain_grades_what_follows_the_last_thought(name: str, server: Server) -> None:
    """A right draft in a thought that never ends was once rewarded if the prompt had opened the thought."""
    answer = ANSWERS[name][1]
    cases = [
        (answer, True, OPEN),
        (f"Let me see.\n{answer}\nBut wait", True, OPEN),
        (f"<think>{answer}", False, OPEN),
        (f"so</think>{answer}<think>or else", True, OPEN),
        (answer, False, CORRECT),
        (f"Perhaps \\boxed{{5}} <answer>8</answer>, a draft</think>\n\n{answer}", True, CORRECT),
        (f"<think>```python\nunfinished</think>\n\n{answer}", False, CORRECT),
    ]
    items = [
        request_body(name, text, f"{name}/{number}", **({"in_thought": True} if in_thought else {}))
        for number, (text, in_thought, _) in enumerate(cases)
    ]
    assert [outcome(result) for result in server.batch(items)] == [expected for *_, expected in cases]


# The rule by itself

PIECES = ("<think>", "</think>", "a", "\n", "<think", "</answer>")
TEXTS = ["".join(pieces) for length in range(6) for pieces in itertools.product(PIECES, repeat=length)]
"""Every text of up to five pieces."""


def by_walking(response: str, in_thought: bool) -> str | None:
    """The rule as an automaton: returns what has been written since the last </think>; None inside a thought."""
    thinking, answer = in_thought, ""
    for piece in re.split("(</?think>)", response):
        if piece == "<think>":
            thinking = True
        elif piece == "</think>":
            thinking, answer = False, ""
        else:
            answer += piece
    if thinking:
        return None
    return answer.lstrip("\r\n") if "</think>" in response else answer


@pytest.mark.parametrize("in_thought", [False, True])
def test_the_rule_is_the_automaton(in_thought: bool) -> None:
    for response in TEXTS:
        text = gate(response, {}, in_thought=in_thought)
        found = None if isinstance(text, Grade) else text
        assert found == by_walking(response, in_thought), response


@pytest.mark.parametrize(
    ("response", "in_thought", "verdict"),
    [
        ("\\boxed{4}", False, "no_think_end"),
        ("\\boxed{4}", True, "open_thought"),
        ("<think>\\boxed{4}", False, "open_thought"),
        ("so</think>\\boxed{4}", False, None),
        ("so</think>\\boxed{4}", True, None),
        ("so</think>\\boxed{4}<think>", True, "open_thought"),
    ],
)
def test_a_task_may_moreover_demand_a_thought(response: str, in_thought: bool, verdict: str | None) -> None:
    text = gate(response, {"require_think": True}, in_thought=in_thought)
    assert (text.verdict if isinstance(text, Grade) else None) == verdict
    with pytest.raises(InvalidTask, match="require_think"):
        gate(response, {"require_think": "yes"}, in_thought=in_thought)


@pytest.mark.parametrize(
    ("response", "in_thought", "words"),
    [
        ("\\boxed{4}", True, "begun in the prompt, never ended; 0 characters are graded"),
        ("so</think>\\boxed{4}", True, "begun in the prompt, ended by </think>; 9 characters are graded"),
        ("<think>so</think>\\boxed{4}", False, "ended by </think>; 9 characters are graded"),
        ("<think>\\boxed{4}", False, "never ended; 0 characters are graded"),
        ("\\boxed{4}", False, "no </think>; 9 characters are graded"),
    ],
)
def test_explain_says_how_the_thought_begins_and_ends(response: str, in_thought: bool, words: str) -> None:
    asked = ScoreRequest(
        request_id="a", domain="math", response=response, in_thought=in_thought, task={"answer": "4"}
    )
    result = ScoreResult(request_id="a", status=GradeStatus.graded, score=0.0, verdict="open_thought")
    lines = list(explanation(asked, result))
    assert lines[1] == f"reasoning  {words}"
    assert lines[2] == f"extracted  (last box) {'null' if 'never' in words else '4'}"
