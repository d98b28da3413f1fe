"""Tests of `reward explain` for mathematics: both values, their types and the rule, in 80 columns."""

from reward.graders.math.reading import read
from reward.graders.math.rules import TYPES, Rule, explained
from reward.offline import explanation
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult


def explained_lines(domain: str, answer: str, gold: str, score: float, **details: object) -> list[str]:
    request = ScoreRequest(
        request_id="a", domain=domain, response=f"\\boxed{{{answer}}}", task={"answer": gold}
    )
    result = ScoreResult(
        request_id="a",
        status=GradeStatus.graded,
        score=score,
        verdict="correct" if score else "wrong",
        details={"extracted": answer, "gold": gold, **details},
        version="v",
    )
    return list(explanation(request, result))


def test_both_values_their_types_and_the_rule_are_said() -> None:
    lines = explained_lines(
        "math",
        "500\\text{ cm}",
        "5\\text{ m}",
        1.0,
        answer_type="quantity",
        gold_type="quantity",
        rule="quantity in another unit",
    )
    assert lines == [
        "domain     math",
        "reasoning  no </think>; 21 characters are graded",
        "extracted  (last box) 500\\text{ cm}",
        "           which is a quantity with its unit",
        "compared   5\\text{ m}",
        "           which is a quantity with its unit",
        "status     graded",
        "score      1",
        "verdict    correct: full score",
        "rule       units of one dimension are converted, and the quantities are the same",
        "version    v",
    ]


def test_a_difference_is_said_by_the_golds_type() -> None:
    lines = explained_lines(
        "stem",
        "2,1",
        "(1,2)",
        0.0,
        answer_type="list",
        gold_type="tuple",
        rule="differs",
    )
    assert "           which is a list, in any order" in lines
    assert "rule       they differ, compared as a tuple, whose order counts" in lines


def test_what_a_reading_could_not_do_is_said() -> None:
    lines = explained_lines("math", "\\phantom{5}", "5", 0.0, reason="it holds `\\phantom`")
    assert "  reason             it holds `\\phantom`" in lines
    assert not [line for line in lines if line.startswith("rule")]


def test_other_domains_keep_their_details() -> None:
    assert "  rule               x" in explained_lines("code", "1", "1", 0.0, rule="x")


def test_every_rule_and_type_fits_in_a_terminal() -> None:
    for rule in Rule:
        (sentence,) = explained({"rule": rule.value, "gold_type": "words"})
        assert len(f"rule       {sentence}") <= 80
    assert all(len(words) < 69 for words in TYPES.values())
    assert read(r"\text{(B) } 5").type in TYPES
