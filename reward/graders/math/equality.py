"""Says whether numbers and expressions of sympy are equal: numbers by their digits, expressions at points.

Nothing is simplified, which takes sympy anything from a millisecond to forever. Two expressions are equal if all
computed digits agree at several points, of which some are negative and some large. Where a root or logarithm has a
negative argument, its branch is a convention, and the point does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from reward.graders.math.rules import Rule
from reward.graders.math.values import Number

_POINTS = tuple(
    tuple(sympy.Rational(number, 101) for number in row)
    for row in (
        (137, 61, 223, 89), (29, 171, 53, 307), (241, 397, 509, 619), (1211, 2311, 3149, 1741),
        (-113, 47, -79, -193), (-31, -883, 217, 1409),
        (-3163, 767, -1231, 59), (-401, 255, 377, -281),
    )
)  # fmt: skip
"""Their denominator is prime, so that no frequency that people choose makes them zeros of a sine."""
_INTEGERS = tuple(
    tuple(sympy.Integer(number) for number in row)
    for row in ((2, 5, 3, 7), (3, 4, 6, 2), (4, 7, 2, 9), (5, 2, 8, 3), (6, 11, 4, 5), (7, 3, 10, 4), (9, 10, 5, 8),
                (12, 6, 7, 11), (17, 13, 12, 6), (30, 22, 15, 14), (58, 31, 26, 23), (101, 64, 47, 38))
)  # fmt: skip
_LARGE = ((sympy.Integer(15_624), sympy.Integer(99_991)), (sympy.Integer(78_125), sympy.Integer(1_024)))
_WHOLE = frozenset("nmkjNM")
"""Variables that stand for integers."""
_ROUNDINGS = (sympy.floor, sympy.ceiling)
_PRODUCTS = (sympy.factorial, sympy.factorial2, sympy.binomial)
_BENDS = (sympy.Abs, sympy.sign, sympy.Max, sympy.Min)
_ENOUGH = sympy.Rational(1, 10**12)
"""Twelve right digits of a decimal are as good as the exact number."""
_MIN_SIGNIFICANT = 3
_MANY_PLACES = 6
_CONSTANTS = frozenset(("C", "C_{1}"))
_OTHER_CONSTANTS = _CONSTANTS | {"c", "K", "k", "c_{1}", "D"}
_DIGITS = 1_000
"""Digits to which an irrational difference is computed; to show that it is 0 takes up to 0.1 s of CPU time."""
_DIGITS_AT_POINTS = 100


class Undecided(Exception):
    """There is no rule, or sympy computes no value."""


def is_zero(value: Any, digits: int = _DIGITS, values: dict[Any, Any] | None = None) -> bool:
    """Whether no digit of a number is other than 0. `values`: numbers for its variables, if it has any. Raises
    Undecided where it has no value."""
    if value.is_Rational:
        return bool(value == 0)
    parts = sympy.N(value, 20, subs=values, maxn=digits).as_real_imag()
    if not all(part.is_Float or part.is_Rational for part in parts):
        raise Undecided
    return not any(part != 0 and (part.is_Rational or part._prec > 1) for part in parts)


def is_at_most(difference: Any, bound: Any) -> bool:
    """Whether a difference, without its sign, is no larger than a bound."""
    size = sympy.N(abs(difference) - bound, 20, maxn=_DIGITS)
    return bool(size.is_comparable and size <= 0)


def same_number(answer: Number, gold: Number) -> Rule | None:
    """Compares numbers exactly, unless one of them is a decimal that may be a rounded number."""
    if answer.value == gold.value:
        return Rule.NUMBER
    if answer.value.is_infinite or gold.value.is_infinite:
        return None
    difference = answer.value - gold.value
    if answer.places is None and gold.places is None:
        return Rule.NUMBER.when(is_zero(difference))
    if gold.places is None:
        is_near = not gold.value.is_Integer and is_at_most(difference, _ENOUGH * abs(gold.value))
        return Rule.TWELVE_DIGITS.when(is_near)
    last = sympy.Rational(10) ** -gold.places
    significant = _MANY_PLACES if answer.places is not None else _MIN_SIGNIFICANT
    is_longer = answer.places is None or answer.places > gold.places >= _MANY_PLACES
    if answer.value.is_Rational and answer.places is None:  # 561/449 is not 1.25
        significant += 1
        is_longer = bool({*sympy.factorint(answer.value.q, limit=10)} - {2, 5})
    is_long_enough = is_longer and abs(gold.value) >= last * 10 ** (significant - 1)
    is_rounded = is_long_enough and not answer.value.is_Integer
    return Rule.ROUNDED.when(is_rounded and is_at_most(difference, last / 2))


def same_expression(one: Any, other: Any) -> bool:
    """Whether two expressions agree at all points. Functions without a definition, f(x) or a sum, are variables."""
    calls = (one - other).atoms(sympy.core.function.AppliedUndef)
    if calls:
        names = {call: sympy.Dummy(str(call), real=True) for call in calls}
        one, other = one.xreplace(names), other.xreplace(names)
    difference = one - other
    if difference == 0:
        return True
    symbols = sorted(difference.free_symbols | one.free_symbols, key=str)
    if not symbols:
        return is_zero(difference)
    powers = difference.atoms(sympy.Pow)
    whole = {symbol for symbol in symbols if str(symbol)[0] in _WHOLE}
    exponents = [(power.exp, symbol) for power in powers for symbol in power.exp.free_symbols & whole]
    are_small = all(exponent.diff(symbol) in range(-9, 10) for exponent, symbol in exponents)
    points: Sequence[Sequence[Any]] = _POINTS
    if difference.has(*_ROUNDINGS, *_PRODUCTS):
        large = () if difference.has(*_PRODUCTS, sympy.Pow) else _LARGE
        points = (*_INTEGERS, *large) if whole == {*symbols} else (*_INTEGERS, *large, *_POINTS)
    elif whole == {*symbols} and any(power.base == -1 for power in powers):
        points = _INTEGERS  # \cos n\pi is (-1)^n
    elif difference.has(*_BENDS) or any(
        power.base.free_symbols and power.exp.is_Rational and power.exp.q == 2 for power in powers
    ):
        largest = max([1, *(abs(number.p) for number in difference.atoms(sympy.Rational))])
        points = [*_POINTS, *(tuple(value * largest for value in row) for row in _POINTS[2:6])]
    verdicts = []
    for at in (_at(symbols, row) for row in points):
        if exponents and are_small:  # (-x)^n is (-1)^n x^n
            small = {each: sympy.ceiling(abs(at[each])) % 8 + 1 for _, each in exponents}
            verdicts.append(_agree(one.subs(small), other.subs(small), at))
        else:
            verdicts.append(_agree(one, other, at))
    if not any(verdict is not None for verdict in verdicts):
        raise Undecided
    return all(verdict is not False for verdict in verdicts)


def _at(symbols: Sequence[Any], row: Sequence[Any]) -> dict[Any, Any]:
    """Returns a different number for each variable."""
    length = len(row)
    return {
        symbol: row[place % length] + sympy.Rational(3 * (place // length), 7)
        for place, symbol in enumerate(symbols)
    }


def _agree(one: Any, other: Any, values: dict[Any, Any]) -> bool | None:
    """Whether two expressions have one value at a point; None where a branch decides, or there is no value."""
    for value in (one, other):
        roots = [
            power.base
            for power in value.atoms(sympy.Pow)
            if power.exp.is_Rational and not power.exp.is_Integer
        ]
        for argument in (*roots, *(log.args[0] for log in value.atoms(sympy.log))):
            if argument.free_symbols and sympy.N(argument.subs(values)).is_negative:
                return None
    try:
        return is_zero(one - other, _DIGITS_AT_POINTS, values)
    except Undecided:
        return None


def constant_ratio(one: Any, other: Any) -> Any | None:
    """Returns the constant by which two expressions differ; None if there is none."""
    if other == 0 or one == 0 or one.free_symbols != other.free_symbols:
        return None
    symbols = sorted(other.free_symbols, key=str)
    ratios = []
    for row in _POINTS[2:6]:  # negative ones too
        values = _at(symbols, row)
        below = other.subs(values)
        if not is_zero(below):
            ratios.append(one.subs(values) / below)
    is_constant = len(ratios) > 1 and all(
        is_zero(ratio - ratios[0], _DIGITS_AT_POINTS) for ratio in ratios[1:]
    )
    return ratios[0] if is_constant and not is_zero(ratios[0]) else None


def with_constant_of(value: Any, gold: Any) -> Any:
    """Returns an antiderivative with the gold's name for its constant: x^2 + c for x^2 + C."""
    ours, golds = (
        [one for one in sums.free_symbols if one.name in names and sums.is_Add and one in sums.args]
        for sums, names in ((value, _OTHER_CONSTANTS), (gold, _CONSTANTS))
    )
    is_other = len(ours) == len(golds) == 1 and ours[0] not in gold.free_symbols
    return value.subs(ours[0], golds[0]) if is_other else value
