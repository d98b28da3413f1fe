"""Tests of the table that says who decided."""

from __future__ import annotations

from experiments.grading.__main__ import deciders
from experiments.grading.outputs import Case, Outcome
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult


def outcome(**details: str) -> Outcome:
    request = ScoreRequest(request_id="r", domain="math", response="\\boxed{5}", task={"answer": "5"})
    result = ScoreResult(
        request_id="r", status=GradeStatus.graded, score=1.0, verdict="correct", details=details
    )
    return Outcome(
        case=Case(part="math", name="r", request=request, expected=1.0), result=result, seconds=0.0
    )


def test_the_table_says_who_decided() -> None:
    number = outcome(answer_type="number", gold_type="number", decided_by="reading")
    expression = outcome(answer_type="expression", gold_type="expression", decided_by="sympy")
    lines = list(deciders([number] * 9 + [expression, outcome(gold="5"), outcome(decided_by="deepscaler")]))
    assert [line.split() for line in lines[:-1]] == [
        ["type", "of", "the", "gold", "reading", "sympy"],
        ["number", "9", "0"],
        ["expression", "0", "1"],
        ["all", "9", "1"],
    ]
    assert lines[-1] == "second opinions decide 1 of 10 (10.0 %)"


def test_the_table_of_nothing_is_empty() -> None:
    assert list(deciders([]))[-1] == "second opinions decide 0 of 0 (0.0 %)"
