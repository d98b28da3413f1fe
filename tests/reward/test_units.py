"""Tests of units behind a number: which are distinguished, and what is no unit."""

import pytest

pytest.importorskip("math_verify")

from reward.graders import grade
from reward.graders.units import differ, unit_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"5\text{ cm}", "5 m"),
        (r"5\text{ cm}", r"5\text{ cm}^2"),
        (r"5\text{ square inches}", r"5\text{ inches}"),
        (r"5 \mathrm{~m/s}", r"5 \mathrm{~km/h}"),
        (r"\frac{5}{2}\text{ hours}", r"\frac{5}{2}\text{ minutes}"),
        (r"\$5", r"5\text{ cents}"),
        (r"3.2 \times 10^{-19} \mathrm{~J}", r"3.2 \times 10^{-19} \mathrm{~eV}"),
        (r"2\sqrt{3}\text{ m}", r"x = 2\sqrt{3}\text{ mm}"),
        ("5 mW", "5 MW"),
        (r"5 \frac{\text{m}}{\text{s}}", r"5 \frac{\text{m}}{\text{s}^2}"),
    ],
)
def test_different_units(one: str, other: str) -> None:
    assert differ(one, other)
    assert differ(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"5\text{ cm}", r"5\text{ centimeters}"),
        (r"5\text{ cm}", r"5 \mathrm{~cm}."),
        (r"5\text{ cm}^2", r"5\text{ square centimeters}"),
        (r"5\text{ cm}^2", r"5\text{ cm squared}"),
        (r"10\text{ N}", r"10 \text{ kg m/s}^2"),
        (r"5 \mathrm{~m} \mathrm{~s}^{-2}", r"5\frac{\text{m}}{\text{s}^{2}}"),
        (r"10\text{ J/(kg K)}", r"10 \text{ J} \cdot \text{kg}^{-1} \cdot \text{K}^{-1}"),
        (r"1\text{ L}", r"1\text{ dm}^3"),
        (r"\$5", r"5\text{ dollars}"),
        ("3 hr", "3 Hours"),
        ("5 ms^{-1}", "5 per millisecond"),
    ],
)
def test_the_same_unit_by_another_name(one: str, other: str) -> None:
    assert unit_of(one) is not None
    assert unit_of(other) is not None
    assert not differ(one, other)


@pytest.mark.parametrize(
    "answer",
    ["5", "", "B", "m", "2\\pi r h", "4m + 2s", "5x", "4:30 pm", "\\frac{5}{m}", "3\\text{ ft }5\\text{ in}",
     "5\\text{ apples}", "1.07e16", "(1, 2)", "5\\%", "90^\\circ", "m = 5", "5\\text{ square units}"],
)  # fmt: skip
def test_what_names_no_unit(answer: str) -> None:
    assert unit_of(answer) is None


def test_a_wrong_unit_is_wrong_unless_the_guards_are_off_and_a_missing_unit_never_is() -> None:
    def score(answer: str, gold: str, **options: object) -> float:
        return grade("math", f"\\boxed{{{answer}}}", {"answer": gold, **options}).score

    assert score(r"5\text{ m}", r"5\text{ cm}") == 0
    assert score(r"5\text{ m}", r"5\text{ cm}", guards=False) == 1
    for answer, gold in (
        (r"5\text{ cm}", "5"),
        ("5", r"5\text{ cm}"),
        (r"5\text{ centimeters}", r"5\text{ cm}"),
    ):
        assert score(answer, gold) == 1


@pytest.mark.parametrize(
    "part", ["m ", "5 m", "*(", "\\text{", "s^2 ", "square ", "/", "per ", "{", "\\frac{m}{"]
)
def test_no_text_takes_long(part: str) -> None:
    """A pattern that tries spaces twice would take 3^70 steps here, and the test would never end."""
    for length in (150, 400_000):
        assert unit_of(("5" + part * length)[: length - 1] + "x") is None
