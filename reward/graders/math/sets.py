"""Sets of real numbers in all their notations: intervals, inequalities, unions, set-builders, `x \\ne 2`.

`equal` is the comparison of two values that `compare` passes in, for ends and members that are no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy

from reward.graders.math.relations import Equal, is_name, same_name, turned
from reward.graders.math.rules import Rule
from reward.graders.math.values import Expression, Interval, Number, Relation, Several, Union, Value

REALS = Interval(Number(-sympy.oo), Number(sympy.oo), "()")
EMPTY = Several("set", ())
_BRACKETS = {"<": "()", "<=": "[]"}
_MOST_PARTS, _MOST_ITEMS = 60, 128
_SAMPLES = [sympy.Rational(number, 101) for number in (-9001, -1999, -613, -47, 47, 613, 1999, 9001)]
Parts = list[Interval | Several]


@dataclass(frozen=True, slots=True)
class RealSet:
    """The intervals and finite sets of a set, and the name of the variable of an inequality."""

    parts: Parts
    name: Value | None = None


def difference(whole: Value, without: Value) -> Union | None:
    """Returns what one set has and another has not; None unless their ends are numbers."""
    outer, inner = (_to_sympy(found.parts) if found else None for found in map(as_set, (whole, without)))
    return None if outer is None or inner is None else Union(tuple(_from_sympy(outer - inner)))


def is_natural(domain: Relation, value: Any) -> bool:
    """Whether a condition leaves out single points alone, or what an expression has no real value for."""
    if (found := as_set(domain)) is None or (inside := _to_sympy(found.parts)) is None:
        return "=" not in domain.signs
    (variable,) = domain.sides[0].value.free_symbols if isinstance(domain.sides[0], Expression) else (None,)
    outside = [point for point in _SAMPLES if point not in inside]
    return not any(sympy.N(value.subs(variable, point)).is_real for point in outside)


def _to_sympy(parts: Parts) -> sympy.Set | None:
    """Returns a set as one of sympy; None unless its ends and points are real numbers."""
    if len(parts) > _MOST_PARTS:
        return None
    sets: list[sympy.Set] = []
    for part in parts:
        values = part.items if isinstance(part, Several) else (part.low, part.high)
        numbers = [one.value for one in values if isinstance(one, Number) and one.value.is_extended_real]
        if len(numbers) < len(values):
            return None
        if isinstance(part, Several):
            sets.append(sympy.FiniteSet(*numbers))
        elif not sympy.N(numbers[0] - numbers[1]).is_extended_negative:
            return None
        else:
            sets.append(sympy.Interval(*numbers, part.brackets[0] == "(", part.brackets[1] == ")"))
    return sympy.Union(*sets)


def _from_sympy(one: sympy.Set) -> Parts:
    parts: Parts = []
    for part in one.args if isinstance(one, sympy.Union) else [one]:
        if isinstance(part, sympy.FiniteSet):
            parts.append(Several("set", tuple(map(Number, part.args))))
        elif isinstance(part, sympy.Interval):
            brackets = ("(" if part.left_open else "[") + (")" if part.right_open else "]")
            parts.append(Interval(Number(part.start), Number(part.end), brackets))
    return parts


def is_infinite(value: Value) -> bool:
    """Whether a value is plus or minus infinity."""
    return isinstance(value, Number) and value.value.is_infinite is True


def as_set(value: Value) -> RealSet | None:
    """Returns the set of real numbers that a value describes; None if it describes none."""
    match value:
        case Interval():
            return RealSet([value])
        case Union():
            return RealSet([*value.parts])
        case Several(kind="tuple", items=(low, high), brackets="()" | "[]" as brackets):
            return RealSet([Interval(low, high, brackets)])
        case Several(kind="set"):
            return RealSet([value])
        case Several(kind="or" | "list" as kind):
            if not all(isinstance(item, Relation | Interval | Union) for item in value.items):
                return None
            sets = [as_set(item) for item in value.items]
            if kind == "or" and any(sets):  # x = 0 or x > 1
                sets = [one or _point(item) for one, item in zip(sets, value.items, strict=True)]
            return _joined(sets, kind)
        case Relation(modulus=None, signs=("in",), sides=(name, inner)) if is_name(name):
            found = as_set(inner)
            return None if found is None else RealSet(found.parts, name)
        case Relation(modulus=None, signs=("!=",), sides=(name, right)) if is_name(name):
            points = right.items if isinstance(right, Several) else (right,)
            union = difference(REALS, Several("set", tuple(points)))
            return None if union is None else RealSet([*union.parts], name)
        case Relation(modulus=None):
            return _solved(value)
    return None


def _point(value: Value) -> RealSet | None:
    match value:
        case Relation(signs=("=",), sides=(name, Number() as number)) if is_name(name):
            return RealSet([Several("set", (number,))], name)
    return None


def _joined(sets: Sequence[RealSet | None], kind: str) -> RealSet | None:
    """Returns the union of alternatives, or the intersection of two half lines: x > 1 and x <= 3."""
    found = [one for one in sets if one is not None]
    names = [one.name for one in found]
    if len(found) < len(sets) or any(name != names[0] for name in names):
        return None
    if kind == "or":
        return RealSet([part for one in found for part in one.parts], names[0])
    sets = [_to_sympy(one.parts) for one in found]
    if (
        None not in sets
        and names[0] is not None
        and (common := sympy.Intersection(*sets)) is not sympy.S.EmptySet
    ):
        return RealSet(_from_sympy(common), names[0])
    return None


def _solved(relation: Relation) -> RealSet | None:
    """Returns the interval that `x < 3`, `3 > x`, `1 < x <= 3` or `|x| < 3` describes."""
    relation = turned(relation) if relation.signs and relation.signs[0] in (">", ">=") else relation
    sides, signs = relation.sides, relation.signs
    if not signs or not all(sign in _BRACKETS for sign in signs):
        return None
    first, last = _BRACKETS[signs[0]][0], _BRACKETS[signs[-1]][1]
    negative, positive = (Number(sign * sympy.oo) for sign in (-1, 1))
    match sides:
        case (low, name, high) if is_name(name) and not (_holds(low, name) or _holds(high, name)):
            return RealSet([Interval(low, high, first + last)], name)
        case (name, high) if is_name(name) and not _holds(high, name):
            return RealSet([Interval(negative, high, f"({last}")], name)
        case (low, name) if is_name(name) and not _holds(low, name):
            return RealSet([Interval(low, positive, f"{first})")], name)
        case (Expression(value=sympy.Abs() as size), Number(value=high)):
            return _absolute(size, sympy.Interval(0, high, False, last == ")"))
        case (Number(value=low), Expression(value=sympy.Abs() as size)):
            return _absolute(size, sympy.Interval(low, sympy.oo, first == "(", True))
        case (Number(value=low), Expression(value=sympy.Abs() as size), Number(value=high)):
            return _absolute(size, sympy.Interval(low, high, first == "(", last == ")"))
    return None


def _absolute(size: Any, values: sympy.Set) -> RealSet | None:
    """Returns where the absolute value of a linear function takes positive values in an interval."""
    (inner,), symbols = size.args, size.free_symbols
    if len(symbols) != 1 or not isinstance(values, sympy.Interval) or not values.start.is_nonnegative:
        return None
    (symbol,) = symbols
    slope, shift = sympy.diff(inner, symbol), inner.subs(symbol, 0)
    if not slope.is_Rational:
        return None
    mirrored = sympy.imageset(symbol, -symbol, values)
    found = sympy.imageset(symbol, (symbol - shift) / slope, sympy.Union(values, mirrored))
    return RealSet(_from_sympy(found), Expression(symbol))


def _holds(value: Value, name: Value) -> bool:
    """Whether a variable occurs in a value."""
    if not (isinstance(value, Expression) and isinstance(name, Expression)):
        return False
    return bool(value.value.free_symbols & name.value.free_symbols)


def same_set(ours: RealSet, golds: RealSet, equal: Equal) -> Rule | None:
    """Compares two sets: as sets of numbers ((1,2] and (2,3) together are (1,3)), else part by part."""
    if ours.name is not None and golds.name is not None and not same_name(ours.name, golds.name, equal):
        return None
    one, other = _to_sympy(ours.parts), _to_sympy(golds.parts)
    if one is not None and one == other:
        return Rule.SET_OF_NUMBERS
    same_part = partial(_same_part, equal=equal)
    return Rule.SET_OF_NUMBERS.when(paired(_one_set(ours.parts), _one_set(golds.parts), same_part))


def _one_set(parts: Parts) -> list[Value]:
    """Joins the finite sets of a union to one."""
    points = [item for part in parts if isinstance(part, Several) for item in part.items]
    found: list[Value] = [part for part in parts if isinstance(part, Interval)]
    return [*found, Several("set", tuple(points))] if points or not found else found


def _same_part(answer: Value, gold: Value, equal: Equal) -> bool:
    if isinstance(answer, Several) and isinstance(gold, Several):
        return paired(answer.items, gold.items, equal)
    if not (isinstance(answer, Interval) and isinstance(gold, Interval)):
        return False
    ends = zip((answer.low, answer.high), (gold.low, gold.high), answer.brackets, gold.brackets, strict=True)
    return all(
        equal(one, other) and (ours == golds or is_infinite(other)) for one, other, ours, golds in ends
    )


def paired(ours: Sequence[Value], golds: Sequence[Value], same: Callable[[Value, Value], object]) -> bool:
    """Whether each of the golds matches another one of ours."""
    if len(ours) != len(golds) or len(golds) > _MOST_ITEMS:
        return False
    left = [*ours]
    for gold in golds:
        found = next((one for one in left if same(one, gold)), None)
        if found is None:
            return False
        left.remove(found)
    return True
