"""Tests of the gates before sympy: nothing but arithmetic reaches its parser, and nothing astronomical."""

import pytest
import sympy

from reward.graders.safe import has_known_names, is_cheap, is_harmless, is_shallow, parse_safely


@pytest.mark.parametrize(
    "text",
    [
        "().__class__",
        "a.b",
        "'a'*9**9",
        "[x]*10**10",
        "lambda: 1",
        "open('f')",
        "x if y else z",
        "__import__",
        "f{1}",
        "a;b",
        "0x1f.real",
    ],
)
def test_nothing_but_arithmetic_reaches_sympy(text: str) -> None:
    assert not is_harmless(text)
    assert parse_safely(text) is None


@pytest.mark.parametrize(
    "name", ["exec", "eval", "open", "sympify", "lambdify", "preview", "getattr", "compile", "input", "exit"]
)
def test_names_are_symbols_unless_they_are_mathematics(name: str) -> None:
    parsed = parse_safely(f"{name}(2)")
    assert parsed is None or isinstance(parsed, sympy.Basic)  # a function symbol of that name, applied to 2
    assert not has_known_names(f"{name}(x)")


@pytest.mark.parametrize(
    "text",
    ["9**9**9**9", "9^{9^{9}}", "((9!)!)!", "10^{100000}", "1e999999", "\\int_0^1 x dx", "(" * 99 + ")" * 99],
)
def test_astronomical_arithmetic_is_refused(text: str) -> None:
    assert not is_cheap(text)


@pytest.mark.parametrize(
    "text", ["2^{10}", "x^{2^3}", "5!", "\\frac{1}{2^{100}}", "e^{-x^2}", "\\binom{10}{3}", "2^{2003}-1"]
)
def test_ordinary_arithmetic_is_not_refused(text: str) -> None:
    assert is_cheap(text)


def test_brackets_may_nest_sixty_deep() -> None:
    assert is_shallow("(" * 60 + ")" * 60)
    assert not is_shallow("(" * 61 + ")" * 61)
