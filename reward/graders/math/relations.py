"""Compares equations, inequalities, congruences and chains, and says what may stand on the left of `=` as a name.

`equal` is the comparison of two values that `compare` passes in, since the sides of a relation are values too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sympy

from reward.graders.math import words
from reward.graders.math.equality import constant_ratio, is_at_most
from reward.graders.math.rules import Rule
from reward.graders.math.values import Expression, Number, Quantity, Ratio, Relation, Several, Text, Value

Equal = Callable[[Value, Value], Rule | None]
OPTIONS = tuple("ABCDEFGH")
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="} | {
    sign: sign for sign in ("!=", "=", "==", "~", "cong", "perp", "parallel")
}
_NAMED_FUNCTIONS = (sympy.sin, sympy.cos, sympy.tan, sympy.cot, sympy.log)
_POWERS = re.compile(r"\\|[Rrs]\^|[A-Z]\^-1$")
"""Powers that are names, \\sigma^2, R^2, A^{-1}: x^2 = 5 is not yet x."""
_TWO_LETTERS = ({"\\Delta"}, {"p", "H"})
"""Symbols of which a name of two letters consists: \\Delta H and its like, pH."""


# ------------------------------------------------------------------------------------- names
def is_name(value: Value) -> bool:
    """Whether a value is a name, which may be left out: x, f(x), AB, |AB|, AB/CD, (x, y), `Area`."""
    match value:
        case Expression():
            return not value.pending and value.quantity is None and _is_plain(value.value)
        case Text(kind="words" | "name"):
            return words.is_name(value.text)
        case Text(kind="page"):
            bare = re.sub(r"\(.*\)", "", value.text)  # (f \\circ g)(2)
            return not re.search(r"\d", bare) and words.is_name(re.sub(r"[^A-Za-z']+", " ", bare))
        case Several(kind="tuple" | "list", items=items):
            names = [
                str(item.value) for item in items if isinstance(item, Expression) and item.value.is_Symbol
            ]
            return len(names) == len(items) and names == sorted(names)
        case Ratio():
            return all(map(is_name, value.terms))
    return False


def _is_plain(value: Any) -> bool:
    if value.is_Symbol or isinstance(value, sympy.core.function.AppliedUndef):
        return True
    if isinstance(value, sympy.Abs):
        return len(str(value.args[0])) > 1 and _is_plain(value.args[0])
    powers = value.as_powers_dict() if value.is_Mul else {}
    if not powers or not all(base.is_Symbol for base in powers):
        return False
    if len(powers) == 2 and any(symbols <= {*map(str, powers)} for symbols in _TWO_LETTERS):
        return True
    are_points = all(re.fullmatch("[A-Z]'?", base.name) and abs(power) == 1 for base, power in powers.items())
    return are_points and sum(powers.values()) >= 0


def names_a_number(value: Value) -> bool:
    """Whether the value of a side is what a question may ask for: a name, sin A, or a + b. Not so 2x, from which x is
    still to be found."""
    if is_name(value):
        return True
    if not isinstance(value, Expression) or value.quantity is not None:
        return False
    if value.pending:
        return True  # \gcd(a, b)
    function = value.value
    if function.is_Pow and function.base.is_Symbol and _POWERS.match(f"{function.base}^{function.exp}"):
        return True
    is_of_a_name = isinstance(function, _NAMED_FUNCTIONS) and function.args[0].is_Symbol
    return len(function.free_symbols) > 1 or is_of_a_name


def named(relation: Relation) -> Value | None:
    """Returns the value of `x = 5` or `5 = x`, or the set of `x \\in S`; None for other relations."""
    left, right = relation.sides[0], relation.sides[-1]
    if relation.modulus is not None or not is_name(left):
        is_turned = relation.modulus is None and relation.signs == ("=",) and is_name(right)
        return left if is_turned else None
    return right if relation.signs == ("in",) or {*relation.signs} == {"="} else None


def same_name(one: Value, other: Value, equal: Equal) -> bool:
    """Whether two names of values are the same."""
    if isinstance(one, Text) and isinstance(other, Text):
        return one.text == other.text
    ours, golds = (str(name.value) if isinstance(name, Expression) else "" for name in (one, other))
    if re.sub(r"_\{?\d\}?$", "", ours) == golds != "" or (ours == "y" and golds in ("f(x)", "g(x)", "h(x)")):
        return True  # x_1 = 2 for x = 2
    return type(one) is type(other) and equal(one, other) is not None


# ------------------------------------------------------------------------------------- chains
def value_of_chain(chain: Relation, gold: Value, equal: Equal) -> Rule | None:
    """Compares an equation or chain with a gold that is no relation: every side but names must be right."""
    if chain.signs == ("in",):
        members = named(chain)
        return Rule.VALUE_OF_A_NAME.when(isinstance(members, Several) and equal(members, gold))
    if not {*chain.signs} <= {"=", "~"}:
        return None
    sides: list[Value] = []
    if isinstance(gold, Text) or (isinstance(gold, Expression) and str(gold.value) in OPTIONS):
        sides = [*chain.sides]
    else:
        names = is_name if isinstance(gold, Expression) else names_a_number
        own, known = map(_symbols, (chain.sides[0], gold))
        for place, side in enumerate(chain.sides):
            is_last = place == len(chain.sides) - 1
            if (names(side) and not is_last) or (is_name(side) and is_last and sides):
                continue
            is_formula = _symbols(side) - known and not _symbols(side) & own
            if is_formula and place and not (is_last or sides) and is_name(chain.sides[0]):
                continue  # A = \\pi r^2 = 25\\pi
            rounding = _rounding(side, sides[-1]) if sides and chain.signs[place - 1] == "~" else None
            if rounding is None:
                sides.append(side)
            elif rounding and equal(side, gold):
                sides[-1] = side
    return Rule.VALUE_OF_A_CHAIN.when(sides and all(equal(side, gold) for side in sides))


def _symbols(value: Value) -> set[Any]:
    return value.value.free_symbols if isinstance(value, Expression) else set()


def residue(chain: Relation, gold: Value, equal: Equal) -> Rule | None:
    """Compares a residue with its modulus, `12 (mod 13)`, with the gold, a number from 0 to the modulus."""
    is_named = len(chain.sides) == 1 or (chain.signs in (("==",), ("=",)) and is_name(chain.sides[0]))
    if not is_named or not isinstance(gold, Number) or not isinstance(chain.modulus, Number):
        return None
    is_in_range = gold.value.is_Integer and 0 <= gold.value < chain.modulus.value
    return Rule.RESIDUE.when(is_in_range and equal(chain.sides[-1], gold))


def _rounding(side: Value, value: Value) -> bool | None:
    """Whether a value rounds to the side behind `about`; False if the side may be a rougher one, None if it is none."""
    side = side.size if isinstance(side, Quantity) else side
    if not (isinstance(side, Number) and isinstance(value, Number)) or value.value.is_Integer:
        return None
    if is_at_most(side.value - value.value, sympy.Rational(10) ** -(side.places or 0) / 2):
        return True
    ratio = sympy.N(side.value / value.value)
    return False if side.places is not None and ratio.is_real and 0.1 < ratio < 10 else None


# ------------------------------------------------------------------------------------- two relations
def same_relation(answer: Relation, gold: Relation, equal: Equal) -> Rule | None:
    """Compares two relations that describe no set of numbers, or only one of which does."""
    if gold.modulus is not None or answer.modulus is not None:
        return _same_congruence(answer, gold, equal)
    if {*answer.signs} == {*gold.signs} == {"="}:
        return _same_equation(answer, gold, equal)
    for one in (answer, turned(answer)):
        if one.signs == gold.signs and all(map(equal, one.sides, gold.sides)):
            return Rule.RELATION
    return _same_inequality(answer, gold) if len(answer.signs) == len(gold.signs) == 1 else None


def turned(relation: Relation) -> Relation:
    """Returns a relation read from the right; the same one if its signs have no counterpart."""
    if not {*relation.signs} <= {*_TURNED}:
        return relation
    signs = tuple(_TURNED[sign] for sign in reversed(relation.signs))
    return Relation(relation.sides[::-1], signs, relation.modulus)


def is_negated(relation: Relation) -> bool:
    """Whether an inequality is as good as solved: -x > -3."""
    left = relation.sides[0]
    is_negative = isinstance(left, Expression) and bool((-left.value).is_Symbol)
    return is_negative and isinstance(relation.sides[-1], Number)


def _same_congruence(answer: Relation, gold: Relation, equal: Equal) -> Rule | None:
    if len(answer.sides) == 2 and is_name(answer.sides[1]):  # 3 = x (mod 7)
        answer = turned(answer)
    if answer.modulus is None or gold.modulus is None or not equal(answer.modulus, gold.modulus):
        return None
    if {*answer.signs, *gold.signs} - {"==", "="} or len(answer.sides) > 2:
        return None
    if len(answer.sides) == len(gold.sides) == 2 and not same_name(answer.sides[0], gold.sides[0], equal):
        return None
    match answer.sides[-1], gold.sides[-1], gold.modulus:
        case Number(value=one), Number(value=other), Number(value=modulus):
            return Rule.CONGRUENCE.when((one - other) % modulus == 0)
    return None


def _same_equation(answer: Relation, gold: Relation, equal: Equal) -> Rule | None:
    ours, golds = named(answer), named(gold)
    if ours is not None and golds is not None:
        name, golds_name = (
            one.sides[0] if is_name(one.sides[0]) else one.sides[-1] for one in (answer, gold)
        )
        if same_name(name, golds_name, equal):
            between = [side for side in answer.sides[1:-1] if not is_name(side)]
            return Rule.VALUE_OF_A_NAME.when(all(equal(side, golds) for side in [*between, ours]))
    if isinstance(golds, Number | Quantity) or len(answer.sides) != 2 or len(gold.sides) != 2:
        return None  # 2x = 10 is not yet x = 5
    one, other = _left_less_right(answer), _left_less_right(gold)
    if one is None or other is None:
        return None
    one, other = (sympy.together(value).as_numer_denom()[0] for value in (one, other))
    return Rule.EQUATION.when(constant_ratio(one, other) is not None)


def _left_less_right(relation: Relation) -> Any | None:
    """Returns the left side less the right side; None unless both are numbers or expressions."""
    left, right = relation.sides
    if not (isinstance(left, Number | Expression) and isinstance(right, Number | Expression)):
        return None
    return left.value - right.value


def _same_inequality(answer: Relation, gold: Relation) -> Rule | None:
    """Compares `2x < y` and `y > 2x`: all on one side, up to a factor that turns the sign if it is negative."""
    one, other = _left_less_right(answer), _left_less_right(gold)
    if one is None or other is None or (ratio := constant_ratio(one, other)) is None:
        return None
    sign = answer.signs[0]
    sign = _TURNED.get(sign, "") if sympy.N(ratio) < 0 else sign
    return Rule.INEQUALITY.when(sign == gold.signs[0] and (sign[0] in "<>" or sign == "!="))
