r"""Says whether two values are equal, by the type of the gold: one rule per type, named in the result.

What the gold does not mention is allowed where the rule of its type says so: a unit on a bare number (and the number
without its unit), a name in front (`x = 5` for 5), the label of an option. Everything else that is there must be equal.

Numbers are compared exactly. A decimal gold of three digits or more may be a rounded number: an exact answer that rounds
to it is right, and a decimal one if the gold has six decimals. Expressions are equal if they agree, to all digits that are computed, at random points.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import sympy

from reward.graders.math import expression, units
from reward.graders.math.reading import Reading, without_points
from reward.graders.math.values import (
    Clock,
    Comparison,
    Expression,
    Interval,
    Matrix,
    Number,
    Option,
    Quantity,
    Ratio,
    Relation,
    Several,
    Text,
    Union,
    Value,
)

_POINTS = (
    (sympy.Rational(137, 100), sympy.Rational(61, 100), sympy.Rational(223, 100), sympy.Rational(89, 100)),
    (sympy.Rational(29, 100), sympy.Rational(171, 100), sympy.Rational(53, 100), sympy.Rational(307, 100)),
    (sympy.Rational(-113, 100), sympy.Rational(47, 100), sympy.Rational(-79, 100), sympy.Rational(-193, 100)),
)
_STEPS = tuple(
    tuple(sympy.Integer(number + 3 * place) for place in range(4)) for number in (*range(2, 20), 37, 58, 101)
)
"""Points for expressions that change in steps, or whose variables are integers."""
_DIGITS = 1_000
"""Digits to which an irrational difference is computed; to show that it is 0 takes up to 0.1 s of CPU time."""
_DIGITS_AT_POINTS = 100
_ENOUGH = sympy.Rational(1, 10**12)
"""Twelve right digits of a decimal are as good as the exact number."""
_MIN_SIGNIFICANT = 3
_MANY_PLACES = 6
_MAX_ITEMS = 60
_OPTIONS = tuple("ABCDEFGH")
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_LARGER = (">", ">=")
_NOT_EVALUATED = re.compile(
    r"(?<!^)(?<!\{)[-+]|\\cdot|\\times(?!10\^)|[*/!(]|\\sqrt|\\binom|\\(?:sin|cos|tan|log|ln)(?![a-z])|(?<=[\d)])(?<!10)\^(?!\\circ)"
)


class Undecided(Exception):
    """One of the values is no more than a page: no rule applies."""


def compare(answer: Reading, gold: Reading, evaluated: bool = False) -> Comparison:
    """Returns whether an answer equals a gold, and the rule. `evaluated`: arithmetic must be carried out."""
    if _spelling(answer) == _spelling(gold):
        return Comparison(True, "same page")
    if evaluated and isinstance(gold.value, Number) and _NOT_EVALUATED.search(answer.shown):
        return Comparison(False, "not evaluated")
    if gold.shown in _OPTIONS and answer.shown == gold.shown.lower():
        return Comparison(True, "option")
    try:
        rule = _equal(answer.value, gold.value) or _without_percent(answer.value, gold.value)
    except Undecided:
        return Comparison(None, "no rule")
    except (
        ArithmeticError,
        AttributeError,
        NotImplementedError,
        TypeError,
        ValueError,
        RecursionError,
    ):  # sympy's
        return Comparison(None, "sympy cannot compute it")
    return Comparison(rule is not None, rule or f"differs as {type(gold.value).__name__.lower()}")


def _spelling(reading: Reading) -> str:
    """Returns what a page shows, without regard to what is set upright."""
    return re.sub(r"\\text\{([^{}]*)\}", r"\1", reading.shown)


def _equal(answer: Value, gold: Value) -> str | None:
    """Returns the rule by which the values are equal; None if they differ. Raises Undecided."""
    if _is_page(answer) or _is_page(gold):
        raise Undecided
    if isinstance(answer, Option) and not isinstance(gold, Option):
        if _is_letter(gold):
            return "option" if answer.letter == str(gold.value).upper() else None  # type: ignore[union-attr]
        return _equal(answer.value, gold) if answer.value is not None else None
    if isinstance(answer, Several) and answer.kind == "or" and not _is_many(gold):
        return "every form" if all(_equal(item, gold) for item in answer.items) else None
    if isinstance(answer, Relation) and not isinstance(gold, Relation):
        return _equal_chain(answer, gold)
    if (
        isinstance(gold, Relation)
        and not isinstance(answer, Relation)
        and (named := _named(gold)) is not None
    ):
        return _equal(answer, named)
    rule = _RULES[type(gold)]
    return rule(answer, gold)


def _without_percent(answer: Value, gold: Value) -> str | None:
    """Compares 50 % with 50, whole answers alone: as a part of something, 50 % is 0.5 and no more."""
    if isinstance(answer, Relation) and (named := _named(answer)) is not None and len(answer.sides) == 2:
        return _without_percent(named, gold)
    if isinstance(gold, Relation) and (named := _named(gold)) is not None:
        return _without_percent(answer, named)
    for one, other in ((answer, gold), (gold, answer)):
        if isinstance(one, Quantity) and _is_percent(one.unit) and isinstance(other, Number):
            return "percent without its sign" if _equal(one.size, other) else None
    return None


def _is_page(value: Value) -> bool:
    return isinstance(value, Text) and value.kind == "page"


def _is_letter(value: Value) -> bool:
    return isinstance(value, Expression) and value.value.is_Symbol and len(value.value.name) == 1


def _is_many(gold: Value) -> bool:
    """Whether a gold may have several values, so that `or` is no hedge."""
    if isinstance(gold, Several):
        return gold.kind in ("or", "list", "set", "family")
    return isinstance(gold, Union | Interval | Matrix) or (
        isinstance(gold, Relation) and gold.signs[:1] != ("=",)
    )


# ------------------------------------------------------------------------------------- numbers and expressions
def _equal_number(answer: Value, gold: Number) -> str | None:
    match answer:
        case Number():
            return _same_number(answer, gold)
        case Quantity(size=Number() as size, unit=unit):
            if _is_percent(unit):
                return _same_number(Number(size.value / 100), gold)
            if _is_angle(unit) and gold.value.has(sympy.pi):
                return _same_number(Number(size.value * sympy.pi / 180), gold)
            return "number without its unit" if _same_number(size, gold) else None
        case Ratio(terms=(Number() as first, Number() as second)) if second.value != 0:
            return "ratio as quotient" if _same_number(Number(first.value / second.value), gold) else None
        case Several(kind="set", items=(Number() as single,)):
            return _same_number(single, gold)
    return None


def _same_number(answer: Number, gold: Number) -> str | None:
    if answer.value == gold.value:
        return "number"
    if answer.value.is_infinite or gold.value.is_infinite:
        return None
    difference = answer.value - gold.value
    if answer.places is None and gold.places is None:
        return "number" if _is_zero(difference) else None
    if gold.places is None:
        is_near = not gold.value.is_Integer and _is_at_most(difference, _ENOUGH * abs(gold.value))
        return "number to twelve digits" if is_near else None
    last = sympy.Rational(10) ** -gold.places
    if answer.places is None:
        is_rounded = abs(gold.value) >= last * 10 ** (_MIN_SIGNIFICANT - 1) and not answer.value.is_Integer
    else:
        is_rounded = answer.places > gold.places >= _MANY_PLACES and abs(gold.value) >= last * 10 ** (
            _MANY_PLACES - 1
        )
    return "rounded" if is_rounded and _is_at_most(difference, last / 2) else None


def _is_at_most(difference: Any, bound: Any) -> bool:
    size = sympy.N(abs(difference) - bound, 20, maxn=_DIGITS)
    return bool(size.is_comparable and size <= 0)


def _is_zero(difference: Any, digits: int = _DIGITS) -> bool:
    """Whether no digit of a number is other than 0. Raises Undecided where it has no value."""
    if difference.is_Rational:
        return bool(difference == 0)
    parts = sympy.N(difference, 20, maxn=digits).as_real_imag()
    if not all(part.is_Float or part.is_Rational for part in parts):
        raise Undecided
    return not any(part != 0 and (part.is_Rational or part._prec > 1) for part in parts)


def _equal_expression(answer: Value, gold: Expression) -> str | None:
    match answer:
        case Number():
            if gold.pending and not gold.value.free_symbols:
                return "number" if _same_expression(answer.value, gold.value) else None
            if gold.quantity is not None:
                return _equal(answer, gold.quantity)
            return "expression" if _same_expression(answer.value, gold.value) else None
        case Expression():
            if not answer.pending <= gold.pending:
                return None
            return "expression" if _same_expression(answer.value, gold.value) else None
        case Quantity():
            if gold.quantity is not None:
                return _equal(answer, gold.quantity)
            return "expression without its unit" if _equal_expression(answer.size, gold) else None
        case Several(kind="set", items=(single,)):
            return _equal_expression(single, gold)
        case Several(kind="tuple") | Matrix():
            return "vector" if (vector := _vector(gold)) and _equal(answer, vector) else None
        case Text(kind="words", text=text) if text.isalpha():
            letters = sympy.Mul(*map(expression.symbol, text))
            return "product of letters" if letters == gold.value else None
    return None


def _same_expression(one: Any, other: Any) -> bool:
    """Whether two expressions agree at random points, of which one has negative numbers."""
    if one == other:
        return True
    difference = one - other
    difference = difference.xreplace(
        {
            call: sympy.Dummy(str(call), real=True)
            for call in difference.atoms(sympy.core.function.AppliedUndef)
        }
    )
    if difference == 0:
        return True
    symbols = sorted(difference.free_symbols, key=str)
    if not symbols:
        return _is_zero(difference)
    if difference.has(sympy.floor, sympy.ceiling):
        return all(_agree(difference, symbols, points) for points in _STEPS)
    if not all(_agree(difference, symbols, points) for points in _POINTS[:2]):
        alternates = any(power.base == -1 for power in difference.atoms(sympy.Pow)) and difference.has(
            sympy.pi
        )
        return alternates and all(
            _agree(difference, symbols, points) for points in _STEPS
        )  # \cos n\pi is (-1)^n
    # Roots and logarithms of negative numbers have other branches: there positive points decide.
    return _agree(difference, symbols, _POINTS[2]) or not difference.has(sympy.Abs, sympy.sign)


def _agree(difference: Any, symbols: Sequence[Any], points: Sequence[Any]) -> bool:
    values = {
        symbol: points[place % len(points)] + sympy.Rational(place // len(points), 7)
        for place, symbol in enumerate(symbols)
    }
    return _is_zero(difference.subs(values), _DIGITS_AT_POINTS)


def _vector(value: Expression) -> Several | None:
    """Returns the tuple that a sum of unit vectors stands for."""
    axes = [expression.symbol(f"\\hat{{{letter}}}") for letter in "ijk"]
    if not value.value.free_symbols & set(axes):
        return None
    parts = [sympy.diff(value.value, axis) for axis in axes]
    rest = sympy.expand(value.value - sum(part * axis for part, axis in zip(parts, axes, strict=True)))
    if rest != 0 or any(part.free_symbols & set(axes) for part in parts):
        return None
    parts = parts[:2] if parts[2] == 0 else parts
    return Several(
        "tuple", tuple(Expression(part) if part.free_symbols else Number(part) for part in parts), "()"
    )


# ------------------------------------------------------------------------------------- quantities
def _equal_quantity(answer: Value, gold: Quantity) -> str | None:
    match answer:
        case Quantity():
            return _same_quantity(answer, gold)
        case Expression(quantity=Quantity() as quantity):
            return _equal_quantity(quantity, gold)
        case Number():
            if isinstance(gold.size, Number):
                if _is_percent(gold.unit):
                    return (
                        "percent as a number" if _same_number(answer, Number(gold.size.value / 100)) else None
                    )
                if _is_angle(gold.unit) and answer.value.has(sympy.pi):
                    return (
                        "angle in radians"
                        if _same_number(answer, Number(gold.size.value * sympy.pi / 180))
                        else None
                    )
            return "number without its unit" if _equal(answer, gold.size) else None
        case Expression():
            return "expression without its unit" if _equal(answer, gold.size) else None
        case Several(kind="compound", items=items) if all(isinstance(item, Quantity) for item in items):
            total = _total(items)  # type: ignore[arg-type]
            return "compound" if total is not None and _equal_quantity(total, gold) else None
    return None


def _same_quantity(answer: Quantity, gold: Quantity) -> str | None:
    ours, golds = answer.unit, gold.unit
    if (factor := units.factor(ours, golds)) is not None:
        if factor == 1:
            return "quantity" if _equal(answer.size, gold.size) else None
        converted = answer.size.value * sympy.Rational(factor.numerator, factor.denominator)
        size = Number(converted) if isinstance(answer.size, Number) else Expression(converted)
        return "quantity in another unit" if _equal(size, gold.size) else None
    if {_is_angle(ours), _is_angle(golds)} == {True, False} and (_is_radian(ours) or _is_radian(golds)):
        inner = sympy.pi / 180
        factor = inner if _is_angle(ours) else 1 / inner
        return "quantity in another unit" if _equal(Number(answer.size.value * factor), gold.size) else None
    return None


def _total(items: Sequence[Quantity]) -> Quantity | None:
    """Returns the sum of quantities of one dimension in the unit of the last one."""
    last = items[-1].unit
    if any(item.unit.dimension != last.dimension or not isinstance(item.size, Number) for item in items):
        return None
    total = sum(item.size.value * sympy.Rational(str(item.unit.scale / last.scale)) for item in items)
    return Quantity(Number(total), last)


def _is_percent(unit: Any) -> bool:
    return unit.dimension == (("fraction", 1),) and unit.scale == Fraction(1, 100)


def _is_angle(unit: Any) -> bool:
    return unit.dimension == (("angle", 1),)


def _is_radian(unit: Any) -> bool:
    return unit.dimension == (("radian", 1),)


# ------------------------------------------------------------------------------------- relations
def _named(relation: Relation) -> Value | None:
    """Returns the value of `x = 5`, whose left side is a name; None for other relations."""
    if relation.modulus is not None:
        return None
    if relation.signs == ("in",):
        return relation.sides[1]
    if set(relation.signs) == {"="} and _is_name(relation.sides[0]):
        return relation.sides[-1]
    return None


def _is_name(value: Value) -> bool:
    match value:
        case Expression():
            return not value.pending and _is_plain_name(value.value)
        case Text():
            return value.kind in ("words", "name") or (
                value.kind == "page" and not re.search(r"\d", value.text)
            )
        case Several(kind="tuple" | "list"):
            return all(map(_is_name, value.items))
        case Option():
            return value.value is None
        case Ratio():
            return all(map(_is_name, value.terms))
    return False


def _is_plain_name(value: Any) -> bool:
    """Whether an expression is a variable, f(x), or made of the names of points: AB, |AB|, AB/CD."""
    if value.is_Symbol or isinstance(value, sympy.core.function.AppliedUndef):
        return True
    if isinstance(value, sympy.Abs):
        return _is_plain_name(value.args[0])
    factors = value.as_powers_dict() if value.is_Mul or value.is_Pow else {}
    return bool(factors) and all(
        base.is_Symbol and base.name[0].isupper() and base.name.isalpha() for base in factors
    )


def _equal_chain(chain: Relation, gold: Value) -> str | None:
    """Compares a chain with a gold that is no relation: every side but names must be right."""
    if chain.modulus is not None:
        is_residue = len(chain.sides) == 1 or (chain.signs == ("==",) and _is_name(chain.sides[0]))
        return "residue" if is_residue and _equal(chain.sides[-1], gold) else None
    if _as_parts(gold) is not None and (ours := _as_parts(chain)) is not None:
        return _same_parts(ours, gold)
    if chain.signs == ("in",):
        return _equal(chain.sides[1], gold) if _is_name(chain.sides[0]) else None
    if not set(chain.signs) <= {"=", "~"}:
        return None
    sides = []
    for place, side in enumerate(chain.sides):
        is_rounding = (
            place and chain.signs[place - 1] == "~" and isinstance(side, Number) and side.places is not None
        )
        if is_rounding and sides:
            continue
        if _is_name(side) and place < len(chain.sides) - 1:
            continue
        if (
            isinstance(gold, Number | Quantity)
            and isinstance(side, Expression)
            and side.value.free_symbols
            and not side.quantity
            and place < len(chain.sides) - 1
        ):
            continue
        sides.append(side)
    return "value of a chain" if sides and all(_equal(side, gold) for side in sides) else None


def _equal_relation(answer: Value, gold: Relation) -> str | None:
    if _as_parts(gold) is not None and (ours := _as_parts(answer)) is not None:
        return _same_parts(ours, gold)
    if gold.modulus is not None:
        if not isinstance(answer, Relation) or answer.modulus is None:
            return "residue" if len(gold.sides) == 1 and _equal(answer, gold.sides[0]) else None
        if not _equal(answer.modulus, gold.modulus):
            return None
        if len(answer.sides) == len(gold.sides) == 2 and not _equal(answer.sides[0], gold.sides[0]):
            return None
        ours, golds, modulus = answer.sides[-1], gold.sides[-1], gold.modulus
        if isinstance(ours, Number) and isinstance(golds, Number) and isinstance(modulus, Number):
            return "congruence" if (ours.value - golds.value) % modulus.value == 0 else None
        return "congruence" if _equal(ours, golds) else None
    if not isinstance(answer, Relation):
        return None
    if set(answer.signs) == set(gold.signs) == {"="}:
        return _same_equation(answer, gold)
    if answer.signs == gold.signs and len(answer.sides) == len(gold.sides):
        if all(_equal(one, other) for one, other in zip(answer.sides, gold.sides, strict=True)):
            return "relation"
    if len(answer.signs) == len(gold.signs) == 1:
        return _same_inequality(answer, gold)
    return None


def _same_equation(answer: Relation, gold: Relation) -> str | None:
    if (ours := _named(answer)) is not None and (golds := _named(gold)) is not None:
        if _same_name(answer.sides[0], gold.sides[0]):
            between = [side for side in answer.sides[1:-1] if not _is_name(side)]
            return "value of a name" if all(_equal(side, golds) for side in [*between, ours]) else None
    if len(answer.sides) != 2 or len(gold.sides) != 2:
        return None
    one, other = _left_less_right(answer), _left_less_right(gold)
    if one is None or other is None:
        pairs = (
            zip(answer.sides, gold.sides, strict=True),
            zip(reversed(answer.sides), gold.sides, strict=True),
        )
        return "sides" if any(all(_equal(a, b) for a, b in pair) for pair in pairs) else None
    return "equation" if _ratio(one, other) is not None else None


def _same_name(one: Value, other: Value) -> bool:
    if isinstance(one, Text) and isinstance(other, Text):
        return one.text == other.text
    return bool(_equal(one, other)) if type(one) is type(other) else False


def _left_less_right(relation: Relation) -> Any | None:
    """Returns the numerator of the left side less the right side; None unless both are numbers or expressions."""
    left, right = (side.size if isinstance(side, Quantity) else side for side in relation.sides)
    if not (isinstance(left, Number | Expression) and isinstance(right, Number | Expression)):
        return None
    return sympy.together(left.value - right.value).as_numer_denom()[0]


def _ratio(one: Any, other: Any) -> Any | None:
    """Returns the constant by which two expressions differ; None if there is none."""
    if other == 0 or one == 0 or one.free_symbols != other.free_symbols:
        return None
    symbols = sorted(other.free_symbols, key=str)
    ratios = []
    for points in _POINTS:
        values = dict(zip(symbols, (points * 3)[: len(symbols)], strict=False))
        below = other.subs(values)
        if below == 0:
            return None
        ratios.append(one.subs(values) / below)
    is_constant = all(_is_zero(ratio - ratios[0]) for ratio in ratios[1:])
    return ratios[0] if is_constant and not _is_zero(ratios[0]) else None


def _same_inequality(answer: Relation, gold: Relation) -> str | None:
    """Compares `2x < y` and `y > 2x`: both sides on the left, up to a factor that turns the sign if it is negative."""
    one, other = _left_less_right(answer), _left_less_right(gold)
    if one is None or other is None or (ratio := _ratio(one, other)) is None:
        return None
    sign = answer.signs[0]
    sign = _TURNED.get(sign, sign) if sign in _TURNED and sympy.N(ratio) < 0 else sign
    return "inequality" if sign == gold.signs[0] and sign in (*_TURNED, "!=") else None


# ------------------------------------------------------------------------------------- sets of numbers
def _as_parts(value: Value) -> list[Interval | Several] | None:
    """Returns the intervals and finite sets that a value describes; None if it is no set."""
    match value:
        case Interval():
            return [value]
        case Union():
            return [*value.parts]
        case Several(kind="tuple", items=(low, high), brackets="()" | "[]" as brackets):
            return [Interval(low, high, brackets)]
        case Several(kind="set"):
            return [value]
        case Several(kind="or"):
            found: list[Interval | Several] = []
            for item in value.items:
                if not isinstance(item, Relation | Interval | Union) or (parts := _as_parts(item)) is None:
                    return None
                found += parts
            return found
        case Several(kind="list") if all(isinstance(item, Relation) for item in value.items):
            return _both([_as_parts(item) for item in value.items])
        case Relation(signs=("in",)):
            return _as_parts(value.sides[1])
        case Relation(signs=("!=",), sides=(left, Number() as right)) if _is_name(left):
            return [*without_points([right]).parts]
        case Relation():
            return _solved(value)
    return None


def _solved(relation: Relation) -> list[Interval | Several] | None:
    """Returns the interval that `x < 3`, `3 > x` or `1 < x <= 3` describes."""
    sides, signs = relation.sides, relation.signs
    if signs and signs[0] in _LARGER:
        if not all(sign in _LARGER for sign in signs):
            return None
        sides, signs = sides[::-1], tuple(_TURNED[sign] for sign in reversed(signs))
    if not signs or not all(sign in ("<", "<=") for sign in signs):
        return None
    closed = {"<": False, "<=": True}
    infinite = Number(sympy.oo)
    if len(sides) == 2:
        if _is_name(sides[0]) and not _mentions(sides[1], sides[0]):
            return [Interval(Number(-sympy.oo), sides[1], "(]" if closed[signs[0]] else "()")]
        if _is_name(sides[1]) and not _mentions(sides[0], sides[1]):
            return [Interval(sides[0], infinite, "[)" if closed[signs[0]] else "()")]
        return None
    if (
        len(sides) == 3
        and _is_name(sides[1])
        and not (_mentions(sides[0], sides[1]) or _mentions(sides[2], sides[1]))
    ):
        return [
            Interval(
                sides[0], sides[2], ("[" if closed[signs[0]] else "(") + ("]" if closed[signs[1]] else ")")
            )
        ]
    return None


def _mentions(value: Value, name: Value) -> bool:
    if not isinstance(value, Expression) or not isinstance(name, Expression):
        return False
    return bool(value.value.free_symbols & name.value.free_symbols)


def _both(sets: Sequence[list[Interval | Several] | None]) -> list[Interval | Several] | None:
    """Returns the intersection of half lines: x > 1 and x <= 3."""
    lines = [parts[0] for parts in sets if parts and len(parts) == 1 and isinstance(parts[0], Interval)]
    if len(lines) != 2 or len(sets) != 2:
        return None
    lows = [line for line in lines if not _is_infinite(line.low)]
    highs = [line for line in lines if not _is_infinite(line.high)]
    if len(lows) != 1 or len(highs) != 1 or lows[0] is highs[0]:
        return None
    return [Interval(lows[0].low, highs[0].high, lows[0].brackets[0] + highs[0].brackets[1])]


def _is_infinite(value: Value) -> bool:
    return isinstance(value, Number) and value.value.is_infinite is True


def _same_parts(ours: Sequence[Interval | Several], gold: Value) -> str | None:
    golds = _as_parts(gold)
    if golds is None:
        return None
    return "set of numbers" if _paired(_one_set(ours), _one_set(golds), _same_part) else None


def _one_set(parts: Sequence[Interval | Several]) -> list[Value]:
    """Joins the finite sets of a union to one."""
    points = [item for part in parts if isinstance(part, Several) for item in part.items]
    found: list[Value] = [part for part in parts if isinstance(part, Interval)]
    return [*found, Several("set", tuple(points))] if points or not found else found


def _same_part(answer: Value, gold: Value) -> bool:
    if isinstance(answer, Several) and isinstance(gold, Several):
        return _paired(answer.items, gold.items, _is_equal)
    if not (isinstance(answer, Interval) and isinstance(gold, Interval)):
        return False
    for end, bracket in (("low", 0), ("high", 1)):
        one, other = getattr(answer, end), getattr(gold, end)
        if not _equal(one, other):
            return False
        if answer.brackets[bracket] != gold.brackets[bracket] and not _is_infinite(other):
            return False
    return True


def _is_equal(answer: Value, gold: Value) -> bool:
    return _equal(answer, gold) is not None


def _paired(ours: Sequence[Value], golds: Sequence[Value], same: Callable[[Value, Value], bool]) -> bool:
    """Whether each of the golds matches another one of ours."""
    if len(ours) != len(golds) or len(golds) > _MAX_ITEMS:
        return False
    left = [*ours]
    for gold in golds:
        found = next((one for one in left if same(one, gold)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _equal_set(answer: Value, gold: Value) -> str | None:
    ours = _as_parts(answer)
    if ours is None and isinstance(answer, Several) and answer.kind == "list":
        ours = [Several("set", answer.items)]
    return None if ours is None else _same_parts(ours, gold)


# ------------------------------------------------------------------------------------- several values
def _equal_several(answer: Value, gold: Several) -> str | None:
    if gold.kind in ("tuple", "compound", "condition", "family"):
        return _equal_ordered(answer, gold)
    if (
        (golds := _as_parts(gold)) is not None
        and gold.kind != "set"
        and (ours := _as_parts(answer)) is not None
    ):
        return "set of numbers" if _paired(_one_set(ours), _one_set(golds), _same_part) else None
    if isinstance(answer, Union):
        return _same_parts(answer.parts, gold)
    items = _items(answer, is_answer=gold.kind == "list")
    if items is None:
        if len(gold.items) == 1:
            return _equal(answer, gold.items[0])
        return None
    if _paired(items, _items(gold) or gold.items, _is_equal):
        return {"set": "set", "or": "alternatives"}.get(gold.kind, "list")
    return None


def _items(value: Value, is_answer: bool = False) -> tuple[Value, ...] | None:
    """Returns the members of a list, alternatives or a set. `x = 1, 2` names each of them, as `(x, y) = (1, 2), (3, 4)`."""
    if isinstance(value, Relation) and (named := _named(value)) is not None:
        return _items(named)
    if isinstance(value, Several) and value.kind == "tuple" and is_answer:
        return value.items  # (1, 2, 3) for 1, 2, 3
    if isinstance(value, Matrix) and value.kind == "cases" and is_answer:
        return tuple(row[0] for row in value.rows if len(row) == 1)
    if not isinstance(value, Several) or value.kind not in ("list", "or", "set"):
        return None
    items: list[Value] = []
    for item in value.items:
        inner = _named(item) if isinstance(item, Relation) and item.signs == ("=",) else None
        if isinstance(inner, Several) and inner.kind in ("list", "or"):  # x = \pm 1
            items += inner.items
        elif isinstance(item, Several) and item.kind in ("list", "or") and item.items:
            items += item.items
        else:
            items.append(item)
    return tuple(items)


def _equal_ordered(answer: Value, gold: Several) -> str | None:
    if isinstance(answer, Matrix) and gold.kind == "tuple" and answer.kind == "matrix":
        flat = _line(answer)
        return None if flat is None else _equal_ordered(Several("tuple", flat, gold.brackets), gold)
    if isinstance(answer, Expression) and (vector := _vector(answer)) is not None:
        return _equal_ordered(vector, gold)
    if isinstance(answer, Interval) or (gold.kind == "tuple" and isinstance(answer, Union | Relation)):
        parts = _as_parts(answer)
        return None if parts is None or _as_parts(gold) is None else _same_parts(parts, gold)
    if isinstance(answer, Several) and answer.kind == "list" and gold.kind == "tuple":
        if (parts := _as_parts(answer)) is not None and _as_parts(gold) is not None:
            return _same_parts(parts, gold)
    if (
        isinstance(answer, Quantity)
        and gold.kind == "compound"
        and all(isinstance(item, Quantity) for item in gold.items)
    ):
        total = _total(gold.items)  # type: ignore[arg-type]
        return "compound" if total is not None and _equal(answer, total) else None
    if gold.kind == "compound" and isinstance(answer, Number | Quantity) and isinstance(gold.items[-1], Text):
        return _equal(answer, gold.items[0])  # 10 for 10 m north
    if not isinstance(answer, Several) or answer.kind != gold.kind or len(answer.items) != len(gold.items):
        return None
    if answer.brackets != gold.brackets:
        return None
    is_same = all(map(_equal, answer.items, gold.items))
    return gold.kind if is_same else None


def _line(matrix: Matrix) -> tuple[Value, ...] | None:
    """Returns the cells of a row or a column."""
    if len(matrix.rows) == 1:
        return matrix.rows[0]
    return tuple(row[0] for row in matrix.rows) if all(len(row) == 1 for row in matrix.rows) else None


def _equal_matrix(answer: Value, gold: Matrix) -> str | None:
    if gold.kind == "cases" and isinstance(answer, Several) and answer.kind == "list":
        answer = Matrix(tuple((item,) for item in answer.items), "cases")  # a system of equations
    if isinstance(answer, Several) and answer.kind == "tuple" and (line := _line(gold)) is not None:
        return _equal_ordered(answer, Several("tuple", line, answer.brackets))
    if isinstance(answer, Expression) and (vector := _vector(answer)) is not None:
        return _equal_matrix(vector, gold)
    if not isinstance(answer, Matrix) or answer.kind != gold.kind or len(answer.rows) != len(gold.rows):
        return None
    if gold.kind == "cases":
        rows = [Several("tuple", row) for row in answer.rows]
        return "cases" if _paired(rows, [Several("tuple", row) for row in gold.rows], _is_equal) else None
    for ours, golds in zip(answer.rows, gold.rows, strict=True):
        if len(ours) != len(golds) or not all(map(_equal, ours, golds)):
            return None
    return "matrix"


def _equal_ratio(answer: Value, gold: Ratio) -> str | None:
    if isinstance(answer, Clock) and not answer.half:
        answer = Ratio(
            (Number(sympy.Integer(answer.minutes // 60)), Number(sympy.Integer(answer.minutes % 60)))
        )
    if isinstance(answer, Number) and len(gold.terms) == 2:
        first, second = gold.terms
        if isinstance(first, Number) and isinstance(second, Number) and second.value != 0:
            return "ratio as quotient" if _same_number(answer, Number(first.value / second.value)) else None
    if not isinstance(answer, Ratio) or len(answer.terms) != len(gold.terms):
        return None
    if not all(isinstance(term, Number | Expression) for term in (*answer.terms, *gold.terms)):
        return "ratio" if all(map(_equal, answer.terms, gold.terms)) else None
    ours, golds = ([term.value for term in ratio.terms] for ratio in (answer, gold))  # type: ignore[union-attr]
    is_same = all(
        _same_expression(one * golds[0], ours[0] * other) for one, other in zip(ours, golds, strict=True)
    )
    return "ratio" if is_same and not _is_nought(ours) else None


def _is_nought(values: Sequence[Any]) -> bool:
    return all(value == 0 for value in values)


# ------------------------------------------------------------------------------------- what is spelled
def _equal_clock(answer: Value, gold: Clock) -> str | None:
    if isinstance(answer, Ratio) and not gold.half:
        hours, minutes = divmod(gold.minutes, 60)
        return _equal_ratio(answer, Ratio((Number(sympy.Integer(hours)), Number(sympy.Integer(minutes)))))
    if not isinstance(answer, Clock):
        return None
    halves = [time.half or ("pm" if time.minutes >= 13 * 60 else "") for time in (answer, gold)]
    if all(halves) and halves[0] != halves[1]:
        return None
    return "time of day" if (answer.minutes - gold.minutes) % 720 == 0 else None


def _equal_option(answer: Value, gold: Option) -> str | None:
    if isinstance(answer, Option):
        return "option" if answer.letter.upper() == gold.letter.upper() else None
    if _is_letter(answer):
        return "option" if str(answer.value).upper() == gold.letter.upper() else None  # type: ignore[union-attr]
    return _equal(answer, gold.value) if gold.value is not None else None


def _equal_text(answer: Value, gold: Text) -> str | None:
    if gold.kind == "numeral" and isinstance(answer, Number):
        return "numeral without its base" if str(answer.value) == gold.text.partition("_")[0] else None
    if isinstance(answer, Text):
        return gold.kind if answer.kind == gold.kind and answer.text == gold.text else None
    if gold.kind == "words" and isinstance(answer, Expression) and gold.text.isalpha():
        letters = sympy.Mul(*map(expression.symbol, gold.text))
        return "product of letters" if letters == answer.value else None
    return None


_RULES: dict[type, Callable[[Any, Any], str | None]] = {
    Number: _equal_number,
    Expression: _equal_expression,
    Quantity: _equal_quantity,
    Relation: _equal_relation,
    Interval: _equal_set,
    Union: _equal_set,
    Several: _equal_several,
    Matrix: _equal_matrix,
    Ratio: _equal_ratio,
    Clock: _equal_clock,
    Option: _equal_option,
    Text: _equal_text,
}
