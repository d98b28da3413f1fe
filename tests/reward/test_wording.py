"""Option letters, words and chemical formulas, as STEM answers have them."""

import pytest

pytest.importorskip("math_verify")

from reward.graders import grade
from reward.graders.wording import chosen, formula, option, words


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
