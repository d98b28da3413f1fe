"""Tests of three tables of answers in tests/reward/data (recorded, notations, hostile), of tasks and of details."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import pytest

from reward.graders import grade
from reward.graders.grade import InvalidTask
from tests.reward.serving import Server, boxed, rows

DEVIATIONS = {
    **dict.fromkeys(("p144", "p155"), "words between boxes may say that one of them is wrong"),
}
RECORDED = rows("math_cases.jsonl")
"""Acceptance cases, each from the tests of some project."""


def by_kind(name: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows {kind, gold, answer, right} of a table, by kind."""
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(name):
        kinds[row["kind"]].append(row)
    return kinds


NOTATIONS = by_kind("math_notations.jsonl")
"""Answers that are equal to their gold in some writing, and their neighbours, which are not."""
HOSTILE = by_kind("math_hostile.jsonl")
"""Boxes that show or hide a second value. None of them is right."""


def score(gold: str, answer: str, **options: object) -> float:
    return grade("math", f"\\boxed{{{answer}}}", {"answer": gold, **options}).score


def misjudged(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in table if score(row["gold"], row["answer"]) != row["right"]]


@pytest.mark.medium
@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["id"])
def test_recorded(case: dict[str, str]) -> None:
    found = int(grade("math", case["response"], {"answer": case["gold"]}).score)
    assert (found == case["expected"]) == (case["id"] not in DEVIATIONS), (case["gold"], case["answer"])
    if case["kind"] == "peer" and "boxed" not in case["gold"]:
        assert score(case["gold"], case["gold"]) == 1


@pytest.mark.parametrize("kind", NOTATIONS)
def test_notations(kind: str) -> None:
    assert misjudged(NOTATIONS[kind]) == []


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile(kind: str) -> None:
    assert misjudged(HOSTILE[kind]) == []


@pytest.mark.slow
def test_nothing_hangs_the_service(server: Server) -> None:
    cases = rows("math_hang_cases.jsonl")
    before = len(server.descendants())
    for case in cases:
        result = server.score(boxed(case["answer"], case["gold"]))
        assert result["score"] == 0, (case["id"], result)
    assert server.score(boxed("5", "5"))["score"] == 1
    assert abs(len(server.descendants()) - before) <= 2


@pytest.mark.parametrize(
    "task",
    [{}, {"answer": ""}, {"answer": 5}, {"answer": "x" * 6000}, {"answer": "5", "evaluated": 1}],
)
def test_a_task_without_a_usable_answer_is_invalid(task: dict[str, object]) -> None:
    with pytest.raises(InvalidTask):
        grade("math", "\\boxed{5}", task)


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("56088", r"123\times456", 0),
        ("56088", "56088", 1),
        ("56088", "56,088", 1),
        ("1024", "2^{10}", 0),
        ("-5", "-5", 1),
        ("5", "7-2", 0),
        (r"\frac{1}{2}", "0.5", 1),
        ("3000", r"3\times10^{3}", 1),
        ("12", r"12\text{ cm}^2", 1),
        ("x+1", "1+x", 1),
    ],
)
def test_arithmetic_must_be_carried_out_on_demand(gold: str, answer: str, right: int) -> None:
    assert score(gold, answer, evaluated=True) == right


def test_details_say_types_and_rule() -> None:
    found = grade("math", "\\boxed{x = 0.5}", {"answer": "\\frac12"})
    assert {"answer_type": "relation", "gold_type": "number"}.items() <= found.details.items()
    assert found.details["rule"] == "value of a chain"
    assert "5 12" in grade("math", "\\boxed{5 12}", {"answer": "5"}).details["extracted"]


def test_what_is_not_shown_has_a_reason() -> None:
    found = grade("math", "\\boxed{630\\label{\\to 12}}", {"answer": "630"})
    assert (found.score, found.verdict) == (0, "unreadable")
    assert "`\\label`" in found.details["reason"]


def test_an_answer_that_is_written_as_an_unreadable_gold_is_right() -> None:
    gold = r"\begin{pmatrix} 1 & \phantom -1 \end{pmatrix}"
    assert score(gold, gold) == 1
    assert score(gold, r"\phantom{1}") == 0


def test_boxes_one_after_another_are_a_list() -> None:
    text = "so $x=\\boxed{1}$ and $\\boxed{2}$"
    assert grade("math", text, {"answer": "1,2"}).score == 1
    assert grade("math", text, {"answer": "1"}).score == 0


@pytest.mark.parametrize("verifier", ["mathd", "", None, 1, [], {}, True])
def test_an_unknown_verifier_is_an_invalid_task(verifier: object) -> None:
    known = '"verifier" must be one of "reading", "papers", "deepscaler", "math_verify"'
    with pytest.raises(InvalidTask, match=known):
        score("5", "5", verifier=verifier)
    assert score("5", "5", verifier="reading") == 1


def test_the_papers_verifiers_are_refused_where_they_are_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "reward.graders.papers", raising=False)
    monkeypatch.setitem(sys.modules, "math_verify", None)
    for verifier in ("papers", "deepscaler", "math_verify"):
        with pytest.raises(InvalidTask, match=r"needs math_verify: .*pip install .*papers") as caught:
            score("5", "5", verifier=verifier)
        assert "\n" not in str(caught.value)
    assert score("5", "5") == 1
