r"""Says whether two values are equal, by the type of the gold: one rule per type, named in the result.

What the gold does not mention is allowed where the rule of its type says so: a unit on a bare number (and the number
without its unit), a name in front (`x = 5` for 5), the label of an option. Everything else that is there must be equal.

Numbers are compared exactly. A decimal gold of three digits or more may be a rounded number: an exact answer that
rounds to it is right, and a decimal one if the gold has six decimals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import sympy

from reward.graders.math import expression, units
from reward.graders.math.equality import Undecided, constant_ratio, is_at_most, is_zero, same_expression
from reward.graders.math.names import is_name, named, names_a_number
from reward.graders.math.reading import Reading
from reward.graders.math.sets import RealSet, as_set, is_infinite, same_numbers
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
    put,
)

_ENOUGH = sympy.Rational(1, 10**12)
"""Twelve right digits of a decimal are as good as the exact number."""
_MIN_SIGNIFICANT = 3
_MANY_PLACES = 6
_MAX_ITEMS = 60
_ERAS = ("BC", "AD", "BCE", "CE")
_OPTIONS = tuple("ABCDEFGH")
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
_DIGITS = r"\d[\d, ]*(?:\.\d+)?|\.\d+"
_EVALUATED = re.compile(
    rf"\(?-?(?:\\\$|[€£¥₹])?(?:(?:{_DIGITS})(?:\\times10\^\{{-?\d+\}}|[eE]-?\d+)?|\d*\\frac\{{(\d+)\}}\{{(\d+)\}}|(\d+)/(\d+))\)?"
    r"(?:\\%|\^\\circ|\s*\\text\{(?!times|plus|minus|divided|over|choose).*)?"
)
_CONSTANTS = frozenset(("C", "c", "K", "k", "C_{1}", "c_{1}", "D"))


def compare(answer: Reading, gold: Reading, evaluated: bool = False) -> Comparison:
    """Returns whether an answer equals a gold, and the rule. `evaluated`: arithmetic must be carried out."""
    if evaluated and not _is_evaluated(answer.shown, gold.value):
        return Comparison(False, "not evaluated")
    if _spelling(answer) == _spelling(gold):
        return Comparison(True, "same page")
    if gold.shown in _OPTIONS and answer.shown == gold.shown.lower():
        return Comparison(True, "option")
    try:
        rule = _equal(answer.value, gold.value) or _without_percent(answer.value, gold.value)
    except Undecided:
        return Comparison(None, "no rule")
    except expression.SYMPY_ERRORS:
        return Comparison(None, "sympy cannot compute it")
    return Comparison(rule is not None, rule or f"differs as {type(gold.value).__name__.lower()}")


def _spelling(reading: Reading) -> str:
    """Returns what a page shows, without regard to what is set upright."""
    return re.sub(r"\\text\{([^{}]*)\}", r"\1", reading.shown)


def _is_evaluated(shown: str, gold: Value) -> bool:
    """Whether a page shows no arithmetic where the gold has rational numbers: each part is a number, perhaps with a
    unit."""
    gold = (named(gold) if isinstance(gold, Relation) else gold) or gold
    golds = gold.items if isinstance(gold, Several) else (gold,)
    if not all(isinstance(one, Number) and one.value.is_Rational for one in golds):
        return True
    body = (
        shown.rpartition("=")[2] if len(golds) == 1 else re.sub(r"^(?:\\\{|[(\[])|(?:\\\}|[)\]])$", "", shown)
    )
    for part in re.split(r", |,(?!\d{3}(?!\d))|\\text\{and\}", body) if len(golds) > 1 else [body]:
        match = _EVALUATED.fullmatch(part.strip())
        parts = [int(number) for number in match.groups() if number] if match else [0, 0]
        if parts and (math.gcd(*parts) != 1 or parts[-1] == 1):
            return False
    return True


def _equal(answer: Value, gold: Value) -> str | None:
    """Returns the rule by which the values are equal; None if they differ. Raises Undecided."""
    if _is_page(answer) or _is_page(gold):
        raise Undecided
    if isinstance(answer, Option) and not isinstance(gold, Option):
        if isinstance(gold, Expression) and _is_letter(gold):
            return "option" if answer.letter == str(gold.value).upper() else None
        return _equal(answer.value, gold) if answer.value is not None else None
    if isinstance(answer, Several) and answer.kind == "or" and not _is_many(gold):
        return "every form" if all(_equal(item, gold) for item in answer.items) else None
    if isinstance(answer, Relation) and not isinstance(gold, Relation):
        return _equal_chain(answer, gold)
    if isinstance(gold, Relation) and not isinstance(answer, Relation) and (value := named(gold)) is not None:
        return _equal(answer, value)
    return _RULES[type(gold)](answer, gold)


def _is_equal(answer: Value, gold: Value) -> bool:
    return _equal(answer, gold) is not None


def _without_percent(answer: Value, gold: Value) -> str | None:
    """Compares 50 % with 50, whole answers alone: as a part of something, 50 % is 0.5 and no more."""
    ours, golds = ((isinstance(value, Relation) and named(value)) or value for value in (answer, gold))
    for one, other in ((ours, golds), (golds, ours)):
        if isinstance(one, Quantity) and _is_percent(one.unit) and isinstance(other, Number):
            return "percent without its sign" if _equal(one.size, other) else None
    return None


def _is_page(value: Value) -> bool:
    return isinstance(value, Text) and value.kind == "page"


def _is_letter(value: Expression) -> bool:
    return bool(value.value.is_Symbol) and len(value.value.name) == 1


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
            if unit.name in _ERAS:
                return None
            if _is_percent(unit):
                return _same_number(Number(size.value / 100), gold)
            if unit.dimension == _ANGLE and gold.value.has(sympy.pi):
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
        return "number" if is_zero(difference) else None
    if gold.places is None:
        is_near = not gold.value.is_Integer and is_at_most(difference, _ENOUGH * abs(gold.value))
        return "number to twelve digits" if is_near else None
    last = sympy.Rational(10) ** -gold.places
    significant = _MANY_PLACES if answer.places is not None else _MIN_SIGNIFICANT
    is_longer = answer.places is None or answer.places > gold.places >= _MANY_PLACES
    if answer.value.is_Rational and answer.places is None:  # 561/449 is not 1.25
        significant += 1
        is_longer = bool({*sympy.factorint(answer.value.q, limit=10)} - {2, 5})
    is_rounded = (
        is_longer and abs(gold.value) >= last * 10 ** (significant - 1) and not answer.value.is_Integer
    )
    return "rounded" if is_rounded and is_at_most(difference, last / 2) else None


def _equal_expression(answer: Value, gold: Expression) -> str | None:
    match answer:
        case Number():
            return "expression" if same_expression(answer.value, gold.value) else None
        case Expression():
            if not answer.pending <= gold.pending:
                return None
            return (
                "expression"
                if same_expression(_with_constant_of(answer.value, gold.value), gold.value)
                else None
            )
        case Quantity():
            if gold.quantity is not None:
                return _equal(answer, gold.quantity)
            is_part = _is_percent(answer.unit)
            return (
                "expression without its unit"
                if not is_part and _equal_expression(answer.size, gold)
                else None
            )
        case Several(kind="set", items=(single,)):
            return _equal_expression(single, gold)
        case Several(
            kind="list" | "condition",
            items=(first, Relation(sides=(Expression(value=variable), *_)) as domain),
        ):
            is_domain = variable in gold.value.free_symbols and "=" not in domain.signs
            return _equal(first, gold) if is_domain else None  # x^2 + 1, x \in R
        case Several(kind="family", items=(first, _)) if len(gold.value.free_symbols) == 1:
            (variable,) = gold.value.free_symbols
            return _equal(put(first, expression.INTEGER, variable), gold)
        case Several(kind="tuple") | Matrix():
            return "vector" if (vector := _vector(gold)) and _equal(answer, vector) else None
        case Text(kind="words", text=text):
            return "product of letters" if _letters(text) == gold.value else None
    return None


def _letters(text: str) -> Any | None:
    return sympy.Mul(*map(expression.symbol, text)) if text.isalpha() else None


def _with_constant_of(value: Any, gold: Any) -> Any:
    """Returns an antiderivative with the gold's name for its constant: x^2 + c for x^2 + C."""
    ours, golds = (
        [
            symbol
            for symbol in one.free_symbols
            if symbol.name in _CONSTANTS and one.is_Add and symbol in one.args
        ]
        for one in (value, gold)
    )
    is_other = len(ours) == len(golds) == 1 and ours[0] not in gold.free_symbols
    return value.subs(ours[0], golds[0]) if is_other else value


def _vector(value: Expression) -> Several | None:
    """Returns the tuple that a sum of unit vectors stands for."""
    axes = [expression.symbol(f"\\hat{{{letter}}}") for letter in "ijk"]
    if not value.value.free_symbols & {*axes}:
        return None
    parts = [sympy.diff(value.value, axis) for axis in axes]
    if any(part.free_symbols & {*axes} for part in parts):
        return None
    rest = sympy.expand(value.value - sum(part * axis for part, axis in zip(parts, axes, strict=True)))
    if rest != 0:
        return None
    parts = parts[:2] if parts[2] == 0 else parts
    return Several(
        "tuple", tuple(Expression(part) if part.free_symbols else Number(part) for part in parts), "()"
    )


# ------------------------------------------------------------------------------------- quantities
_ANGLE, _RADIAN = (("angle", 1),), (("radian", 1),)


def _is_percent(unit: units.Unit) -> bool:
    return unit.dimension == (("fraction", 1),) and unit.scale == Fraction(1, 100)


def _equal_quantity(answer: Value, gold: Quantity) -> str | None:
    match answer:
        case Quantity():
            return _same_quantity(answer, gold)
        case Expression(quantity=Quantity() as quantity):
            return _equal_quantity(quantity, gold)
        case Number() if isinstance(gold.size, Number) and _is_percent(gold.unit):
            return "percent as a number" if _same_number(answer, Number(gold.size.value / 100)) else None
        case Number() if (
            isinstance(gold.size, Number) and gold.unit.dimension == _ANGLE and answer.value.has(sympy.pi)
        ):
            return (
                "angle in radians" if _same_number(answer, Number(gold.size.value * sympy.pi / 180)) else None
            )
        case Number() if gold.unit.name not in _ERAS:
            return "number without its unit" if _equal(answer, gold.size) else None
        case Expression():
            return "expression without its unit" if _equal(answer, gold.size) else None
        case Several(kind="compound"):
            total = _total(answer.items)
            return "compound" if total is not None and _equal_quantity(total, gold) else None
    return None


def _same_quantity(answer: Quantity, gold: Quantity) -> str | None:
    factor: Any = units.factor(answer.unit, gold.unit)
    if factor is not None:
        factor = sympy.Rational(factor.numerator, factor.denominator)
    elif (answer.unit.dimension, gold.unit.dimension) in ((_ANGLE, _RADIAN), (_RADIAN, _ANGLE)):
        factor = sympy.pi / 180 if gold.unit.dimension == _RADIAN else 180 / sympy.pi
    if factor is None or factor == 1:
        return "quantity" if factor == 1 and _equal(answer.size, gold.size) else None
    return "quantity in another unit" if _equal(_times(answer.size, factor), gold.size) else None


def _times(size: Number | Expression, factor: Any) -> Number | Expression:
    return Number(size.value * factor) if isinstance(size, Number) else Expression(size.value * factor)


def _total(items: Sequence[Value]) -> Quantity | None:
    """Returns the sum of quantities of one dimension in the unit of the last one; None for other values."""
    quantities = [item for item in items if isinstance(item, Quantity) and isinstance(item.size, Number)]
    if not quantities or len(quantities) < len(items):
        return None
    last, total = quantities[-1].unit, sympy.Integer(0)
    for item in quantities:
        if item.unit.dimension != last.dimension:
            return None
        total += item.size.value * sympy.Rational(str(item.unit.scale / last.scale))
    return Quantity(Number(total), last)


# ------------------------------------------------------------------------------------- relations
def _equal_chain(chain: Relation, gold: Value) -> str | None:
    """Compares a chain with a gold that is no relation: every side but names must be right."""
    if chain.modulus is not None:
        return "residue" if _is_residue(chain, gold) else None
    if (golds := as_set(gold)) is not None and (ours := as_set(chain)) is not None:
        return _same_set(ours, golds)
    if not {*chain.signs} <= {"=", "~"}:
        return None
    if isinstance(gold, Text) or (isinstance(gold, Expression) and str(gold.value) in _OPTIONS):
        return "value of a chain" if all(_equal(side, gold) for side in chain.sides) else None
    names = names_a_number if isinstance(gold, Number | Quantity) else is_name
    sides: list[Value] = []
    for place, side in enumerate(chain.sides):
        is_last = place == len(chain.sides) - 1
        if (names(side) and not is_last) or (is_name(side) and is_last and sides):
            continue
        if sides and chain.signs[place - 1] == "~" and _is_rounding(side, sides[-1]):
            continue
        sides.append(side)
    return "value of a chain" if sides and all(_equal(side, gold) for side in sides) else None


def _is_residue(chain: Relation, gold: Value) -> bool:
    """Whether a residue with its modulus, `12 (mod 13)`, is the gold, a number from 0 to the modulus."""
    is_named = len(chain.sides) == 1 or (chain.signs in (("==",), ("=",)) and is_name(chain.sides[0]))
    if not is_named or not isinstance(gold, Number) or not isinstance(chain.modulus, Number):
        return False
    is_in_range = gold.value.is_Integer and 0 <= gold.value < chain.modulus.value
    return bool(is_in_range) and _equal(chain.sides[-1], gold) is not None


def _is_rounding(side: Value, value: Value) -> bool:
    """Whether a decimal behind `about` may be a rounding of the value before it, which counts."""
    if (
        not (isinstance(side, Number) and isinstance(value, Number))
        or side.places is None
        or value.value.is_Integer
    ):
        return False
    ratio = sympy.N(side.value / value.value) if value.value != 0 else sympy.Integer(0)
    return bool(ratio.is_real and 0.1 < ratio < 10)


def _equal_relation(answer: Value, gold: Relation) -> str | None:
    golds, ours = as_set(gold), as_set(answer)
    if golds is not None and ours is not None:
        return _same_set(ours, golds)
    if not isinstance(answer, Relation) and {*gold.signs} <= {"=", "~"} and len(gold.sides) > 1:
        are_numbers = all(isinstance(side, Number | Quantity) for side in gold.sides)  # 0.56 = 56%
        return (
            "side of a chain" if are_numbers and any(_is_equal(answer, side) for side in gold.sides) else None
        )
    if not isinstance(answer, Relation):
        return "residue" if len(gold.sides) == 1 and _equal(answer, gold.sides[0]) else None
    if gold.modulus is not None or answer.modulus is not None:
        return _same_congruence(answer, gold)
    if {*answer.signs} == {*gold.signs} == {"="}:
        return _same_equation(answer, gold)
    if answer.signs == gold.signs and all(map(_is_equal, answer.sides, gold.sides)):
        return "relation"
    is_solved = golds is not None and not _is_negated(answer)
    return (
        None
        if is_solved or len(answer.signs) != 1 or len(gold.signs) != 1
        else _same_inequality(answer, gold)
    )


def _is_negated(relation: Relation) -> bool:
    """Whether an inequality is as good as solved: -x > -3."""
    left = relation.sides[0]
    return (
        isinstance(left, Expression)
        and bool((-left.value).is_Symbol)
        and isinstance(relation.sides[-1], Number)
    )


def _same_congruence(answer: Relation, gold: Relation) -> str | None:
    if answer.modulus is None or gold.modulus is None or not _equal(answer.modulus, gold.modulus):
        return None
    if {*answer.signs, *gold.signs} - {"==", "="} or len(answer.sides) > 2:
        return None
    if len(answer.sides) == len(gold.sides) == 2 and not _same_name(answer.sides[0], gold.sides[0]):
        return None
    match answer.sides[-1], gold.sides[-1], gold.modulus:
        case Number(value=one), Number(value=other), Number(value=modulus):
            return "congruence" if (one - other) % modulus == 0 else None
    return "congruence" if _equal(answer.sides[-1], gold.sides[-1]) else None


def _same_equation(answer: Relation, gold: Relation) -> str | None:
    ours, golds = named(answer), named(gold)
    if ours is not None and golds is not None:
        names = [one.sides[0] if is_name(one.sides[0]) else one.sides[-1] for one in (answer, gold)]
        if _same_name(*names):
            between = [side for side in answer.sides[1:-1] if not is_name(side)]
            return "value of a name" if all(_equal(side, golds) for side in [*between, ours]) else None
    if isinstance(golds, Number | Quantity) or len(answer.sides) != 2 or len(gold.sides) != 2:
        return None  # 2x = 10 is not yet x = 5
    one, other = _left_less_right(answer), _left_less_right(gold)
    if one is None or other is None:
        sides = (answer.sides, answer.sides[::-1])
        return "sides" if any(all(map(_is_equal, order, gold.sides)) for order in sides) else None
    one, other = (sympy.together(value).as_numer_denom()[0] for value in (one, other))
    return "equation" if constant_ratio(one, other) is not None else None


def _same_name(one: Value, other: Value) -> bool:
    if isinstance(one, Text) and isinstance(other, Text):
        return one.text == other.text
    return type(one) is type(other) and _is_equal(one, other)


def _left_less_right(relation: Relation) -> Any | None:
    """Returns the left side less the right side; None unless both are numbers or expressions."""
    left, right = relation.sides
    if not (isinstance(left, Number | Expression) and isinstance(right, Number | Expression)):
        return None
    return left.value - right.value


def _same_inequality(answer: Relation, gold: Relation) -> str | None:
    """Compares `2x < y` and `y > 2x`: all on one side, up to a factor that turns the sign if it is negative."""
    one, other = _left_less_right(answer), _left_less_right(gold)
    if one is None or other is None or (ratio := constant_ratio(one, other)) is None:
        return None
    sign = answer.signs[0]
    sign = _TURNED.get(sign, "") if sympy.N(ratio) < 0 else sign
    return "inequality" if sign == gold.signs[0] and sign in _TURNED else None


# ------------------------------------------------------------------------------------- sets of numbers
def _equal_set(answer: Value, gold: Value) -> str | None:
    ours, golds = as_set(answer), as_set(gold)
    if ours is None and isinstance(answer, Several) and answer.kind == "list":
        ours = RealSet([Several("set", answer.items)])
    return None if ours is None or golds is None else _same_set(ours, golds)


def _same_set(ours: RealSet, golds: RealSet) -> str | None:
    if ours.name is not None and golds.name is not None and not _same_name(ours.name, golds.name):
        return None
    if same_numbers(ours, golds):
        return "set of numbers"
    return "set of numbers" if _paired(_one_set(ours.parts), _one_set(golds.parts), _same_part) else None


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
    ends = ((answer.low, gold.low), (answer.high, gold.high))
    return all(
        _is_equal(one, other) and (ours == golds or is_infinite(other))
        for (one, other), ours, golds in zip(ends, answer.brackets, gold.brackets, strict=True)
    )


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


# ------------------------------------------------------------------------------------- several values
def _equal_several(answer: Value, gold: Several) -> str | None:
    if gold.kind in ("tuple", "compound", "condition", "family"):
        return _equal_ordered(answer, gold)
    if gold.kind != "set" and (golds := as_set(gold)) is not None and (ours := as_set(answer)) is not None:
        return _same_set(ours, golds)
    if isinstance(answer, Union):
        return _same_set(RealSet([*answer.parts]), RealSet([Several("set", _items(gold) or gold.items)]))
    are_options = all(isinstance(item, Expression) and str(item.value) in _OPTIONS for item in gold.items)
    if isinstance(answer, Several) and (answer.kind, gold.kind) == ("or", "list") and are_options:
        return None  # A or C is no choice of A and C
    if isinstance(answer, Text) and answer.kind == "name":  # AC for A, C
        letters = [
            str(item.value) for item in gold.items if isinstance(item, Expression) and _is_letter(item)
        ]
        return "options" if letters and sorted(letters) == list(answer.text) else None
    total = _total(gold.items) if len(gold.items) > 1 else None
    is_whole = isinstance(answer, Quantity) or (isinstance(answer, Several) and answer.kind == "compound")
    if is_whole and total is not None:  # 150 minutes for 2 hours and 30 minutes
        return "compound" if _equal(answer, total) else None
    items, golds_items = _items(answer, gold.kind == "list"), _items(gold) or gold.items
    if items is None:
        return _equal(answer, gold.items[0]) if len(gold.items) == 1 else None
    rule = {"set": "set", "or": "alternatives"}.get(gold.kind, "list")
    if (ordered := _in_order(answer, gold)) is not None:
        return rule if len(ordered[0]) == len(ordered[1]) and all(map(_is_equal, *ordered)) else None
    return rule if _paired(items, golds_items, _is_equal) else None


def _items(value: Value, is_answer: bool = False) -> tuple[Value, ...] | None:
    """Returns the members of a list, alternatives or a set, and where the gold is a list those of a tuple. `x = 1, 2`
    names each of them, as `x = \\pm 1` does."""
    match value:
        case Relation() if (inner := named(value)) is not None:
            return _items(inner)
        case Several(kind="tuple", brackets="()") if is_answer:
            return value.items  # (1, 2, 3) for 1, 2, 3
        case Matrix(kind="cases") if is_answer:
            return tuple(row[0] for row in value.rows if len(row) == 1)
        case Several(kind="list" | "or" | "set"):
            items: list[Value] = []
            for item in value.items:
                inner = named(item) if isinstance(item, Relation) else item
                is_nested = isinstance(inner, Several) and inner.kind in ("list", "or")
                items += inner.items if is_nested and isinstance(inner, Several) else [item]
            return tuple(items)
    return None


def _in_order(answer: Value, gold: Several) -> tuple[Sequence[Value], Sequence[Value]] | None:
    """Returns both sides in the order of the gold's names if only one side has names, `x = 1, y = 2` and `1, 2`, or
    nouns; None where the order does not matter."""
    ours = _items(answer, is_answer=True)
    if ours is None:
        return None
    our_names, names = _names(ours), _names(gold.items)
    if our_names is not None and names is None and gold.kind == "tuple":
        return [value for _, value in sorted(our_names)], gold.items
    if isinstance(answer, Relation) and names is not None and isinstance(answer.sides[0], Several):
        own = [str(item.value) for item in answer.sides[0].items if isinstance(item, Expression)]
        return (ours, [value for _, value in sorted(names)]) if own == sorted(own) else None
    if our_names is None and names is not None:
        return ours, [value for _, value in names]
    is_counted = (
        all(isinstance(item, Quantity) for item in gold.items) and len({str(item) for item in gold.items}) > 1
    )
    return (ours, gold.items) if is_counted and all(isinstance(item, Number) for item in ours) else None


def _names(items: Sequence[Value]) -> list[tuple[str, Value]] | None:
    """Returns the names of `x = 1, y = 2` with their values; None if they are not all different names."""
    found = [
        (str(item.sides[0]), named(item))
        for item in items
        if isinstance(item, Relation) and item.signs == ("=",)
    ]
    pairs = [(name, value) for name, value in found if value is not None]
    return pairs if len(pairs) == len(items) > 1 and len({name for name, _ in pairs}) == len(pairs) else None


def _equal_ordered(answer: Value, gold: Several) -> str | None:
    match answer:
        case Matrix(kind="matrix") if (
            gold.brackets == "()"
            and not any(map(is_infinite, gold.items))
            and (line := _line(answer)) is not None
        ):
            return _equal_ordered(Several("tuple", line, gold.brackets), gold)
        case Expression() if (vector := _vector(answer)) is not None:
            return _equal_ordered(vector, gold)
        case Several(kind="list") if (
            gold.kind == "tuple" and (ordered := _in_order(answer, gold)) is not None
        ):
            return gold.kind if len(ordered[0]) == len(ordered[1]) and all(map(_is_equal, *ordered)) else None
        case Quantity() | Number() if gold.kind == "compound" and isinstance(gold.items[-1], Text):
            return _equal(answer, gold.items[0])  # 10 for 10 m north
        case Quantity() if gold.kind == "compound" and (total := _total(gold.items)) is not None:
            return "compound" if _equal(answer, total) else None
        case Several(kind="list" | "compound") if (
            gold.kind == "compound" and (total := _total(gold.items)) is not None
        ):
            our_total = _total(answer.items)
            return "compound" if our_total is not None and _equal(our_total, total) else None
    golds, ours = as_set(gold), as_set(answer)
    if (
        golds is not None
        and ours is not None
        and not (isinstance(answer, Several) and answer.kind == "tuple")
    ):
        return _same_set(ours, golds) if not (isinstance(answer, Several) and answer.kind == "set") else None
    if not isinstance(answer, Several) or (answer.kind, answer.brackets) != (gold.kind, gold.brackets):
        return None
    if len(answer.items) != len(gold.items):
        return None
    if all(map(_is_equal, answer.items, gold.items)):
        return gold.kind
    if gold.kind == "family" and _equal(answer.items[1], gold.items[1]):  # k may as well be -k or k + 1
        whole = expression.INTEGER
        others = (-whole, whole + 1, whole - 1, 1 - whole, -1 - whole)
        return (
            "family"
            if any(_equal(put(answer.items[0], whole, other), gold.items[0]) for other in others)
            else None
        )
    return None


def _line(matrix: Matrix) -> tuple[Value, ...] | None:
    """Returns the cells of a row or a column."""
    if len(matrix.rows) == 1:
        return matrix.rows[0]
    return tuple(row[0] for row in matrix.rows) if all(len(row) == 1 for row in matrix.rows) else None


def _equal_matrix(answer: Value, gold: Matrix) -> str | None:
    match answer:
        case Several(kind="list") if gold.kind == "cases":
            return _equal_matrix(Matrix(tuple((item,) for item in answer.items), "cases"), gold)  # a system
        case Several(kind="tuple") if (line := _line(gold)) is not None:
            return _equal_ordered(answer, Several("tuple", line, answer.brackets))
        case Expression() if (vector := _vector(answer)) is not None:
            return _equal_matrix(vector, gold)
    if not isinstance(answer, Matrix) or answer.kind != gold.kind or len(answer.rows) != len(gold.rows):
        return None
    if gold.kind == "cases":
        ours, golds = ([Several("tuple", row) for row in matrix.rows] for matrix in (answer, gold))
        return "cases" if _paired(ours, golds, _is_equal) else None
    pairs = zip(answer.rows, gold.rows, strict=True)
    return (
        "matrix"
        if all(len(one) == len(other) and all(map(_is_equal, one, other)) for one, other in pairs)
        else None
    )


def _equal_ratio(answer: Value, gold: Ratio) -> str | None:
    match answer, gold.terms:
        case Clock(half=""), _:
            hours, minutes = divmod(answer.minutes, 60)
            return _equal_ratio(Ratio((Number(sympy.Integer(hours)), Number(sympy.Integer(minutes)))), gold)
        case Number(), (Number() as first, Number() as second) if second.value != 0:
            return "ratio as quotient" if _same_number(answer, Number(first.value / second.value)) else None
    if not isinstance(answer, Ratio) or len(answer.terms) != len(gold.terms):
        return None
    ours, golds = _terms(answer), _terms(gold)
    if ours is None or golds is None:
        return "ratio" if all(map(_is_equal, answer.terms, gold.terms)) else None
    are_same = all(
        same_expression(one * golds[0], ours[0] * other) for one, other in zip(ours, golds, strict=True)
    )
    return "ratio" if are_same and any(value != 0 for value in ours) else None


def _terms(ratio: Ratio) -> list[Any] | None:
    """Returns the terms of a ratio as numbers of one unit; None if they have no common one."""
    sizes = [term for term in ratio.terms if isinstance(term, Number | Expression)]
    quantities = [term for term in ratio.terms if isinstance(term, Quantity)]
    if len(sizes) == len(ratio.terms):
        return [term.value for term in sizes]
    if len(quantities) < len(ratio.terms) or len({term.unit.dimension for term in quantities}) > 1:
        return None
    return [term.size.value * sympy.Rational(str(term.unit.scale)) for term in quantities]


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
    if isinstance(answer, Expression) and _is_letter(answer):
        return "option" if str(answer.value).upper() == gold.letter.upper() else None
    return _equal(answer, gold.value) if gold.value is not None else None


def _equal_text(answer: Value, gold: Text) -> str | None:
    match answer:
        case Text():
            return gold.kind if answer == gold else None
        case Number() if gold.kind == "numeral":
            return "numeral without its base" if str(answer.value) == gold.text.partition("_")[0] else None
        case Expression() if gold.kind == "words":
            return "product of letters" if _letters(gold.text) == answer.value else None
        case Several(kind="list") if gold.kind == "name":
            return _equal_several(gold, answer) and "options"
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
