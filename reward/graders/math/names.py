"""What may stand on the left of `=` as the name of a value, and be left out."""

from __future__ import annotations

import re
from typing import Any

import sympy

from reward.graders.math import words
from reward.graders.math.values import Expression, Option, Ratio, Relation, Several, Text, Value

_NAMED_FUNCTIONS = (sympy.sin, sympy.cos, sympy.tan, sympy.cot, sympy.log)


def is_name(value: Value) -> bool:
    """Whether a value is a name: x, f(x), AB, |AB|, AB/CD, (x, y), `Area`."""
    match value:
        case Expression():
            return not value.pending and value.quantity is None and _is_plain(value.value)
        case Text(kind="words" | "name"):
            return words.is_name(value.text)
        case Text(kind="page"):
            return not re.search(r"\d", value.text) and words.is_name(re.sub(r"[^A-Za-z']+", " ", value.text))
        case Several(kind="tuple" | "list"):
            names = [
                str(item.value)
                for item in value.items
                if isinstance(item, Expression) and item.value.is_Symbol
            ]
            return len(names) == len(value.items) and names == sorted(names)
        case Option(value=None):
            return True
        case Ratio():
            return all(map(is_name, value.terms))
    return False


def _is_plain(value: Any) -> bool:
    if value.is_Symbol or isinstance(value, sympy.core.function.AppliedUndef):
        return True
    if isinstance(value, sympy.Abs):
        return not value.args[0].is_Symbol and _is_plain(value.args[0])
    powers = value.as_powers_dict() if value.is_Mul else {}
    if (
        len(powers) == 2
        and {str(base) for base in powers} & {"\\Delta", "p"}
        and all(base.is_Symbol for base in powers)
    ):
        return "\\Delta" in map(str, powers) or {*map(str, powers)} == {"p", "H"}  # \\Delta H, pH
    are_points = all(
        base.is_Symbol and re.fullmatch("[A-Z]'?", base.name) and abs(power) == 1
        for base, power in powers.items()
    )
    return bool(powers) and are_points and sum(powers.values()) >= 0


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
    if function.is_Pow and function.base.is_Symbol and function.base.name.startswith("\\|"):
        return True  # |v|^2
    return len(function.free_symbols) > 1 or (
        isinstance(function, _NAMED_FUNCTIONS) and function.args[0].is_Symbol
    )


def named(relation: Relation) -> Value | None:
    """Returns the value of `x = 5` or `5 = x`, or the set of `x \\in S`; None for other relations."""
    left, right = relation.sides[0], relation.sides[-1]
    if relation.modulus is not None or not is_name(left):
        is_turned = relation.modulus is None and relation.signs == ("=",) and is_name(right)
        return left if is_turned else None
    return right if relation.signs == ("in",) or {*relation.signs} == {"="} else None
