"""The types of value that an answer can have. `reading` makes them, `compare` compares them.

All are frozen, hold sympy objects for mathematics, and keep everything that stood in the box: a token that no type has
room for makes the box unreadable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reward.graders.math.units import Unit


@dataclass(frozen=True, slots=True)
class Number:
    """A real or complex number. `places`: the decimals given, 2 for 3.14 and -2 for 1.2e3; None for an exact one.

    Example: Number(Rational(157, 50), places=2)
    """

    value: Any
    places: int | None = None


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression with variables, or one that still holds an operation to carry out (`pending`: lim, sum, gcd ...).

    `quantity`: the other reading of letters behind a number, 7 hours for `7h`.
    """

    value: Any
    pending: frozenset[str] = frozenset()
    quantity: Quantity | None = None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number or expression with a unit, a currency, a percent or degree sign, or a counted noun (`20 apples`)."""

    size: Number | Expression
    unit: Unit


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain of sides: `x = 5`, `1 < x \\le 3`, `x \\equiv 3 \\pmod 5` with a modulus. `signs` stand between them."""

    sides: tuple[Value, ...]
    signs: tuple[str, ...]
    modulus: Value | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """Real numbers between two ends. `brackets`: "[)" contains the lower end alone."""

    low: Value
    high: Value
    brackets: str


@dataclass(frozen=True, slots=True)
class Union:
    """The union of intervals and finite sets."""

    parts: tuple[Interval | Several, ...]


@dataclass(frozen=True, slots=True)
class Several:
    """Several values. `kind`: "tuple" (ordered; `brackets` are kept), "set", "list" (commas or `and`, in any order),
    "or" (alternatives), "compound" (5 ft 6 in), "condition" (5 for x > 0), "family" (n\\pi for whole n)."""

    kind: str
    items: tuple[Value, ...]
    brackets: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix, or the rows of several cases (`kind`: "matrix", "cases")."""

    rows: tuple[tuple[Value, ...], ...]
    kind: str = "matrix"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The terms of a ratio, 2 : 3 : 4."""

    terms: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day: minutes since midnight, and "am", "pm" or "" if neither is said."""

    minutes: int
    half: str = ""


@dataclass(frozen=True, slots=True)
class OptionLetter:
    """The letter of an option, with the value of its text if that is given: `(B) 5`."""

    letter: str
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """What is compared by its spelling. `kind`: "words", "formula" (chemistry), "name" (of points, upper case), "date",
    "numeral" (digits with their base), "proposition", "page" (anything else that is shown, equal only to itself)."""

    kind: str
    text: str


Value = (
    Number
    | Expression
    | Quantity
    | Relation
    | Interval
    | Union
    | Several
    | Matrix
    | Ratio
    | Clock
    | OptionLetter
    | Text
)


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """A whole answer that means one of two values. `of`: "comma" (81,256 is a number, or a list of two), "notation"
    (a logarithm without a base is natural or decimal, f(x) is a call or a product)."""

    first: Value
    second: Value
    of: str


def first_meaning(value: Value | Ambiguous) -> Value:
    """Returns a value, or the first of its two meanings."""
    return value.first if isinstance(value, Ambiguous) else value


def number_or_expression(value: Any) -> Number | Expression:
    """Returns a value of sympy as a number, or as an expression if it has variables."""
    return Expression(value) if value.free_symbols else Number(value)


def put(value: Value, variable: Any, other: Any) -> Value:
    """Returns a value with a variable of sympy replaced, also in the parts of relations and of several values."""
    match value:
        case Expression():
            return Expression(value.value.subs(variable, other), value.pending)
        case Relation():
            sides = tuple(put(side, variable, other) for side in value.sides)
            return Relation(sides, value.signs, value.modulus)
        case Several():
            items = tuple(put(item, variable, other) for item in value.items)
            return Several(value.kind, items, value.brackets)
    return value
