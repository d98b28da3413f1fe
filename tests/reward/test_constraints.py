"""Tests each of the 25 rules on text that follows it and text that does not."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("langdetect")

from reward.graders import grade
from reward.graders.constraints import RULES
from reward.graders.grade import InvalidTask
from reward.graders.sentences import capital_words, split_sentences
from tests.reward.serving import rows

CASES = rows("instructions.jsonl")
"""Responses with what they get officially and with "strict": true: each rule followed and not followed, edges as the
official evaluator has them, and its holes."""
AT_LEAST_4 = {"num_words": 4, "relation": "at least"}
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
    stricter = {name for name, rule in RULES.items() if rule.strictly is not rule.follows}
    assert stricter - {"change_case:english_capital"} <= named(1, 0) <= stricter, "that one only forgives"


HIDDEN = "".join(
    char
    for char in map(chr, range(0x110000))
    if unicodedata.category(char) in ("Cf", "Mn")
    and all(len(unicodedata.normalize("NFC", letter + char)) == 2 for letter in "worse")
)
"""Characters that show nothing, or only something on the character before them."""


@given(st.sampled_from(HIDDEN + "\u115f\u1160\u3164\uffa0\0\b\x7f"), st.integers(1, 4))
def test_no_character_that_shows_nothing_hides_a_word_or_makes_one(hidden: str, place: int) -> None:
    text = f"A {'worse'[:place]}{hidden}{'worse'[place:]} day"
    assert followed("keywords:forbidden_words", {"forbidden_words": ["worse"]}, text, strict=True) == 0
    assert followed("keywords:existence", {"keywords": ["worse"]}, text, strict=True) == 1
    assert followed("length_constraints:number_words", AT_LEAST_4, text, strict=True) == 0
    assert followed("keywords:forbidden_words", {"forbidden_words": ["worst"]}, text, strict=True) == 1


@given(st.lists(st.sampled_from([*".!?\u0964", "...", '"', "-", "*", "\u3164", ")"]), min_size=1, max_size=9))
def test_marks_alone_are_no_sentence_and_no_paragraph(marks: list[str]) -> None:
    alone = " ".join(marks)
    count = {"num_sentences": 2, "relation": "at least"}
    assert followed("length_constraints:number_sentences", count, f"One. {alone}", strict=True) == 0
    assert followed("length_constraints:number_sentences", count, f"One. Two. {alone}", strict=True) == 1
    assert (
        followed(
            "length_constraints:number_paragraphs", {"num_paragraphs": 2}, f"A\n***\n{alone}", strict=True
        )
        == 0
    )


MARKDOWN = st.sampled_from(["**{}**", "*{}*", "***{}***", "__{}__", "_{}_", "`{}`", "~~{}~~", "**_{}_**"])


@given(MARKDOWN, st.sampled_from(["end", "The end.", "Is that all?", "Any other questions?"]))
def test_markdown_around_the_words_changes_no_verdict(markdown: str, words: str) -> None:
    marked = markdown.format(words)
    assert followed("startend:end_checker", {"end_phrase": words}, f"Text. {marked}", strict=True) == 1
    assert followed("startend:end_checker", {"end_phrase": words}, f"Text. {marked} Bye", strict=True) == 0
    assert followed("startend:end_checker", {"end_phrase": words}, f"We pret{marked}", strict=True) == 0
    first = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": words.split()[0].strip("?.")}
    text = f"A.\n\n{marked} more"
    assert followed("length_constraints:nth_paragraph_first_word", first, text, strict=True) == 1


@given(
    st.permutations(["yes", "no", "maybe"]), MARKDOWN, st.sampled_from([". ", "! ", ", or ", "\n\n", ": "])
)
def test_one_closed_answer_is_one_however_the_other_is_put(
    words: list[str], markdown: str, between: str
) -> None:
    right, other, _ = words
    closed = "detectable_format:constrained_response"
    answer = f"My answer is {right}."
    for text in (
        f"{answer} Well{between}{other}.",
        f"{other}.{between}{answer}",
        f"{answer} My answer:\n{markdown.format(other)}",
    ):
        assert followed(closed, {}, text, strict=True) == 0, text
    for text in (
        answer,
        f"My answer is {markdown.format(right)}.",
        f"{answer} I have no doubt, maybe {right}.",
    ):
        assert followed(closed, {}, text, strict=True) == 1, text


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
    assert len(split_sentences(row["text"])) == row["count"]


def test_capital_words() -> None:
    assert len(capital_words("IT'S A TEST, says DON'T. Ok USA/UK 5 A5")) == 8


def test_a_keyword_of_a_strict_task_is_no_pattern() -> None:
    assert followed("keywords:existence", {"keywords": [":("]}, "sad :(", strict=True) == 1


@pytest.mark.parametrize("options", [{"strict": "yes"}, {"strict": 1}, {"strict": True, "mode": "loose"}])
def test_a_switch_that_means_nothing_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidTask, match="strict"):
        followed("punctuation:no_comma", {}, "a", **options)
