"""Tests of equal answers in another notation, and of different answers that verifiers confuse."""

import pytest

pytest.importorskip("math_verify")

from reward.graders import grade
from reward.graders.notation import parts, plain


def score(gold: str, answer: str, domain: str = "math", **options: object) -> float:
    return grade(domain, f"\\boxed{{{answer}}}", {"answer": gold, **options}).score


CASES = "\\begin{cases}%s\\end{cases}"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{3}", r"0.\overline{3}"),
        (r"0.1\overline{6}", r"\frac{1}{6}"),
        (r"-\frac{4}{3}", r"-1.\bar{3}"),
        (r"\frac{1}{3}", r"0.\dot{3}"),
        ("-3", "−3"),
        (r"2\sqrt{3}", "2√3"),
        (r"\sqrt{x+1}", "√(x+1)"),
        (r"2\pi", "2π"),
        (r"3\times 10^{12}", "3×10¹²"),
        (r"30^\circ", "30°"),
        (r"[1,2]\cup[3,4]", "[1,2]∪[3,4]"),
        ("1000000", r"1\,000\,000"),
        ("6", "6,"),
        (r"-2\frac{3}{4}", r"-\frac{11}{4}"),
        (r"x^2+y^2=4", r"x^2+y^2-4=0"),
        ("e", "e^1"),
        ("i", r"i"),
        ("2:3:4", "2 : 3 : 4"),
        ("S_1:S=7:32", "7:32"),
        (CASES % r"x & x>0\\-x & x\le 0", CASES % r"-x, & \text{if } x\le 0\\x, & \text{if } x>0"),
        (r"25^\circ \text{C}", "25"),
        (r"25^\circ \text{C}", r"25\text{ C}"),
        ("f'(x)", "f'(x)"),
        ("2x", "f'(x) = 2x"),
        ("5", r"\bar{x} = 5"),
        ("25", r"\|v\|^2 = 25"),
        ("101_2", "101_{2}"),
    ],
)
def test_the_same_in_another_notation(gold: str, answer: str) -> None:
    assert score(gold, answer) == 1


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"0.\overline{3}", "0.3"),
        (r"-2\frac{3}{4}", r"-\frac{5}{4}"),
        ("(100,200)", "100200"),
        ("2:3:4", "2:4:3"),
        ("101_2", "101_3"),
        (r"3:45 \text{ p.m.}", r"3:45 \text{ a.m.}"),
        ("f'(x)", "f(x)"),
        ("z", r"\overline{z}"),
        (r"\det A", "A"),
        (r"\neg p", "p"),
        ("A^T", "A"),
        (r"25^\circ \text{C}", r"25^\circ \text{F}"),
        (CASES % r"x & x>0\\-x & x<0", CASES % r"x & x>0\\x & x<0"),
        (CASES % r"x=1\\y=2", CASES % r"x=2\\y=1"),
        (CASES % r"x & x>0\\-x & x<0", "x"),
        (r"\frac{1}{10^{20}}", r"\frac{1}{10^{21}}"),
        (r"x=1 \text{ or } x=2", "1"),
        (r"x=1 \text{ or } x=2", r"x=1 \text{ or } x=3"),
    ],
)
def test_what_only_looks_the_same(gold: str, answer: str) -> None:
    assert score(gold, answer) == 0
    assert score(answer, gold) == 0


@pytest.mark.medium
@pytest.mark.parametrize("link", ["to", "or", "/", "if", "but maybe", "and", "vs"])
@pytest.mark.parametrize("form", ["%s\\text{ %s }%s", "x=%s\\text{ %s }x=%s", "%s %s %s", "\\text{%s %s %s}"])
def test_two_guesses_are_never_right_for_both(form: str, link: str) -> None:
    answer = form % ("3", link, "7")
    assert score("3", answer) + score("7", answer) <= 1


def test_parts() -> None:
    assert parts("1:2:3") == [("1", "2", "3")]
    assert parts("1:2") is None
    assert parts("x") is None
    assert plain("0.(3)") == "0.(3)"
    assert plain(r"1.2\overline{34}") == r"\frac{611}{495}"
