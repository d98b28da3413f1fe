"""Tests of answers in words: what is one meaning, what differs, and what is left to mathematics."""

from collections.abc import Callable

import pytest

from reward.graders.math.words import (
    clock,
    configuration,
    date,
    formula,
    noun,
    number,
    option,
    phrase,
)


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
        "September|Sept.|sep",
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


@pytest.mark.parametrize(
    "text", ["", "x", "A", "xy", "5", "x^2", "5 cm", "red, blue", "x = y", "a/b", "(B)", "a" * 301]
)
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
    stems = {
        noun(word)
        for word in ("increase", "decrease", "profit", "loss", "north", "south", "BC", "AD", "up", "down")
    }
    assert len(stems - {None}) == 10


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


def test_numbers_in_words() -> None:
    for text, value in (("three", 3), ("Zero", 0), ("twenty-one", 21), ("ninety nine", 99), ("forty", 40)):
        assert number(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "and", "a", "five five", "twenty eleven", "two and three", "twenty and one", "five and", "third",
     "hundred two",
     "apples", "three apples", "five ones", "zero zero", "minus minus two", "million thousand", "5", "twenty zero"],
)  # fmt: skip
def test_what_is_no_number_in_words(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    "same",
    [
        r"Fe^{3+}|Fe^3+|\text{Fe}^{3+}|Fe³⁺|Fe3+|Fe^{+3}|\mathrm{Fe}^{3+}|Fe 3+",
        r"SO_4^{2-}|\text{SO}_4^{2-}|SO4^2-|SO₄²⁻|SO42-|\ce{SO4^2-}|SO_{4}^{2-}|SO4 2-",
        r"Cl^-|\text{Cl}^-|Cl-|Cl⁻|Cl^{-}|Cl^{1-}",
        "NH_4^+|NH4+|NH4^{+}",
        r"H_2O|H2O|H₂O|\ce{H2O}|\text{H}_2\text{O}|\mathrm{H_2O}",
        r"H_2SO_4|H2SO4|\text{H}_2\text{SO}_4",
        r"CuSO_4·5H_2O|CuSO4·5H2O|CuSO_4 \cdot 5H_2O|CuSO4.5H2O|CuSO4*5H2O",
        r"[Co(NH_3)_6]^{3+}|[\text{Co(NH}_3)_6]^{3+}|[Co(NH3)6]3+",
        r"2H_2 + O_2 \rightarrow 2H_2O|\ce{2H2 + O2 -> 2H2O}|O2 + 2H2 → 2H2O|2H2+O2=2H2O|2H2O \leftarrow 2H2 + O2",
        r"N_2 + 3H_2 \rightleftharpoons 2NH_3|3H2 + N2 <=> 2NH3|N2+3H2 ⇌ 2NH3",
        r"Zn(s) + 2H^+(aq) -> Zn^{2+} + H_2|2H^+ + Zn \to H_2(g) + Zn^{2+}",
        r"MnO_4^- + 8H^+ + 5e^- \to Mn^{2+} + 4H_2O|8H+ + MnO4- + 5e- -> 4H2O + Mn^2+",
    ],
)
def test_formulas_in_one_spelling(same: str) -> None:
    formulas = {formula(text) for text in same.split("|")}
    assert len(formulas) == 1
    assert None not in formulas


@pytest.mark.parametrize(
    "different",
    [
        "Fe^{3+}|Fe^{2+}|Fe|Fe2O3",
        "CO|Co|CO2|C2O",
        "HF|Hf",
        "H2O|H2O2|2H2O|H_3O^+",
        "O2|O3|O^{2-}",
        "H2SO4|H2SO3|HSO4^-",
        r"N_2+3H_2 \rightarrow 2NH_3|N_2+3H_2 \leftarrow 2NH_3|N_2+3H_2 \rightleftharpoons 2NH_3|N_2+2H_2 \to 2NH_3",
        "NaCl|NaCl2|Na2Cl",
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
     "H^-1",
     "K^{-1}",
     "e^-", "x^2", "A \\rightarrow B", "F_1 = F_2", "F_1 + F_2 = F_3", "PV = NR", "B*C", "()", "H0", "Xx2", "N + 2",
     "x \\to 2", "H2 -> O2 -> H2", "(H2O", "H2O)", "[H2O)", "C" * 301, "->", "H2 ->", "+", "H^2"],
)  # fmt: skip
def test_what_is_left_to_mathematics(text: str) -> None:
    assert formula(text) is None


def test_configurations() -> None:
    for text in ("1s^{2}2s^{1}", "1s^2 2s^1", "1s²2s¹", r"\text{1s}^2\text{2s}^1", "1s2 2s1"):
        assert configuration(text) == "1s2 2s1"
    for text in ("[Ar]3d^{10}4s^{2}", r"\text{[Ar] }3d^{10}4s^2", "[Ar]4s^23d^{10}"):
        assert configuration(text) == "[Ar]3d10 4s2"
    for text in ("2s^2", "2s^{22}p^4", "1s^3 2s^2", "x^2", ""):
        assert configuration(text) is None


def test_options() -> None:
    for text in (
        "(B)",
        "B.",
        "B:",
        "(b)",
        "Option B",
        "choice (B)",
        "Answer: B",
        "the answer is (B).",
        "(B).",
    ):
        assert option(text) == "B"
    for text in ("B", "b", "", "A, B", "A or B", "(B) 5, (C) 6", "B. x, A. y", "(A) and (B)", "B5", "(x)", "(i)",
        "Option Blue", "-B", "2B", "B'", "B = 5", "not B", "(A, B)", "AB.", "B) 5 cm"):  # fmt: skip
        assert option(text) is None, text


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("6:30 p.m.", (390, "pm")), ("6:30 PM", (390, "pm")), ("6:30pm", (390, "pm")), ("6.30 pm", (390, "pm")),
        ("10:30 AM", (630, "am")), ("12:45", (765, "")), ("6 pm", (360, "pm")), ("noon", (0, "pm")), ("12 noon", (0,
        "pm")),
        ("12 pm", (0, "pm")), ("12:00 p.m.", (0, "pm")), ("midnight", (0, "am")), ("12 a.m.", (0, "am")),
        ("12:15 am", (15, "am")), ("18:30", (390, "pm")), ("0:30", (30, "am")), ("6 o'clock", (360, "")),
        ("12 o'clock", (720, "")),
        ("6:30 in the morning", (390, "am")), ("07:05", (425, "")),
    ],
)  # fmt: skip
def test_times_of_day(text: str, time: tuple[int, str]) -> None:
    assert clock(text) == time


@pytest.mark.parametrize(
    "text",
    [
        "6:30:15",
        "2:3",
        "2:75",
        "24:00",
        "25:30",
        "6",
        "6.30",
        "13 pm",
        "0 am",
        "3:4:5",
        "x:30",
        "3 noon",
        "",
        "pm",
    ],
)
def test_what_is_no_time_of_day(text: str) -> None:
    assert clock(text) is None


def test_dates() -> None:
    for text in ("July 4", "4 July", "July 4th", "the 4th of July", "Jul. 4", "july 4."):
        assert date(text) == "7-4"
    for text in ("July 4, 2020", "4 July 2020", "July 4th, 2020", "4th of July, 2020"):
        assert date(text) == "7-4-2020"
    for text in ("July", "July 32", "Feb 30", "Foo 3", "2 apples", "July 4 20", "7/4", "", "4"):
        assert date(text) is None


@pytest.mark.parametrize("function", [phrase, noun, number, formula, configuration, option, clock, date])
@pytest.mark.parametrize(
    "part", ["a ", "A", "the ", "million ", "H2 + ", "(", "^{", "_{", "H^2+ ", "1s^{", " ", "'", "-", "->"]
)
def test_no_text_takes_long(function: Callable[[str], object], part: str) -> None:
    for length in (30, 290, 400_000):
        function((part * length)[: length - 1] + "!")
