"""Sets of real numbers in all their notations: intervals, inequalities, unions, set-builders, `x \\ne 2`.

`equal` is the comparison of two values that `compare` passes in, for ends and members that are no numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import sympy

from reward.graders.math.nodes import Unreadable
from reward.graders.math.relations import Equal, is_name, same_name, turned
from reward.graders.math.rules import Rule
from reward.graders.math.values import Expression, Interval, Number, Relation, Several, Union, Value

REALS = Interval(Number(-sympy.oo), Number(sympy.oo), "()")
EMPTY = Several("set", ())
_BRACKETS = {"<": "()", "<=": "[]"}
_MAX_ITEMS = 60
Parts = list[Interval | Several]


@dataclass(frozen=True, slots=True)
class RealSet:
    """The intervals and finite sets of a set, and the name of the variable of an inequality."""

    parts: Parts
    name: Value | None = None


def without_points(points: Sequence[Value]) -> Union:
    """Returns the real numbers but for some of them. Raises Unreadable unless these are real numbers."""
    ends = [point.value for point in points if isinstance(point, Number) and point.value.is_real]
    if len(ends) < len(points):
        raise Unreadable("a set without what is no number")
    edges = [-sympy.oo, *sorted(ends, key=lambda value: value.evalf(30)), sympy.oo]
    return Union(tuple(Interval(Number(low), Number(high), "()") for low, high in itertools.pairwise(edges)))


def complement(value: Value) -> Union | None:
    """Returns the real numbers outside of a set whose ends are numbers; None for any other set."""
    found = as_set(value)
    inner = _to_sympy(found.parts) if found is not None else None
    return None if inner is None else Union(tuple(_from_sympy(sympy.S.Reals - inner)))


def _to_sympy(parts: Parts) -> sympy.Set | None:
    """Returns a set as one of sympy; None unless its ends and points are real numbers."""
    sets: list[sympy.Set] = []
    for part in parts:
        values = part.items if isinstance(part, Several) else (part.low, part.high)
        numbers = [one.value for one in values if isinstance(one, Number) and one.value.is_extended_real]
        if len(numbers) < len(values):
            return None
        if isinstance(part, Several):
            sets.append(sympy.FiniteSet(*numbers))
        elif not sympy.N(numbers[0] - numbers[1]).is_negative:
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
            return _joined([as_set(item) for item in value.items], kind)
        case Relation(modulus=None, signs=("in",), sides=(name, inner)) if is_name(name):
            found = as_set(inner)
            return None if found is None else RealSet(found.parts, name)
        case Relation(modulus=None, signs=("!=",), sides=(name, right)) if is_name(name):
            points = right.items if isinstance(right, Several) else (right,)
            are_numbers = all(isinstance(point, Number) and point.value.is_real for point in points)
            return RealSet([*without_points(points).parts], name) if are_numbers else None
        case Relation(modulus=None):
            return _solved(value)
    return None


def _joined(sets: Sequence[RealSet | None], kind: str) -> RealSet | None:
    """Returns the union of alternatives, or the intersection of two half lines: x > 1 and x <= 3."""
    found = [one for one in sets if one is not None]
    names = [one.name for one in found]
    if len(found) < len(sets) or any(name != names[0] for name in names):
        return None
    if kind == "or":
        return RealSet([part for one in found for part in one.parts], names[0])
    lines = [part for one in found for part in one.parts if isinstance(part, Interval)]
    lower = [line for line in lines if not is_infinite(line.low)]
    upper = [line for line in lines if not is_infinite(line.high)]
    if (
        names[0] is None
        or not len(found) == len(lines) == 2
        or not len(lower) == len(upper) == 1
        or lower == upper
    ):
        return None
    brackets = lower[0].brackets[0] + upper[0].brackets[1]
    return RealSet([Interval(lower[0].low, upper[0].high, brackets)], names[0])


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
        case (Expression(value=sympy.Abs(args=(sympy.Symbol() as symbol,))), Number(value=size)) if (
            size.is_positive
        ):
            return RealSet([Interval(Number(-size), Number(size), _BRACKETS[signs[0]])], Expression(symbol))
        case (Number(value=size), Expression(value=sympy.Abs(args=(sympy.Symbol() as symbol,)))) if (
            size.is_positive
        ):
            below = Interval(negative, Number(-size), f"({last}")
            return RealSet([below, Interval(Number(size), positive, f"{first})")], Expression(symbol))
    return None


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
    if len(ours) != len(golds) or len(golds) > _MAX_ITEMS:
        return False
    left = [*ours]
    for gold in golds:
        found = next((one for one in left if same(one, gold)), None)
        if found is None:
            return False
        left.remove(found)
    return True
