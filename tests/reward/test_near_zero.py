"""Tests of numbers near zero: they are distinguished relative to their own size, in any form."""

import pytest

pytest.importorskip("math_verify")

from reward.graders import grade
from reward.graders.near_zero import number_of


def score(answer: str, gold: str, **options: object) -> float:
    return grade("stem", f"\\boxed{{{answer}}}", {"answer": gold, **options}).score


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"5 \times 10^{-19}", r"2 \times 10^{-19}"),
        (r"2.89 \times 10^{-19} \text{ J}", "2.88e-19"),
        (r"E = 2.89 \cdot 10^{-19}", r"2.88 \times 10^{-19} \mathrm{~J}"),
        ("2.89e-19", "2.88e-19"),
        ("0.00000000289", "0.00000000288"),
        ("10^{-8}", "10^{-9}"),
        ("0.0000123", "0.000012"),
        ("0.0000000001", "0"),
    ],
)
def test_what_both_verifiers_round_away_is_seen(answer: str, gold: str) -> None:
    assert score(answer, gold) == 0
    assert score(gold, answer) == 0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"1.07 \times 10^{16}", "1.07e16"),
        (r"1.07 \cdot 10^{16} \text{ m}", "1.07e16"),
        ("1.07e16", r"1.07 \times 10^{16}"),
        (r"2.88 \times 10^{-19}", "2.88e-19"),
        (r"28.8 \times 10^{-20}", "2.88e-19"),
        ("6.7e-4", "0.00067"),
        (r"C = 10^{-8} \text{ F}", "1e-8"),
        ("-0.5", r"-\frac{1}{2}"),
        ("0", "0"),
        (".05", "0.05"),
        (r"5\%", r"0.05"),
    ],
)
def test_the_same_number_in_another_form_is_right(answer: str, gold: str) -> None:
    assert score(answer, gold) == 1
    assert score(gold, answer) == 1


def test_without_guards_the_verifiers_have_the_word() -> None:
    """Of decimals; exact numbers are compared exactly with and without guards."""
    assert score(r"5.1 \times 10^{-19}", r"2.1 \times 10^{-19}", guards=False) == 1
    assert score(r"5 \times 10^{-19}", r"2 \times 10^{-19}", guards=False) == 0


@pytest.mark.parametrize(
    "text",
    ["", "x", "2x", "1/2", "0.5%", r"\frac{x}{2}", r"\frac{1}{0}", "1e", "1e5x", "10^{x}", "(0.01, 0.02)", "0.01 + x",
     "1.2.3", "1e9999"],
)  # fmt: skip
def test_what_is_no_number(text: str) -> None:
    assert number_of(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-2.5", -2.5),
        (r"10^{-8}", 1e-8),
        (r"x = 3\times10^{2}\text{ m/s}", 300.0),
        ("4e33", 4e33),
        (r"-\frac{1}{10^{20}}", -1e-20),
    ],
)
def test_what_is_one(text: str, value: float) -> None:
    assert number_of(text) == value
