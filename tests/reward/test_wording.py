"""Tests of option letters, words and chemical formulas, as in STEM answers."""

import itertools

import pytest

pytest.importorskip("math_verify")

from reward.graders import grade
from reward.graders.wording import chosen, configuration, formula, option, same_text, words


def score(gold: str, answer: str) -> float:
    return grade("stem", f"\\boxed{{{answer}}}", {"answer": gold}).score


@pytest.mark.parametrize(
    "answer",
    ["B", "b", "(B)", "B.", "$B$", "{B}", r"\(B\)", r"\text{B}", r"\textbf{(B) }", "Option B", r"\text{option (B)}",
     "**B**", "(B) 5 cm", r"\text{B. ionic bond}", r"\textbf{(B)}\ 5", r"B: \frac{1}{2}"],
)  # fmt: skip
def test_an_option_in_any_dress(answer: str) -> None:
    assert score("B", answer) == 1
    assert score("C", answer) == 0


@pytest.mark.parametrize(
    "answer",
    [
        "A, B",
        "AB",
        "A or B",
        "B)",
        "-B",
        "2B",
        "B'",
        "B = 5",
        "(B) 5, (C) 6",
        "B. x, A. y",
        r"\text{A and B}",
        "not B",
        "",
    ],
)
def test_what_is_not_the_one_option(answer: str) -> None:
    assert score("B", answer) == 0


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("mitochondria", r"\text{The mitochondria.}", 1),
        ("covalent bond", "Covalent  Bond", 1),
        ("red and blue", "blue and red", 1),
        ("minute", "hour", 0),
        (r"\text{hour}", r"\text{day}", 0),
        ("per second", "per minute", 0),
        ("daylight", "light", 0),
        ("listen", "silent", 0),
        ("Newton's third law", "Newton's second law", 0),
        ("5 minutes", "5", 1),
        ("H_2O", "H2O", 1),
        ("H_2O", r"\ce{H2O}", 1),
        (r"\text{C}_6\text{H}_{12}\text{O}_6", "C_6H_{12}O_6", 1),
        ("H_2O", "H_2O_2", 0),
        ("Fe^{3+}", "Fe^{2+}", 0),
        ("1s^{2}2s^{2}2p^{6}", "1s^2 2s^2 2p^6", 1),
        ("1s^{2}2s^{2}2p^{6}", "1s^22s^22p^6", 1),
        ("1s^{2}2s^{2}2p^{6}", "1s² 2s² 2p⁶", 1),
        ("1s^{2}2s^{2}2p^{6}", "1s^22s^22p^5", 0),
        ("1s^{22}s^{22}p^{6}", "1s^22s^22p^6", 0),
        ("[Ar]3d^{10}4s^{2}", r"\text{[Ar] }3d^{10}4s^2", 1),
        (r"2H_2 + O_2 \rightarrow 2H_2O", r"\ce{2H2 + O2 -> 2H2O}", 1),
        (r"2H_2 + O_2 \rightarrow 2H_2O", r"\ce{2H2 + O2 -> H2O2}", 0),
        ("[Co(NH_3)_6]^{3+}", r"[\text{Co(NH}_3)_6]^{3+}", 1),
        ("sp^3", r"\text{sp}^3", 1),
        ("sp^3", r"\text{sp}^2", 0),
        ("A → B", r"\text{A → B}", 1),
        ("5 hours 30 minutes", r"5\text{ hours } 30\text{ minutes}", 1),
        (r"5\text{ hours } 30\text{ minutes}", "5 hours 30 minutes", 1),
        ("n", "n", 1),
        ("n", "m", 0),
    ],
)
def test_words_and_formulas(gold: str, answer: str, right: int) -> None:
    assert score(gold, answer) == right


def test_what_is_read() -> None:
    assert option("(x)") == "x"
    assert chosen("(B) one, (C) two") is None
    assert words("x^2") is None
    assert words("xy") is None
    assert formula("x_1") is None
    assert formula("Ca(OH)_2") == "Ca(OH)2"
    assert configuration("1s^{2}2s^{1}") == configuration("1s^2 2s^1") == "1s22s1"
    assert configuration("2s^2") is configuration("2s^{22}p^4") is configuration("1s^3 2s^2") is None


def layout(text: str, level: str = "") -> list[tuple[str, str]]:
    """Returns the characters that TeX sets, without spaces, each with its enclosing exponents and indices."""
    found, at = [], 0
    while at < len(text):
        sign = text[at]
        inner_level = level + sign if sign in "^_" else level
        at += sign in "^_"
        at += len("\\text") if text.startswith("\\text", at) else 0
        if text.startswith("{", at):
            end = text.index("}", at)
            found += layout(text[at + 1 : end], inner_level)
            at = end + 1
        elif at < len(text):
            found += [(text[at], inner_level)] if text[at] != " " else []
            at += 1
    return found


@pytest.mark.medium
def test_texts_that_look_different_are_not_the_same_text() -> None:
    fragments = [
        "x",
        "12",
        "2",
        " ",
        "{2}",
        "{12}",
        "{x2}",
        "^2",
        "^{2}",
        "^{12}",
        "_{x}",
        r"\text{x}",
        r"_\text{2}",
    ]
    texts: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for length in (1, 2, 3):
        for chosen_fragments in itertools.product(fragments, repeat=length):
            text = "".join(chosen_fragments)
            texts.setdefault(tuple(layout(text)), []).append(text)
    ones = [same[0] for same in texts.values()]
    for one, other in itertools.combinations(ones, 2):
        assert not same_text(one, other)
    assert same_text("x^{2}", "x^2")
    assert not same_text("x^{2}2", "x^22")
    assert not same_text("5 12", "512")
    assert not same_text(r"\frac{12}{3}", r"\frac{1}{23}")
