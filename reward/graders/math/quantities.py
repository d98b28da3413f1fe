"""Reads numbers and expressions, and what stands behind them: units, degrees and minutes, number words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

import sympy

from reward.graders.math import expression, units, words
from reward.graders.math.nodes import Node, Unreadable, is_sign_of, show, split, stripped
from reward.graders.math.tokens import behind_number, plain
from reward.graders.math.values import Expression, Number, Quantity, Value


def mathematics(nodes: Sequence[Node]) -> Number | Expression:
    """Returns a number or an expression. Raises Unreadable for anything else."""
    value, pending = expression.parse(nodes)
    if not isinstance(value, sympy.Expr):
        raise Unreadable("it is no number and no expression")
    if value.has(sympy.nan, sympy.zoo):
        raise Unreadable("it has no value")
    if pending or value.free_symbols or value.atoms(sympy.core.function.AppliedUndef):
        return Expression(value, pending)
    return Number(value, _places(nodes))


def _places(nodes: Sequence[Node]) -> int | None:
    """Returns the decimals of a decimal number, counted from the point and behind any power of ten."""
    text = "".join(show([node]) for node in nodes)
    match = re.fullmatch(r"[-+]?\d*\.(\d+)(?:(?:\\times|\\cdot|\*)10\^\{([-+]?\d+)\})?", text)
    return len(match[1]) - int(match[2] or 0) if match else None


def angle(nodes: list[Node]) -> Value | None:
    r"""Reads 30^\circ 15' 20'', and the feet and inches of 5'6''."""
    text = "".join(node.text for node in nodes if node.kind not in ("space", "wide"))
    match = re.fullmatch(r"(?:(.*)(?P<degree>\^\\circ))?(\d+(?:\.\d+)?)'(?:(\d+(?:\.\d+)?)(?:''|\"))?", text)
    if match is None or not (match["degree"] or match[4]):
        return None
    first, second = sympy.Rational(match[3]), sympy.Rational(match[4] or 0)
    if match["degree"] is None:
        return Quantity(Number(first + second / 12), units.known("ft"))
    whole = mathematics(nodes[: nodes.index(Node("mark", "^\\circ"))])
    return Quantity(Number(whole.value + first / 60 + second / 3600), units.known("°"))


def begins_unit(nodes: Sequence[Node], place: int) -> bool:
    """Whether what stands behind a value, a unit or a number word, begins at this place."""
    node, before = nodes[place], nodes[:place]
    if sum((one.kind == "open") - (one.kind == "close") for one in before):
        return False
    if node.kind == "frac":
        return place > 0 and any(part[:1] and part[0].kind == "word" for part in node.parts)
    if node.text == "/" and nodes[place + 1 : place + 2] and nodes[place + 1].kind == "word":  # 6e23/mol
        return behind_number(before)
    is_sum = any(map(is_sign_of("+", "-"), [*before[1:], *nodes[place + 1 :]]))
    is_sign = node.text in ("\\%", "^\\circ") and not is_sum
    return node.kind == "word" or (is_sign and not any(one.kind == "function" for one in before))


def unit_of(nodes: Sequence[Node]) -> units.Unit | None:
    """Returns the unit that nodes spell, or a counted noun."""
    text = plain(stripped(nodes))
    if not text or any(node.kind == "number" for node in nodes) or number_word(nodes) is not None:
        return None
    unit = _parsed_unit(text)
    noun = words.noun(text.removesuffix(".").strip()) if unit is None else None
    return units.counted(noun) if noun is not None else unit


def _parsed_unit(text: str) -> units.Unit | None:
    return units.parse(re.sub(r"\^\{([-+]?\d+)\}", r"^\1", text))


def number_word(nodes: Sequence[Node]) -> Fraction | None:
    """Returns what a number word multiplies with: 1000000 for `million`."""
    text = (plain(stripped(nodes)) or "").lower()
    return None if text in ("one", "ones") else words.NUMBER_WORDS.get(text.removesuffix("s"))


def bare_unit(nodes: list[Node]) -> Value | None:
    """Reads letters behind a number that may be a unit: behind a space they are (5 m), else one letter may be (5m)."""
    start = next(
        (place for place, node in enumerate(nodes) if node.kind == "letter" and node.text.isalpha()), 0
    )
    text = plain(nodes[start:])
    if not start or not behind_number(nodes[:start]) or _has_letters(nodes[:start]) or not text:
        return None
    if any(map(is_sign_of("+", "-"), nodes[1:start])):  # 12 + 10 t
        return None
    unit = _parsed_unit(text)
    if unit is None:
        return None
    quantity = Quantity(mathematics(nodes[:start]), unit)
    if nodes[start - 1].kind in ("space", "wide"):
        return quantity
    try:
        found = mathematics(nodes)
    except Unreadable:
        return quantity  # 5g/mol
    return Expression(found.value, quantity=quantity) if isinstance(found, Expression) else None


def _has_letters(nodes: Iterable[Node]) -> bool:
    """Whether nodes hold a variable, in their parts too."""
    return any(
        (node.kind == "letter" and node.text not in ("\\pi", "e")) or any(map(_has_letters, node.parts))
        for node in nodes
    )


def is_closed(nodes: Sequence[Node]) -> bool:
    """Whether all signs of a sum stand in brackets."""
    return len(split(nodes, is_sign_of("+", "-"))) - int(nodes[0].kind == "sign") == 1
