"""Tests of what is the answer in a response: boxes, tags, and what is thought, in every domain, whether the response or
its prompt opens the thought."""

import itertools
import re
from typing import Any

import pytest

pytest.importorskip("fastapi")

from reward.extract import answer_tag, boxes, joined_boxes, last_box
from reward.graders.grade import Grade, InvalidTask, gate
from reward.offline import explanation
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from tests.reward.serving import Server, request


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("\\boxed{1} \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed {3}", "3"),
        ("\\fbox{4}", "4"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{6} and then \\boxed{7", "6"),
        ("\\boxed 8.", "8"),
        ("\\boxed a", None),
        ("\\framebox{8}", "8"),
        ("\\boxed{7} in \\boxed{ }", "7"),
        ("\\boxed{", None),
        ("\\boxed{185\\}", "185\\"),
        ("none", None),
    ],
)
def test_last_box(text: str, box: str | None) -> None:
    assert last_box(text) == box


def test_many_unbalanced_boxes_take_no_quadratic_time() -> None:
    assert boxes("\\boxed{" * 40_000) == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{1} and \\boxed{2}", "1, 2"),
        ("$\\boxed{1}$, $\\boxed{2}$", "1, 2"),
        ("\\(\\boxed{1}\\) or \\(\\boxed{2}\\)", r"1 \text{ or } 2"),
        ("$y=\\boxed{1}$ and $x_1 = \\boxed{2}$", "y=1, x_1=2"),
        ("$x=\\boxed{x=1}$ and $\\boxed{2}$", "x=1, 2"),
        ("so $x=\\boxed{1}$, which is $\\boxed{1}$", "1"),
        ("$\\boxed{1}$, $\\boxed{1}$", "1"),
        (f"\\boxed{{1}}{' ' * 300}\n{' ' * 300}\\boxed{{2}}", "1, 2"),
        ("\\boxed{1} and\n\n\\boxed{2}", "2"),
        ("\\boxed{9}\n\n\\boxed{1}, \\boxed{2}", "1, 2"),
        ("It is not \\boxed{1}, it is \\boxed{2}", "2"),
        ("\\boxed{A} is wrong, and \\boxed{C} is right", "C"),
        ("\\boxed{4} stands in \\boxed{}.", "4"),
        ("", None),
    ],
)
def test_boxes_that_belong_together(text: str, answer: str | None) -> None:
    assert joined_boxes(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> <answer> 2 </answer>", "2"),
        ("<answer>1</answer> <answer>2", "1"),
        ("<answer>", None),
        ("</answer>", None),
        ("2", None),
    ],
)
def test_answer_tag(text: str, answer: str | None) -> None:
    assert answer_tag(text) == answer


# ------------------------------------------------------------------------------------- thoughts
@pytest.mark.parametrize(
    ("domain", "answer", "task"),
    [
        ("math", "So it is \\boxed{4}.", {"answer": "4"}),
        ("code", "```python\nprint(2 * int(input()))\n```", {"inputs": ["1\n"], "outputs": ["2\n"]}),
    ],
)
def test_workers_and_judges_grade_what_follows_the_last_thought(
    domain: str, answer: str, task: dict[str, Any], server: Server
) -> None:
    """A right draft in a thought that never ends was once rewarded if the prompt had opened the thought."""
    cases = [
        (f"Let me see.\n{answer}\nBut wait", True, (0.0, "open_thought")),
        (f"<think>{answer}", False, (0.0, "open_thought")),
        (answer, False, (1.0, "correct")),
        (f"Perhaps \\boxed{{5}}, a draft</think>\n\n{answer}", True, (1.0, "correct")),
    ]
    items = [
        {**request(domain, text, task, f"{domain}/{number}"), "in_thought": in_thought}
        for number, (text, in_thought, _) in enumerate(cases)
    ]
    found = [(result["score"], result["verdict"]) for result in server.batch(items)]
    assert found == [expected for *_, expected in cases]


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
