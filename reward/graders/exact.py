"""Exact numbers: `1 - 2^{-99}` is not `1 + 2^{-99}`.

math-verify takes any difference below 1e-15 for zero. Two numbers without a decimal point are equal only if all digits
of their difference are 0.
"""

from __future__ import annotations

from typing import Any

import sympy

_ZERO = 1e-12
"""A difference that somebody could take for a rounding error."""
_DIGITS = 1_000
"""Digits to which an irrational difference is computed; to show that it is 0 takes up to 0.1 s of CPU time."""


def differ(answer: Any, gold: Any) -> bool:
    """Whether the answer has an exact number that is as near to one of the gold as a rounding error, but equals none.
    Both are sympy objects."""
    if answer == gold:
        return False
    golds = _numbers(gold)
    for number in _numbers(answer):
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


def _numbers(value: Any) -> list[Any]:
    """Returns the finite numbers without a decimal point: one alone or behind `x =`, or those of a tuple, a set or an
    interval."""
    value = value.rhs if isinstance(value, sympy.Eq) else value
    is_whole = isinstance(value, sympy.Tuple | sympy.FiniteSet | sympy.Interval)
    return [number for number in (value.args if is_whole else [value]) if _is_exact(number)]


def _is_exact(value: Any) -> bool:
    is_number = isinstance(value, sympy.Expr) and value.is_number
    return is_number and value.is_finite is not False and not value.has(sympy.Float)
