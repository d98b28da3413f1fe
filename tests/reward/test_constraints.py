"""Tests each of the 25 rules on text that follows it and text that does not."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langdetect")

from reward.graders import grade
from reward.graders.constraints import RULES
from reward.graders.grade import InvalidTask
from reward.graders.sentences import capital_words, num_sentences

ENGLISH = "this is a plain sentence in the english language about the weather of today"
MATRIX = [
    ("keywords:existence", {"keywords": ["sun", "moon"]}, "The Sun and the MOON.", "The sun."),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": "at least"}, "sun Sun", "sun"),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": "less than"}, "sun", "sun sun"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "concatenate", "a Cat."),
    ("keywords:letter_frequency", {"letter": "Z", "let_frequency": 2, "let_relation": "at least"}, "zZ", "z"),
    ("language:response_language", {"language": "de"}, "Das ist ein deutscher Satz über das Wetter.", ENGLISH),
    ("language:response_language", {"language": "en"}, ENGLISH, "12345 !!!"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two.", "One."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n***\n\n***\nb"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "one two", "one two three"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        "First.\n\n\"Then, it ends.",
        "First.\n\nThen.\n\nMore.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b]", "[a]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP. S. more", "Bye. PS more"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S more", "Bye. P.S. more"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "** a\n- b"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and *b*", "** ** *a*"),
    ("detectable_format:multiple_sections", {"section_spliter": "PART", "num_sections": 2}, "PART 1 PART 2", "PART a"),
    ("detectable_format:json_format", {}, "```json\n{\"a\": 1}\n```", "{a: 1}"),
    ("detectable_format:title", {}, "<<A poem>>\ntext", "<< >>"),
    ("combination:two_responses", {}, "a ****** b", "a ****** a"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "say HI. hi", "hi. Say hi."),
    ("startend:end_checker", {"end_phrase": "The end."}, "... THE END.\"", "The end. Or not"),
    ("startend:quotation", {}, '"a"', '"a'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "AN OAK", "AN oak"),
    ("change_case:english_capital", {}, ENGLISH.upper(), ENGLISH),
    ("change_case:english_lowercase", {}, ENGLISH, ENGLISH.title()),
    ("punctuation:no_comma", {}, "a b", "a, b"),
]  # fmt: skip


def followed(name: str, arguments: dict[str, object] | None, text: str, **options: object) -> float:
    return grade("instruction", text, {"instruction_id_list": [name], "kwargs": [arguments], **options}).score


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), MATRIX, ids=[row[0] for row in MATRIX])
def test_rule(name: str, arguments: dict[str, object], good: str, bad: str) -> None:
    for strict in (False, True):
        assert followed(name, arguments, good, strict=strict) == 1
        assert followed(name, arguments, bad, strict=strict) == 0
    assert followed(name, arguments, " \n ") == 0  # nothing follows no instruction


def test_all_25_rules_are_in_the_matrix() -> None:
    assert len(RULES) == 25
    assert {row[0] for row in MATRIX} == set(RULES)


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


@pytest.mark.parametrize(
    ("name", "arguments", "text", "follows"),
    [
        ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "Yes"},
         "<think>so</think>\n\nYes, it is.", 1),
        ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "yes"},
         "<think>so</think>\n\nYes.\n\nNo.", 0),
        ("keywords:frequency", {"keyword": " sun ", "frequency": 1, "relation": "at least"}, "sun", 1),
        ("keywords:existence", {"keywords": [" sun "]}, "sun", 0),
        ("detectable_format:multiple_sections", {"section_spliter": "Part ", "num_sections": 2}, "Part1\nPart 2", 1),
        ("length_constraints:number_words", {"num_words": 0, "relation": "less than"}, "a", 0),
        ("length_constraints:number_words", {"num_words": 2, "relation": "at least"}, "über größe", 1),
        ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "* a\n** b **", 1),
        ("startend:end_checker", {"end_phrase": " the end "}, "the end\n\n", 1),
        ("detectable_format:json_format", {}, "```json\n5\n```\n", 1),
    ],
)  # fmt: skip
def test_edges_as_the_official_evaluator_has_them(
    name: str, arguments: dict[str, object], text: str, follows: int
) -> None:
    assert followed(name, arguments, text) == follows


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


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One", 1),
        ("One. Two! Three?", 3),
        ("Dr. Smith met Mr. Jones at 3.14 p.m. yesterday.", 1),
        ("He waited... and waited.", 1),
        ('"Go!" she said. He went.', 3),
        ("J. R. Ewing left.", 1),
        ("a line\nbreak is no end", 1),
        ('{"a": "It ends.", "b": "It goes on!"}', 2),
        ("*She won?* Jeanne blinked.", 2),
        ("A. Brief history\nB. Long history", 3),
        ("In 1840. his time", 1),
        ("1. day one\n2. day two", 1),
        ("Wait.) Then go.", 2),
        ("Bush v. Gore was decided.", 1),
        ("Really?! Yes.", 2),
        ('He left. "', 1),
        ("He left.*", 2),
    ],
)
def test_sentences(text: str, count: int) -> None:
    """Counts are those of NLTK 3.10's Punkt for English."""
    assert num_sentences(text) == count


def test_capital_words() -> None:
    assert len(capital_words("IT'S A TEST, says DON'T. Ok USA/UK 5 A5")) == 8


HOLES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "strict_instructions.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
"""Responses with what they get officially and with "strict": true: holes of the official evaluator, and controls."""


@pytest.mark.parametrize("case", HOLES, ids=[f"{case['instruction']}-{i}" for i, case in enumerate(HOLES)])
def test_a_strict_task_has_no_holes_and_others_have_the_official_ones(case: dict[str, Any]) -> None:
    name, kwargs, response = case["instruction"], case["kwargs"], case["response"]
    assert followed(name, kwargs, response) == case["official"]
    assert followed(name, kwargs, response, strict=True) == case["strict"]


def test_each_stricter_form_of_a_rule_has_a_hole_and_a_control() -> None:
    stricter = {name for name, rule in RULES.items() if rule.strictly is not rule.follows}
    assert {case["instruction"] for case in HOLES if case["official"] and not case["strict"]} == stricter
    assert {case["instruction"] for case in HOLES if case["official"] and case["strict"]} == stricter


def test_a_keyword_of_a_strict_task_is_no_pattern() -> None:
    assert followed("keywords:existence", {"keywords": [":("]}, "sad :(", strict=True) == 1


@pytest.mark.parametrize("options", [{"strict": "yes"}, {"strict": 1}, {"strict": True, "mode": "loose"}])
def test_a_switch_that_means_nothing_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidTask, match="strict"):
        followed("punctuation:no_comma", {}, "a", **options)
