"""Tests each of the 25 rules on text that follows it and text that does not."""

from typing import Any

import pytest

pytest.importorskip("langdetect")

from reward.graders import grade
from reward.graders.constraints import RULES
from reward.graders.grade import InvalidTask
from reward.graders.sentences import capital_words, num_sentences
from tests.reward.serving import rows

CASES = rows("instructions.jsonl")
"""Responses with what they get officially and with "strict": true: each rule followed and not followed, edges as the
official evaluator has them, and its holes."""
ARGUMENTS = {case["instruction"]: case["kwargs"] for case in CASES}
"""Instruction -> arguments of one of its cases."""


def followed(name: str, arguments: dict[str, object] | None, text: str, **options: object) -> float:
    return grade("instruction", text, {"instruction_id_list": [name], "kwargs": [arguments], **options}).score


@pytest.mark.parametrize("case", CASES, ids=[f"{case['instruction']}-{i}" for i, case in enumerate(CASES)])
def test_rule(case: dict[str, Any]) -> None:
    name, kwargs, response = case["instruction"], case["kwargs"], case["response"]
    assert followed(name, kwargs, response) == case["official"]
    assert followed(name, kwargs, response, strict=True) == case["strict"]
    assert followed(name, kwargs, " \n ") == 0  # nothing follows no instruction


def test_all_25_rules_have_cases_and_each_stricter_form_a_hole_and_a_control() -> None:
    def named(official: int, strict: int) -> set[str]:
        return {
            case["instruction"] for case in CASES if (case["official"], case["strict"]) == (official, strict)
        }

    assert len(RULES) == 25
    assert named(1, 1) == named(0, 0) == set(RULES)
    assert named(1, 0) == {name for name, rule in RULES.items() if rule.strictly is not rule.follows}


def test_the_score_is_the_fraction_followed_or_all_or_nothing() -> None:
    task = {"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, None]}
    assert grade("instruction", "a b", task).score == 0.5
    assert grade("instruction", "a b", {**task, "aggregate": "all"}).score == 0
    assert grade("instruction", '"a b"', {**task, "aggregate": "all"}).score == 1


def test_loose_mode_forgives_a_first_line_a_last_line_and_asterisks() -> None:
    for text in ("Sure, here it is:\na b", "a b\nHope this helps, bye", "Well,\na b\nbye, bye"):
        assert followed("punctuation:no_comma", {}, text) == 0
        assert followed("punctuation:no_comma", {}, text, mode="loose") == 1
    assert followed("detectable_format:title", {}, "**<**<a>>", mode="loose") == 1


def test_nulls_are_absent_and_counts_may_come_as_floats() -> None:
    given = {"num_words": 2.0, "relation": "at least", "keywords": None, "language": None}
    assert followed("length_constraints:number_words", given, "a b") == 1
    assert followed("length_constraints:number_words", {"num_words": 0, "relation": "at least"}, "a") == 1


def test_verdicts_do_not_change_from_call_to_call() -> None:
    text = "Le chat sits on der Stuhl und eats una mela"
    assert len({followed("language:response_language", {"language": "en"}, text) for _ in range(30)}) == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("no:such_rule", {}),
        (5, {}),
        ("keywords:frequency", {"keyword": "a", "frequency": 1, "relation": "exactly"}),
        ("keywords:frequency", {"frequency": 1, "relation": "at least"}),
        ("keywords:existence", {"keywords": []}),
        ("keywords:existence", {"keywords": ["("]}),
        ("keywords:letter_frequency", {"letter": "ab", "let_frequency": 1, "let_relation": "at least"}),
        ("length_constraints:number_words", {"num_words": "3", "relation": "at least"}),
        ("length_constraints:number_words", {"num_words": -1, "relation": "at least"}),
        ("punctuation:no_comma", "x"),
    ],
)
def test_unknown_rules_and_relations_are_invalid_never_a_pass(name: object, arguments: object) -> None:
    with pytest.raises(InvalidTask):
        grade("instruction", "a", {"instruction_id_list": [name], "kwargs": [arguments]})


def test_lists_of_different_lengths_are_invalid() -> None:
    with pytest.raises(InvalidTask):
        grade("instruction", "a", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": []})


@pytest.mark.parametrize("row", rows("sentences.jsonl"), ids=lambda row: row["text"][:30])
def test_sentences(row: dict[str, Any]) -> None:
    """Counts are those of NLTK 3.10's Punkt for English."""
    assert num_sentences(row["text"]) == row["count"]


def test_capital_words() -> None:
    assert len(capital_words("IT'S A TEST, says DON'T. Ok USA/UK 5 A5")) == 8


def test_a_keyword_of_a_strict_task_is_no_pattern() -> None:
    assert followed("keywords:existence", {"keywords": [":("]}, "sad :(", strict=True) == 1


@pytest.mark.parametrize("options", [{"strict": "yes"}, {"strict": 1}, {"strict": True, "mode": "loose"}])
def test_a_switch_that_means_nothing_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidTask, match="strict"):
        followed("punctuation:no_comma", {}, "a", **options)
