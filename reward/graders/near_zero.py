"""Numbers near zero: `5 \\times 10^{-19}` is not `2 \\times 10^{-19}`.

math-verify rounds both numbers to six decimals, and DeepScaleR's sympy rule ignores small differences as rounding
errors. So below a millionth, any number would equal any other. `differ` compares two such plain numbers, with or
without a unit, relative to their size, as closely as six decimals compare 0.1.

Of exact numbers math-verify takes any difference below 1e-15 for zero, as between 1 - 2^{-99} and 1 + 2^{-99}. Two
numbers without a decimal point are equal only if all digits of their difference are 0.
"""

from __future__ import annotations

import math
import re
from typing import Any

import sympy

from reward.graders import math_verify_rule
from reward.graders.units import plain, unit_of, value_of

_NEAR = 0.1
_RELATIVE = 1e-5
_ZERO = 1e-12
"""A difference that somebody could take for a rounding error."""
_DIGITS = 1_000
"""Digits to which an irrational difference is computed; to show that it is 0 takes up to 0.1 s of CPU time."""
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)\s*(?:10\s*\^\s*\{?\s*(?P<alone>[+-]?\d{1,3})\s*\}?|(?P<digits>\d{1,50}\.?\d{0,50}|\.\d{1,50})"
    r"\s*(?:[eE](?P<e>[+-]?\d{1,3})|(?:\\times|\*|×)\s*10\s*\^\s*\{?\s*(?P<ten>[+-]?\d{1,3})\s*\}?)?)(?![\d.])",
    re.ASCII,
)

_FRACTION = re.compile(r"([+-]?)\s*\\[dt]?frac\s*\{([^{}]*(?:\{[^{}]*\})?)\}\s*\{([^{}]*(?:\{[^{}]*\})?)\}")


def differ(answer: str, gold: str) -> bool:
    """Whether both are numbers and differ, though a rule may have taken them for equal: plain numbers of which at least
    one is nearer to zero than 0.1, or exact numbers."""
    if answer == gold:
        return False
    one, other = number_of(answer), number_of(gold)
    if one is None or other is None:
        return _differ_exactly(answer, gold)
    return min(abs(one), abs(other)) < _NEAR and not math.isclose(one, other, rel_tol=_RELATIVE)


def _differ_exactly(answer: str, gold: str) -> bool:
    """Whether the answer has an exact number that is as near to one of the gold as a rounding error, but equals
    none."""
    golds = _exact_numbers(gold)
    for number in _exact_numbers(answer):
        if number in golds:
            continue
        near = [difference for other in golds if _is_near_zero(difference := (number - other).doit())]
        if near and not any(map(_is_zero, near)):
            return True
    return False


def _is_near_zero(difference: Any) -> bool:
    size = abs(sympy.N(difference))
    return bool(size.is_comparable and size < _ZERO)


def _is_zero(difference: Any) -> bool:
    if difference.is_Rational:
        return bool(difference == 0)
    parts = sympy.N(difference, 20, maxn=_DIGITS).as_real_imag()
    return not any(part.is_Float and part != 0 and part._prec > 1 for part in parts)


def _exact_numbers(text: str) -> list[Any]:
    """The finite numbers without a decimal point that math-verify reads: one alone or behind `x =`, or those of a
    tuple, a set or an interval."""
    numbers: list[Any] = []
    for value in math_verify_rule.value(text):
        value = value.rhs if isinstance(value, sympy.Eq) else value
        is_whole = isinstance(value, sympy.Tuple | sympy.FiniteSet | sympy.Interval)
        numbers += value.args if is_whole else [value]
    return [number for number in numbers if _is_exact(number)]


def _is_exact(value: Any) -> bool:
    is_number = isinstance(value, sympy.Expr) and value.is_number
    return is_number and value.is_finite is not False and not value.has(sympy.Float)


def number_of(answer: str) -> float | None:
    """The value of a number, alone or with a known unit behind it; None for anything else.

    Example: number_of("2.88 \\\\times 10^{-19} \\\\text{ J}") -> 2.88e-19
    """
    text = value_of(plain(answer))
    if fraction := _FRACTION.fullmatch(text):
        above, below = number_of(fraction[2]), number_of(fraction[3])
        return float(f"{fraction[1]}1") * above / below if above is not None and below else None
    match = _NUMBER.match(text)
    if match is None or (text[match.end() :].strip() and unit_of(answer) is None):
        return None
    digits = match["digits"] or "1"
    exponent = match["e"] or match["ten"] or match["alone"] or "0"
    return float(f"{match['sign']}{digits}e{exponent}")
