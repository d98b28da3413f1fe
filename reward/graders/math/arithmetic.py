"""Powers, roots and the like of sympy, refused where the result has more digits than anybody would write."""

from __future__ import annotations

from typing import Any

import sympy

from reward.graders.math.nodes import Unreadable
from reward.graders.safe import MAX_EXPONENT, MAX_FACTORIAL

_GREEK = {"\\varepsilon": "\\epsilon", "\\varphi": "\\phi", "\\vartheta": "\\theta", "\\varrho": "\\rho"}
_MAX_DIGITS = 10_000
_MAX_BITS = 2_000
SYMPY_ERRORS = (ArithmeticError, AttributeError, NotImplementedError, RecursionError, TypeError, ValueError)
"""What sympy raises on odd input."""


def symbol(name: str) -> Any:
    """Returns the real variable of that name."""
    for variant, letter in _GREEK.items():
        name = name.replace(variant, letter)
    return sympy.Symbol(name, real=True)


INTEGER = symbol("\\mathbb{Z} 1")
"""The whole number of a family of values, whatever letter it has: k in k\\pi."""


def repeating(start: str, again: str) -> Any:
    """Returns the value of a repeating decimal: 0.1 and 6 are 1/6."""
    whole, _, once = start.partition(".")
    above = int((whole or "0") + once + again) - int((whole or "0") + once)
    return sympy.Rational(above, 10 ** len(once) * (10 ** len(again) - 1))


def root(value: Any, index: Any) -> Any:
    """Returns a root, the real one if the index is odd. Raises Unreadable if the number has too many digits."""
    if value.is_Rational and max(abs(value.p), value.q).bit_length() > _MAX_BITS:
        raise Unreadable("a root of a number with too many digits")
    if index.is_Integer and index % 2 == 1 and value.is_negative:
        return -sympy.root(-value, index)
    if index == 0:
        raise Unreadable("a root without an index")
    return sympy.root(value, index)


def raised(value: Any, exponent: Any) -> Any:
    """Returns a power. Raises Unreadable if it has too many digits."""
    if isinstance(value, sympy.MatrixBase):
        raise Unreadable("a power of a matrix is left to carry out")
    if not exponent.is_number or not exponent.is_finite or value in (0, 1, -1):
        return value**exponent
    size = abs(sympy.N(exponent, 15))
    if not size <= MAX_EXPONENT or (
        value.is_Pow and not abs(sympy.N(value.exp * exponent, 15)) <= MAX_EXPONENT
    ):
        raise Unreadable("a power has too large an exponent")
    if value.is_number and value.is_finite:
        largest = max(abs(value.p), value.q) if value.is_Rational else 1 + abs(sympy.N(value, 15))
        if not sympy.N(sympy.log(largest, 10), 15) * size <= _MAX_DIGITS:
            raise Unreadable("a power has too many digits")
    return value**exponent


def factorial(value: Any) -> Any:
    """Returns a factorial. Raises Unreadable if it has too many digits."""
    if value.is_number and not (value.is_real and value <= MAX_FACTORIAL):
        raise Unreadable("a factorial has too many digits")
    return sympy.factorial(value)


def binomial(above: Any, below: Any) -> Any:
    """Returns a binomial coefficient. Raises Unreadable if it has too many digits."""
    if above.is_number and not (above.is_real and abs(above) <= MAX_EXPONENT):
        raise Unreadable("a binomial coefficient has too many digits")
    return sympy.binomial(above, below)


def rounded(function: Any, value: Any) -> Any:
    """Returns a value rounded by `function`, sympy's floor or ceiling. Raises Unreadable if it has too many digits."""
    if value.is_number and not abs(sympy.N(value, 15)) < sympy.Float("1e300"):
        raise Unreadable("it rounds a number with too many digits")
    return function(value)
