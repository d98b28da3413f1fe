r"""Says by which rule two values are equal; the type of the gold chooses it.

What the gold does not mention is allowed where the rule of its type says so: a unit on a bare number (and the number
without its unit), a name in front (`x = 5` for 5), the label of an option. Everything else that is there must be equal.

Numbers are compared exactly. A decimal gold of three digits or more may be a rounded number: an exact answer that
rounds to it is right, and a decimal one if the gold has six decimals.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import sympy

from reward.graders.math import relations, units
from reward.graders.math.arithmetic import INTEGER, SYMPY_ERRORS, symbol
from reward.graders.math.equality import Undecided, same_expression, same_number, with_constant_of
from reward.graders.math.reading import Reading
from reward.graders.math.relations import OPTIONS, named
from reward.graders.math.rules import Rule
from reward.graders.math.sets import RealSet, as_set, is_natural, paired, same_set
from reward.graders.math.spelled import is_code, spelling, without_upright
from reward.graders.math.values import (
    Ambiguous,
    Clock,
    Expression,
    Interval,
    Matrix,
    Number,
    OptionLetter,
    Quantity,
    Ratio,
    Relation,
    Several,
    Text,
    Union,
    Value,
    number_or_expression,
    put,
)

_ERAS = ("BC", "AD", "BCE", "CE")
_ANGLE, _RADIAN, _FRACTION = (("angle", 1),), (("radian", 1),), (("fraction", 1),)

_TEMPERATURES: dict[tuple[tuple[str, int], ...], Any] = {
    ((name, 1),): (sympy.Rational(scale), sympy.Rational(zero))
    for name, scale, zero in (("K", 1, 0), ("celsius", 1, "273.15"), ("fahrenheit", "5/9", "45967/180"))
}
"""Kelvins in a degree, and at zero degrees."""


def compare(answer: Reading, gold: Reading) -> Rule:
    """Returns the rule that accepts an answer, or that says why not."""
    if answer.shown == gold.shown or without_upright(answer.shown) == without_upright(gold.shown):
        return Rule.SAME_PAGE
    ours, golds = spelling(answer.shown), spelling(gold.shown)
    if is_code(golds) or ("-" in golds and ours == golds):
        return Rule.SAME_TEXT if ours == golds else Rule.DIFFERS
    if gold.shown in OPTIONS and answer.shown == gold.shown.lower():
        return Rule.OPTION
    rules = [_decided(one, other) for one, other in _meanings(answer.value, gold.value)]
    return next((rule for rule in rules if rule.accepts), rules[0])


def _meanings(answer: Value | Ambiguous, gold: Value | Ambiguous) -> Iterator[tuple[Value, Value]]:
    """Yields what is compared: both sides in one notation, or both in the other; a gold with a comma is a number."""
    ours, golds = (
        (value.first, value.second, value.of) if isinstance(value, Ambiguous) else (value, value, "")
        for value in (answer, gold)
    )
    yield ours[0], golds[0]
    if ours[2] or golds[2] == "notation":
        yield ours[1], golds[1] if golds[2] == "notation" else golds[0]


def _decided(answer: Value, gold: Value) -> Rule:
    try:
        return _equal(answer, gold) or _without_percent(answer, gold) or Rule.DIFFERS
    except Undecided:
        return Rule.NO_RULE
    except SYMPY_ERRORS:
        return Rule.NOT_COMPUTED


def _equal(answer: Value, gold: Value) -> Rule | None:
    """Returns the rule by which the values are equal; None if they differ. Raises Undecided."""
    if _is_page(answer) or _is_page(gold):
        raise Undecided
    if isinstance(answer, OptionLetter) and not isinstance(gold, OptionLetter):
        if isinstance(gold, Expression) and _is_letter(gold):
            return Rule.OPTION.when(answer.letter == str(gold.value).upper())
        return _equal(answer.value, gold) if answer.value is not None else None
    if isinstance(answer, Several) and answer.kind == "or" and not _is_many(gold):
        return Rule.EVERY_FORM.when(all(_equal(item, gold) for item in answer.items))
    if isinstance(answer, Relation) and not isinstance(gold, Relation):
        if answer.modulus is not None:
            return relations.residue(answer, gold, _equal)
        if _are_sets(answer, gold):
            return _set_rule(answer, gold)
        return relations.value_of_chain(answer, gold, _equal)
    if isinstance(gold, Relation) and not isinstance(answer, Relation) and (value := named(gold)) is not None:
        return _equal(answer, value)
    return _RULES[type(gold)](answer, gold)


def _without_percent(answer: Value, gold: Value) -> Rule | None:
    """Compares 50 % with 50, whole answers alone: as a part of something, 50 % is 0.5 and no more."""
    ours, golds = ((isinstance(value, Relation) and named(value)) or value for value in (answer, gold))
    for one, other in ((ours, golds), (golds, ours)):
        if isinstance(one, Quantity) and _is_percent(one.unit) and isinstance(other, Number):
            return Rule.PERCENT_WITHOUT_SIGN.when(_equal(one.size, other))
    return None


def _is_page(value: Value) -> bool:
    return isinstance(value, Text) and value.kind == "page"


def _is_letter(value: Expression) -> bool:
    return bool(value.value.is_Symbol) and len(value.value.name) == 1


def _is_many(gold: Value) -> bool:
    """Whether a gold may have several values, so that `or` is no hedge."""
    if isinstance(gold, Several):
        return gold.kind in ("or", "list", "set", "family")
    is_inequality = isinstance(gold, Relation) and gold.signs[:1] != ("=",)
    return is_inequality or isinstance(gold, Union | Interval | Matrix)


# ------------------------------------------------------------------------------------- numbers and expressions
def _equal_number(answer: Value, gold: Number) -> Rule | None:
    match answer:
        case Number():
            return same_number(answer, gold)
        case Quantity(size=Number() as size, unit=unit):
            if unit.name in _ERAS:
                return None
            if _is_percent(unit):
                return same_number(Number(size.value / 100), gold)
            if unit.dimension == _ANGLE and gold.value.has(sympy.pi):
                return same_number(Number(size.value * sympy.pi / 180), gold)
            return Rule.WITHOUT_UNIT.when(same_number(size, gold))
        case Ratio(terms=(Number() as first, Number() as second)) if second.value != 0:
            return Rule.RATIO_AS_QUOTIENT.when(same_number(Number(first.value / second.value), gold))
        case Several(kind="set", items=(Number() as single,)):
            return same_number(single, gold)
    return None


def _equal_expression(answer: Value, gold: Expression) -> Rule | None:
    match answer:
        case Number():
            return Rule.EXPRESSION.when(same_expression(answer.value, gold.value))
        case Expression():
            if not answer.pending <= gold.pending:
                return None
            ours = with_constant_of(answer.value, gold.value)
            return Rule.EXPRESSION.when(same_expression(ours, gold.value))
        case Quantity():
            if gold.quantity is not None:
                return _equal(answer, gold.quantity)
            return Rule.WITHOUT_UNIT.when(
                not _is_percent(answer.unit) and _equal_expression(answer.size, gold)
            )
        case Several(
            kind="list" | "condition",
            items=(first, Relation(sides=(Expression(value=variable), *_)) as domain),
        ):
            is_domain = variable in gold.value.free_symbols and is_natural(domain, gold.value)
            return _equal(first, gold) if is_domain else None  # x^2 + 1, x \in R
        case Several(kind="family", items=(first, _)) if len(gold.value.free_symbols) == 1:
            (variable,) = gold.value.free_symbols
            return _equal(put(first, INTEGER, variable), gold)
        case Several(kind="tuple") | Matrix():
            return Rule.VECTOR.when((vector := _vector(gold)) and _equal(answer, vector))
        case Text(kind="words"):
            return None
    return None


def _vector(value: Expression, size: int = 2) -> Several | None:
    """Returns the tuple of two or three parts that a sum of unit vectors stands for."""
    axes = [symbol(f"\\hat{{{letter}}}") for letter in "ijk"]
    if not value.value.free_symbols & {*axes}:
        return None
    parts = [sympy.diff(value.value, axis) for axis in axes]
    if any(part.free_symbols & {*axes} for part in parts):
        return None
    if sympy.expand(value.value - sum(part * axis for part, axis in zip(parts, axes, strict=True))) != 0:
        return None
    parts = parts[:2] if parts[2] == 0 and size != 3 else parts
    return Several("tuple", tuple(map(number_or_expression, parts)), "()")


# ------------------------------------------------------------------------------------- quantities
def _is_percent(unit: units.Unit) -> bool:
    return unit.dimension == _FRACTION and unit.scale == Fraction(1, 100)


def _equal_quantity(answer: Value, gold: Quantity) -> Rule | None:
    match answer:
        case Quantity():
            return _same_quantity(answer, gold)
        case Expression(quantity=Quantity() as quantity):
            return _equal_quantity(quantity, gold)
        case Number() if isinstance(gold.size, Number) and _is_percent(gold.unit):
            return Rule.PERCENT_AS_NUMBER.when(same_number(answer, Number(gold.size.value / 100)))
        case Number() if (
            isinstance(gold.size, Number) and gold.unit.dimension == _ANGLE and answer.value.has(sympy.pi)
        ):
            return Rule.ANGLE_IN_RADIANS.when(same_number(answer, Number(gold.size.value * sympy.pi / 180)))
        case Number() if gold.unit.name in _ERAS:
            return None
        case Number() | Expression():
            return Rule.WITHOUT_UNIT.when(_equal(answer, gold.size))
        case Several(kind="compound" | "list"):
            are_different = len({item.unit for item in answer.items if isinstance(item, Quantity)}) > 1
            total = _total(answer.items) if are_different else None
            return Rule.COMPOUND.when(total is not None and _equal_quantity(total, gold))
    return None


def _same_quantity(answer: Quantity, gold: Quantity) -> Rule | None:
    ours, golds = (_TEMPERATURES.get(unit.dimension) for unit in (answer.unit, gold.unit))
    if ours and golds and ours != golds:  # 77 °F for 25 °C
        kelvins = answer.size.value * ours[0] + ours[1]
        return Rule.OTHER_UNIT.when(_equal(number_or_expression((kelvins - golds[1]) / golds[0]), gold.size))
    factor: Any = units.factor(answer.unit, gold.unit)
    if factor is not None:
        factor = sympy.Rational(factor.numerator, factor.denominator)
    elif (answer.unit.dimension, gold.unit.dimension) in ((_ANGLE, _RADIAN), (_RADIAN, _ANGLE)):
        factor = sympy.pi / 180 if gold.unit.dimension == _RADIAN else 180 / sympy.pi
    if factor is None or factor == 1:
        return Rule.QUANTITY.when(factor == 1 and _equal(answer.size, gold.size))
    size = number_or_expression(answer.size.value * factor)
    return Rule.OTHER_UNIT.when(_equal(size, gold.size))


def _total(items: Sequence[Value]) -> Quantity | None:
    """Returns the sum of quantities of one dimension in the unit of the last one; None for other values."""
    quantities = [item for item in items if isinstance(item, Quantity) and isinstance(item.size, Number)]
    if len(quantities) < len(items) or len({item.unit.dimension for item in quantities}) != 1:
        return None
    last = quantities[-1].unit
    sizes = (item.size.value * sympy.Rational(str(item.unit.scale / last.scale)) for item in quantities)
    return Quantity(Number(sum(sizes)), last)


# ------------------------------------------------------------------------------------- relations and sets of numbers
def _are_sets(answer: Value, gold: Value) -> bool:
    return as_set(gold) is not None and as_set(answer) is not None


def _set_rule(answer: Value, gold: Value) -> Rule | None:
    ours, golds = as_set(answer), as_set(gold)
    return None if ours is None or golds is None else same_set(ours, golds, _equal)


def _equal_relation(answer: Value, gold: Relation) -> Rule | None:
    if _are_sets(answer, gold):
        return _set_rule(answer, gold)
    if isinstance(answer, Relation):
        is_solved = as_set(gold) is not None and not relations.is_negated(answer)
        rule = relations.same_relation(answer, gold, _equal)
        return None if is_solved and rule is Rule.INEQUALITY else rule
    if {*gold.signs} <= {"=", "~"} and len(gold.sides) > 1:
        are_numbers = all(isinstance(side, Number | Quantity) for side in gold.sides)  # 0.56 = 56%
        return Rule.SIDE_OF_A_CHAIN.when(are_numbers and any(_equal(answer, side) for side in gold.sides))
    return Rule.RESIDUE.when(len(gold.sides) == 1 and _equal(answer, gold.sides[0]))


# ------------------------------------------------------------------------------------- several values
def _equal_several(answer: Value, gold: Several) -> Rule | None:
    if gold.kind in ("tuple", "compound", "condition", "family"):
        return _equal_ordered(answer, gold)
    if gold.kind != "set" and _are_sets(answer, gold):
        return _set_rule(answer, gold)
    if isinstance(answer, Union):
        points = Several("set", _items(gold) or gold.items)
        return same_set(RealSet([*answer.parts]), RealSet([points]), _equal)
    are_options = all(isinstance(item, Expression) and str(item.value) in OPTIONS for item in gold.items)
    if isinstance(answer, Several) and (answer.kind, gold.kind) == ("or", "list") and are_options:
        return None  # A or C is no choice of A and C
    if isinstance(answer, Text) and answer.kind == "name":  # AC for A, C
        letters = [
            str(item.value) for item in gold.items if isinstance(item, Expression) and _is_letter(item)
        ]
        return Rule.OPTIONS.when(letters and sorted(letters) == sorted(answer.text))
    total = _total(gold.items) if len(gold.items) > 1 else None
    is_whole = isinstance(answer, Quantity) or (isinstance(answer, Several) and answer.kind == "compound")
    if is_whole and total is not None:  # 150 minutes for 2 hours and 30 minutes
        return Rule.COMPOUND.when(_equal(answer, total))
    items, golds = _items(answer, gold.kind == "list"), _items(gold) or gold.items
    if items is not None and len({*golds}) == len(golds):
        items = tuple(dict.fromkeys(items))
    if items is None:
        return _equal(answer, gold.items[0]) if len(gold.items) == 1 else None
    rule = Rule(gold.kind)
    if (ordered := _in_order(answer, gold)) is not None:
        return rule.when(_all_equal(*ordered))
    return rule.when(paired(items, golds, _equal))


def _all_equal(ours: Sequence[Value], golds: Sequence[Value]) -> bool:
    return len(ours) == len(golds) and all(map(_equal, ours, golds))


def _items(value: Value, is_answer: bool = False) -> tuple[Value, ...] | None:
    """Returns the members of a list, alternatives or a set, and where the gold is a list those of a tuple. `x = 1, 2`
    names each of them, as `x = \\pm 1` does."""
    match value:
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
        letters = "".join(sorted(name for name, _ in our_names))
        is_row = letters in string.ascii_lowercase or not letters.isalpha()
        return [value for _, value in (sorted(our_names) if is_row else our_names)], gold.items
    if our_names is None and names is not None:
        return ours, [value for _, value in names]
    are_counted = all(isinstance(item, Quantity) for item in gold.items) and len({*map(str, gold.items)}) > 1
    return (ours, gold.items) if are_counted and all(isinstance(item, Number) for item in ours) else None


def _names(items: Sequence[Value]) -> list[tuple[str, Value]] | None:
    """Returns the names of `x = 1, y = 2` with their values; None if they are not all different names."""
    found = [
        (str(getattr(item.sides[0], "value", item.sides[0])), named(item))
        for item in items
        if isinstance(item, Relation) and item.signs == ("=",)
    ]
    pairs = [(name, value) for name, value in found if value is not None]
    return pairs if len(pairs) == len(items) > 1 and len({name for name, _ in pairs}) == len(pairs) else None


def _equal_ordered(answer: Value, gold: Several) -> Rule | None:
    """Compares with a tuple, a compound quantity, a value under a condition or a family."""
    if gold.kind == "compound" and not isinstance(answer, Matrix | Expression):
        if isinstance(answer, Quantity | Number) and isinstance(gold.items[-1], Text):
            return _equal(answer, gold.items[0])  # 10 for 10 m north
        is_several = isinstance(answer, Several) and answer.kind in ("list", "compound")
        ours = _total(answer.items if isinstance(answer, Several) and is_several else (answer,))
        if (total := _total(gold.items)) is not None:
            return Rule.COMPOUND.when(ours is not None and _equal(ours, total))
    match answer:
        case Expression() if (vector := _vector(answer, len(gold.items))) is not None:
            return _equal_ordered(vector, gold)
        case Several(kind="list") | Matrix(kind="cases") if (
            gold.kind == "tuple" and (ordered := _in_order(answer, gold)) is not None
        ):
            return Rule.TUPLE.when(_all_equal(*ordered))
        case Several(kind="set"):
            return None
        case Several(kind="tuple"):
            pass
        case _ if _are_sets(answer, gold):
            return _set_rule(answer, gold)
    if not isinstance(answer, Several) or (answer.kind, answer.brackets) != (gold.kind, gold.brackets):
        return None
    if _all_equal(answer.items, gold.items):
        return Rule(gold.kind)
    if gold.kind == "family" and answer.items[1] == gold.items[1] == Expression(symbol("\\mathbb{Z}")):
        # k may as well be -k or k + 1
        others = (sign * INTEGER + shift for sign in (1, -1) for shift in range(-5, 6))
        return Rule.FAMILY.when(
            any(_equal(put(answer.items[0], INTEGER, other), gold.items[0]) for other in others)
        )
    return None


def _line(matrix: Matrix) -> tuple[Value, ...] | None:
    """Returns the cells of a row or a column."""
    if len(matrix.rows) == 1:
        return matrix.rows[0]
    return tuple(row[0] for row in matrix.rows) if all(len(row) == 1 for row in matrix.rows) else None


def _equal_matrix(answer: Value, gold: Matrix) -> Rule | None:
    match answer:
        case Several(kind="list") if gold.kind == "cases":
            return _equal_matrix(Matrix(tuple((item,) for item in answer.items), "cases"), gold)  # a system
        case Several(kind="tuple") if (line := _line(gold)) is not None:
            return _equal_ordered(answer, Several("tuple", line, answer.brackets))
        case Expression() if (vector := _vector(answer)) is not None:
            return _equal_matrix(vector, gold)
    if not isinstance(answer, Matrix) or answer.kind != gold.kind:
        return None
    ours, golds = ([Several("tuple", row) for row in matrix.rows] for matrix in (answer, gold))
    return Rule(gold.kind).when(
        paired(ours, golds, _equal) if gold.kind == "cases" else _all_equal(ours, golds)
    )


def _equal_ratio(answer: Value, gold: Ratio) -> Rule | None:
    match answer, gold.terms:
        case Clock(half=""), _:
            return _equal_ratio(_hours_to_minutes(answer), gold)
        case Number(), (Number() as first, Number() as second) if second.value != 0:
            return Rule.RATIO_AS_QUOTIENT.when(same_number(answer, Number(first.value / second.value)))
    if not isinstance(answer, Ratio) or len(answer.terms) != len(gold.terms):
        return None
    ours, golds = _terms(answer), _terms(gold)
    if ours is None or golds is None:
        return Rule.RATIO.when(all(map(_equal, answer.terms, gold.terms)))
    pairs = zip(ours, golds, strict=True)
    are_same = all(same_expression(one * golds[0], ours[0] * other) for one, other in pairs)
    return Rule.RATIO.when(are_same and any(value != 0 for value in ours))


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
def _hours_to_minutes(clock: Clock) -> Ratio:
    return Ratio(tuple(Number(sympy.Integer(number)) for number in divmod(clock.minutes, 60)))


def _equal_clock(answer: Value, gold: Clock) -> Rule | None:
    if isinstance(answer, Ratio) and not gold.half and math.gcd(*divmod(gold.minutes, 60)) == 1:
        return _equal_ratio(answer, _hours_to_minutes(gold))
    if not isinstance(answer, Clock):
        return None
    if not (answer.half or gold.half):
        return Rule.CLOCK.when(answer.minutes == gold.minutes)
    halves = {
        time.half or ("pm" if time.minutes >= 13 * 60 else "am" if time.minutes < 60 else "")
        for time in (answer, gold)
    } - {""}
    return Rule.CLOCK.when(len(halves) < 2 and (answer.minutes - gold.minutes) % 720 == 0)


def _equal_option(answer: Value, gold: OptionLetter) -> Rule | None:
    if isinstance(answer, OptionLetter):
        return Rule.OPTION.when(answer.letter.upper() == gold.letter.upper())
    if isinstance(answer, Expression) and _is_letter(answer):
        return Rule.OPTION.when(str(answer.value).upper() == gold.letter.upper())
    return _equal(answer, gold.value) if gold.value is not None else None


def _equal_text(answer: Value, gold: Text) -> Rule | None:
    match answer:
        case Text():
            return Rule(gold.kind).when(answer == gold)
        case Number() if gold.kind == "numeral":
            return Rule.NUMERAL_WITHOUT_BASE.when(str(answer.value) == gold.text.partition("_")[0])
        case Several(kind="list") if gold.kind == "name":
            return Rule.OPTIONS.when(_equal_several(gold, answer))
    return None


_RULES: dict[type, Callable[[Any, Any], Rule | None]] = {
    Number: _equal_number,
    Expression: _equal_expression,
    Quantity: _equal_quantity,
    Relation: _equal_relation,
    Interval: _set_rule,
    Union: _set_rule,
    Several: _equal_several,
    Matrix: _equal_matrix,
    Ratio: _equal_ratio,
    Clock: _equal_clock,
    OptionLetter: _equal_option,
    Text: _equal_text,
}
