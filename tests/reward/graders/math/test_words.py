"""Tests of answers in words: what is one meaning, what differs, and what is left to mathematics."""

from collections.abc import Callable

import pytest

from reward.graders.math.words import formula, noun, option, phrase


@pytest.mark.parametrize(
    "same",
    [
        "mitochondria|The mitochondria.|Mitochondria|  the Mitochondria ",
        "covalent bond|Covalent  Bond|covalent-bond|a covalent bond",
        "yes|Yes|YES|Yes.",
        "no|No|NO",
        "does not exist|DNE|Does not exist.|the limit does not exist",
        "no solution|No solutions|no real solutions|There are no solutions.|the empty set",
        "all real numbers|all reals|All real numbers.|any real number",
        "infinitely many|Infinite|infinitely many solutions",
        "Monday|monday|Mon",
        "gray colour|grey color",
        "sulphuric acid|sulfuric acid",
        "ionisation|ionization",
        "aluminium|aluminum",
        "centre|center",
        "iron(III) oxide|Iron(III) oxide|iron (III) oxide",
        "non-linear|nonlinear|non linear",
        "Newton's third law|Newton’s third law",
    ],
)
def test_phrases_of_one_meaning(same: str) -> None:
    phrases = {phrase(text) for text in same.split("|")}
    assert len(phrases) == 1
    assert None not in phrases


@pytest.mark.parametrize(
    "different",
    [
        "no|on|yes",
        "silent|listen",
        "increase|decrease",
        "mRNA|MRNA",
        "AaBb|AABB|aabb|AaBB",
        "XYZ|xyz|ZYX",
        "vitamin C|vitamin c",
        "does not exist|undefined|no solution|infinitely many",
        "hour|day|four|our",
        "Newton's third law|Newton's second law",
        "per second|per minute",
        "filled|filed",
        "type II|type III",
        "true|yes|false",
    ],
)
def test_phrases_that_differ(different: str) -> None:
    phrases = [phrase(text) for text in different.split("|")]
    assert len(set(phrases)) == len(phrases)
    assert None not in phrases


@pytest.mark.parametrize("text", ["", "x", "A", "xy", "5", "x^2", "5 cm", "red, blue", "x = y", "a/b", "(B)"])
def test_what_is_no_phrase(text: str) -> None:
    assert phrase(text) is None


def test_nouns_of_what_is_counted() -> None:
    for one, many in (
        ("apple", "Apples"), ("square tile", "square tiles"), ("red ball", "red balls."),
        ("box", "boxes"), ("class", "classes"), ("city", "cities"), ("cookie", "cookies"),
        ("rose", "roses"), ("potato", "potatoes"), ("way", "ways"), ("tie", "ties"),
        ("quarter", "quarters"), ("piece of candy", "pieces of candy"), ("house", "houses in total"),

    ):  # fmt: skip
        assert noun(one) == noun(many) is not None
    stems = {noun(word) for word in ("increase", "decrease", "profit", "loss", "north", "south", "down")}
    assert len(stems - {None}) == 7


@pytest.mark.parametrize(
    "text",
    ["", "x", "ab", "cm2", "not apples", "is not the answer", "then", "or", "and", "minus", "times x", "more than",
     "over",
     "by", "if", "for", "squared", "cubed", "hundred", "dozen", "thousandths", "half", "three", "factorial",
     "point two",
     "pm", "square", "a b c d e", "red green blue white black", "5", "ABC", "NaCl", "apples, pears", "in total",
     "th"],
)  # fmt: skip
def test_what_counts_nothing(text: str) -> None:
    assert noun(text) is None


@pytest.mark.parametrize(
    "same",
    [
        "SO_{4}^{2-}|SO4^{2-}|SO_4^{2-}",
        "H_{2}O|H2O|H_2O.",
        "CuSO_{4}·5H_{2}O|CuSO4 · 5H2O",
        "2H_{2} + O_{2} -> 2H_{2}O|O2+2H2->2H2O|2H2(g) + O2(g) -> 2H2O (l)",
        "MnO_{4}^{-} + 8H^{+} + 5e^{-} -> Mn^{2+} + 4H_{2}O|8H^{+}+MnO4^{-}+5e^{-}->4H2O+Mn^{2+}",
    ],
)
def test_formulas_in_one_spelling(same: str) -> None:
    formulas = {formula(text) for text in same.split("|")}
    assert len(formulas) == 1
    assert None not in formulas


@pytest.mark.parametrize(
    "different",
    [
        "Fe^{3+}|Fe^{2+}|FeO|Fe2O3",
        "CO|CO2|C2O",
        "2H2O|H2O2|H2O|H_{3}O^{+}",
        "O2|O3|O^{2-}",
        "[Co(NH_{3})_{6}]^{3+}|[Co(NH_{3})_{5}]^{3+}",
        "N2+3H2->2NH3|N2+3H2<->2NH3|2NH3->N2+3H2|N2+2H2->2NH3",
        "CuSO4·5H2O|CuSO4·4H2O|CuSO4",
    ],
)
def test_formulas_that_differ(different: str) -> None:
    formulas = [formula(text) for text in different.split("|")]
    assert len(set(formulas)) == len(formulas)
    assert None not in formulas


@pytest.mark.parametrize(
    "text",
    ["", "N", "K", "x", "P_1", "2S", "VI", "IV", "XL", "x_1", "AB", "2PV", "5 Pa", "No", "He", "n", "5", "B^{-1}",
     "e^{-}", "x^{2}", "A -> B", "F_1 + F_2", "B*C", "()", "H0", "Xx2", "N + 2", "H2 -> O2 -> H2", "(H2O", "H2O)",
     "[H2O)", "->", "H2 ->", "+", "H^{2}"],
)  # fmt: skip
def test_what_is_left_to_mathematics(text: str) -> None:
    assert formula(text) is None


def test_options() -> None:
    for text in ("(B)", "(b)", "Option B", "choice (B)", "Answer: B", "the answer is (B).", "(B)."):
        assert option(text) == "B"
    for text in ("B", "b", "", "A, B", "A or B", "(B) 5, (C) 6", "B. x, A. y", "(A) and (B)", "B5", "(x)", "(i)",
        "Option Blue", "-B", "2B", "B'", "B = 5", "not B", "(A, B)", "AB.", "B) 5 cm"):  # fmt: skip
        assert option(text) is None, text


@pytest.mark.parametrize("function", [phrase, noun, formula, option])
@pytest.mark.parametrize(
    "part", ["a ", "A", "the ", "million ", "H2 + ", "(", "^{", "_{", "H^2+ ", "1s^{", " ", "'", "-", "->"]
)
def test_no_text_takes_long(function: Callable[[str], object], part: str) -> None:
    for length in (30, 300):
        function((part * length)[: length - 1] + "!")
