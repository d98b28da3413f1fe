r"""Reads an answer, LaTeX or plain text, as a value with a type (see `values`). Gold and answer are read alike.

`read` is a grammar from the outside in: labels and what is compared by its spelling, alternatives and lists,
relations, sets, ratios, quantities, and in the end expressions (see `expression`). Every node of the page becomes part
of the value, or the answer is no more than a page, which equals only itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sympy

from reward.graders.math import expression, page, quantities, units, variants, words
from reward.graders.math.arithmetic import INTEGER, SYMPY_ERRORS, symbol
from reward.graders.math.commands import CURRENCY_SIGNS, RELATION_SIGNS
from reward.graders.math.nodes import (
    Node,
    Nodes,
    Unreadable,
    closing,
    is_comma,
    is_sign_of,
    is_word_of,
    show,
    split,
    stripped,
)
from reward.graders.math.sets import EMPTY, REALS, difference
from reward.graders.math.spelled import spelled
from reward.graders.math.tokens import JOINING, is_noun, plain, tokens
from reward.graders.math.values import (
    Ambiguous,
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
    first_meaning,
    number_or_expression,
    put,
)
from reward.graders.safe import is_cheap

_SETS: dict[str, Value] = {"\\mathbb{R}": REALS, "\\emptyset": EMPTY}
_CURRENCIES = ("$", *CURRENCY_SIGNS, "USD", "EUR", "GBP", "INR", "Rs")
_LABEL = re.compile(r"\(?(?:([A-H])|[a-h]|\d|i{1,3})\)|([A-H])[.:]")
_APART = ("space", "wide", "word", "number", "frac", "sqrt")
"""Kinds of nodes that a label without words may stand in front of."""
_IN_WORDS = ("word", "space", "letter")
_IN_NAME = ("letter", "sub", "mark", "sup")
_IN_CALL = ("letter", "number", "comma", "space", "open", "close", "relation")
"""Kinds of nodes in the name of a function, and in the brackets behind it."""
_MOST_ITEMS = 128


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of an answer, and what its page shows in one spelling. `reason`: why it is no more than a page."""

    value: Value | Ambiguous
    shown: str
    reason: str = ""

    @property
    def type(self) -> str:
        """The name of the value's type, with the kind of a text or of several values."""
        value = first_meaning(self.value)
        return getattr(value, "kind", "") or type(value).__name__.lower()


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    r"""Returns the reading of the content of a box, or of a gold. Raises Unreadable if it shows no page.

    Example: read(r"\dfrac12").value -> Number(Rational(1, 2))
    """
    nodes = page.read(text)
    if not nodes:
        raise Unreadable("it is empty")
    shown = show(nodes)
    electrons = words.configuration(text) or words.configuration(plain(nodes) or "")
    if electrons is not None:  # 1s^22s^2 has no exponent 22
        return Reading(Text("formula", electrons), electrons)
    if not is_cheap(shown.partition("=")[2] if shown.startswith("\\int") else shown):
        return Reading(Text("page", shown), shown, "it is too expensive to compute")
    try:
        return Reading(_whole_value(nodes, shown), shown)
    except Unreadable as error:
        return Reading(Text("page", shown), shown, str(error))
    except RecursionError:  # whose text depends on the depth at the start
        return Reading(Text("page", shown), shown, "sympy cannot compute it")
    except SYMPY_ERRORS as error:
        return Reading(Text("page", shown), shown, f"sympy cannot compute it: {error}")


def _whole_value(nodes: Nodes, shown: str) -> Value | Ambiguous:
    value = _value(nodes)
    if isinstance(value, Number) and any(map(is_comma, nodes)):
        pairs = ((node, Node("space", " ")) if is_comma(node) else (node,) for node in nodes)
        return Ambiguous(value, _value(itertools.chain.from_iterable(pairs)), "comma")
    if re.fullmatch(r"-?\d+,\d+", shown):  # 0,75
        return Ambiguous(value, Number(sympy.Rational(shown.replace(",", "."))), "comma")
    other = variants.with_other_notation(nodes)
    try:
        return Ambiguous(value, _value(other), "notation") if other != nodes else value
    except Unreadable:
        return value


def _value(nodes: Iterable[Node]) -> Value:
    nodes = stripped(nodes)
    if not nodes:
        raise Unreadable("a part is missing")
    if len(nodes) == 1 and nodes[0].kind == "word" and len(nodes[0].text) == 1 and nodes[0].text.isalpha():
        nodes = [Node("letter", nodes[0].text)]
    if (found := _labelled(nodes) or spelled(nodes)) is not None:
        return found
    return _statement(tokens(nodes))


# ------------------------------------------------------------------------------------- labels and spellings
def _labelled(nodes: Sequence[Node]) -> Value | None:
    """Returns what stands behind the label of an option or part, `(C) 12` or `a) 12`; None if there is no label."""
    start = int(is_word_of("option", "answer", "choice")(nodes[0]))
    for end in range(start + 2, min(start + 6, len(nodes))):
        text = plain(nodes[start:end]) or ""
        match = _LABEL.fullmatch(text)
        if match is None or closing(nodes[start:]) not in (0, end - start - 1):
            continue
        letter, rest = match[1] or match[2], stripped(nodes[end:])
        is_apart = nodes[end].kind in _APART or any(node.kind == "word" for node in nodes[:end])
        if not rest or not is_apart or rest[0].kind in ("sign", "sup", "relation", "comma"):
            return None
        if is_word_of(*JOINING)(rest[0]) or (text[0] == "(" and not letter and rest[0].kind != "number"):
            return None
        if not letter:
            return _value(rest)
        if any(_LABEL.fullmatch(plain(rest[at : at + 3]) or "") for at in range(len(rest))):
            raise Unreadable("it names two options")
        try:
            return OptionLetter(letter, _value(rest))
        except Unreadable:
            return OptionLetter(letter, Text("page", show(rest)))
    return None


# ------------------------------------------------------------------------------------- several values and relations
def _statement(nodes: Sequence[Node]) -> Value:
    """Reads alternatives, conditions and lists, then relations."""
    nodes = stripped(nodes)
    lead = [*itertools.takewhile(lambda node: node.kind in ("word", "space"), nodes)]
    front, rest = plain(lead) or "", nodes[len(lead) :]
    is_label = front and rest and rest[0].text == ":"
    if (
        front
        and rest
        and words.is_name(front)
        and (is_label or re.search(r"\b(?:is|are|equals|either)$", front))
    ):
        return _value(rest[1:] if is_label else rest)  # The area is 12, Total: 6
    has_pairs = {",", ";"} <= {node.text for node in nodes}
    if has_pairs and len(parts := split(nodes, lambda node: node.text == ";")) > 1:
        return Several("list", tuple(map(_tuple, parts)))  # p = 5, q = 2; p = 7, q = 2
    if len(alternatives := split(nodes, is_word_of("or"), is_sign_of("\\lor"))) > 1:
        return Several("or", tuple(_value(part) for part in alternatives))
    if len(condition := split(nodes, is_word_of(*variants.CONDITIONS))) > 1:
        if len(condition) > 2:
            raise Unreadable("it has two conditions")
        body = stripped(condition[0])
        body = body[:-1] if body and is_comma(body[-1]) else body
        return _family((_value(body), _membership(condition[1])), "condition")
    parts = split(variants.with_commas(nodes), is_word_of("and"), is_sign_of("\\land"), is_comma)
    parts = [part for part in parts if len(parts) == 1 or stripped(part)]  # `1, and 2`
    if len(parts) > _MOST_ITEMS:
        raise Unreadable("it lists too much")
    if not parts:
        raise Unreadable("a part is missing")
    if len(parts) == 1:
        return _relation(parts[0])
    return _family(tuple(_value(part) for part in parts))


def _tuple(nodes: Sequence[Node]) -> Value:
    match _value(nodes):
        case Several(kind="list", items=items):
            return Several("tuple", items, "()")
        case value:
            return value


def _membership(nodes: Sequence[Node]) -> Value:
    """Reads a condition; `k is an integer` says that k is in Z."""
    text = " ".join((plain(nodes) or "").split())
    found = re.fullmatch(r"([A-Za-z]) is any? integer|(?:(?:all|any|every|some) )?integers? ([A-Za-z])", text)
    if found is None:
        return _value(nodes)
    variable, whole = (Expression(symbol(name)) for name in (found[1] or found[2], "\\mathbb{Z}"))
    return Relation((variable, whole), ("in",))


def _family(items: tuple[Value, ...], kind: str = "list") -> Several:
    """Returns a list, or the family `n\\pi, n \\in \\mathbb{Z}`, in which the letter does not matter."""
    match items:
        case (value, Relation(sides=(Expression(value=variable), Expression(value=domain)), signs=("in",))):
            if str(domain) in variants.INTEGERS:
                return Several("family", (put(value, variable, INTEGER), Expression(domain)))
    return Several(kind, items)


def _relation(nodes: Sequence[Node]) -> Value:
    """Reads a chain of relations, with its modulus, or one term."""
    nodes, modulus = _modulus(stripped(nodes))
    sides, signs = [[]], []  # type: tuple[list[list[Node]], list[str]]
    level = 0
    for node in nodes:
        level += (node.kind == "open") - (node.kind == "close")
        if level or node.kind != "relation" or node.text == "\\mid":
            sides[-1].append(node)
        elif node.text in RELATION_SIGNS:
            signs.append(RELATION_SIGNS[node.text])
            sides.append([])
        else:
            raise Unreadable(f"`{node.text}` is no relation of an answer")
    if not signs:
        term = _term(nodes)
        return term if modulus is None else Relation((term,), (), modulus)
    if signs[0] in ("=", "~") and not stripped(sides[0]) and len(sides) == 2:
        return _term(sides[1])  # = 5
    front = _side(sides[0])
    if signs[0] == "=" and front in (Number(sympy.E), Number(sympy.I)):
        front = Expression(symbol(show(sides[0])))  # e = 1/2, an eccentricity
    return Relation((front, *map(_side, sides[1:])), tuple(signs), modulus)


def _modulus(nodes: list[Node]) -> tuple[list[Node], Value | None]:
    r"""Returns what stands in front of `\pmod{5}`, `(mod 5)` or `mod 5`, and the modulus."""
    if nodes and nodes[-1].kind == "mod":
        return stripped(nodes[:-1]), _value(nodes[-1].parts[0])
    place = next((place for place, node in enumerate(nodes) if is_word_of("mod")(node)), None)
    if place is None:
        return nodes, None
    before, behind = stripped(nodes[:place]), stripped(nodes[place + 1 :])
    if before and behind and (before[-1].text, behind[-1].text) == ("(", ")"):
        before, behind = stripped(before[:-1]), behind[:-1]
    return before, _value(behind)


def _side(nodes: Sequence[Node]) -> Value:
    """Reads a side of a relation, which may be a name: x(t), P_1(2), Area, an angle."""
    nodes = stripped(nodes)
    if nodes and nodes[0].text == "\\int":
        return Expression(symbol(show(nodes)))
    start = next((place for place, node in enumerate(nodes) if node.kind == "open"), 0)
    if start and closing(nodes[start:]) == len(nodes) - start - 1 and nodes[-1].text == ")":
        name, inner = nodes[:start], stripped(nodes[start + 1 : -1])
        is_name = name[0].kind == "letter" and all(node.kind in _IN_NAME for node in name)
        if is_name and inner and all(node.kind in _IN_CALL for node in inner):
            return Expression(symbol(show(nodes)))
    if any(node.kind == "word" for node in nodes) and all(node.kind in _IN_WORDS for node in nodes):
        text = plain(nodes) or ""
        return Text("words", words.phrase(text) or text)
    try:
        return _term(nodes)
    except Unreadable:
        if nodes and (not _has_numbers(nodes) or nodes[0].kind == "open"):
            return Text("page", show(nodes))  # a name: Area, A \\cap B, f(x)_{\\max}, (f \\circ g)(2)
        raise


def _has_numbers(nodes: Iterable[Node]) -> bool:
    return any(node.kind == "number" or any(map(_has_numbers, node.parts)) for node in nodes)


# ------------------------------------------------------------------------------------- terms
def _term(nodes: Sequence[Node]) -> Value:
    """Reads what stands between commas and relations."""
    nodes = stripped(nodes)
    if not nodes:
        raise Unreadable("a part is missing")
    if len(nodes) == 1 and nodes[0].text in _SETS:
        return _SETS[nodes[0].text]
    for reader in (
        _plus_or_minus,
        _matrix,
        _bracketed,
        _union,
        _ratio,
        _amount,
        quantities.angle,
        _quantity,
        quantities.bare_unit,
    ):
        if (found := reader(nodes)) is not None:
            return found
    return quantities.mathematics(nodes)


def _matrix(nodes: list[Node]) -> Value | None:
    """Reads several cases, a matrix of any values, and sums and multiples of matrices."""
    if not any(node.kind == "matrix" for node in nodes):
        return None
    alone = nodes[1:-1] if nodes[0].kind == "open" and nodes[-1].kind == "close" else nodes
    if len(nodes) == 2 and nodes[0].text == "\\{":
        alone = [Node("matrix", "cases", nodes[1].parts)]  # \\left\\{\\begin{array}...\\right.
    if len(alone) > 1 or alone[0].text in ("vmatrix", "Vmatrix"):
        value, pending = expression.parse(nodes)
        if pending or not isinstance(value, sympy.MatrixBase):
            raise Unreadable("a determinant or a product of matrices is left to carry out")
        return Matrix(tuple(tuple(map(number_or_expression, row)) for row in value.tolist()))
    are_cases = alone[0].text == "cases"
    rows = [
        [variants.case_nodes(cell) if are_cases else [*cell.parts[0]] for cell in row]
        for row in alone[0].parts
    ]
    values = tuple(tuple(_value(cell) for cell in row if cell) for row in rows)
    return Matrix(values, "cases" if are_cases else "matrix")


def _bracketed(nodes: list[Node]) -> Value | None:
    """Returns what brackets around the whole term hold: a tuple, a set, an interval, or a value."""
    if nodes[0].kind == "open" and nodes[-1].kind == "sup" and show(nodes[-1].parts[0]) in ("T", "\\top"):
        nodes = nodes[:-1]  # (1, 2, 3)^T
    if nodes[0].kind != "open" or closing(nodes) != len(nodes) - 1:
        return None
    brackets, inner = nodes[0].text + nodes[-1].text, stripped(nodes[1:-1])
    brackets = "()" if brackets == "\\langle\\rangle" else brackets
    if brackets == "\\{\\}":
        return _set(inner)
    items = split(inner, is_comma)
    if len(items) == 1:
        return _statement(inner) if brackets in ("()", "[]") else None
    values = tuple(_value(item) for item in items)
    if len(values) == 2 and brackets in ("(]", "[)"):
        return Interval(*values, brackets)
    if brackets not in ("()", "[]"):
        raise Unreadable("its brackets do not match")
    return Several("tuple", values, brackets)


def _set(inner: list[Node]) -> Value:
    """Reads {1, 2}, or what {x | x > 1} and {x in R : x > 1} say of their members."""
    places = (place for place, node in enumerate(inner[:8]) if place and node.text in ("\\mid", "|", ":"))
    bar = next(places, 0)
    members = stripped(inner[:bar])
    is_described = len(members) == 1 or any(map(is_sign_of("\\in"), members))
    if members and members[0].kind == "letter" and is_described:
        if len(members) > 1 and members[-1].text != "\\mathbb{R}":
            raise Unreadable("a set over other than the real numbers")
        return _statement(inner[bar + 1 :])
    if any(map(is_word_of("or"), inner)):
        raise Unreadable("a set of alternatives")
    items = split(variants.with_commas(inner), is_comma) if inner else []
    return Several("set", tuple(dict.fromkeys(map(_value, items))))


def _union(nodes: list[Node]) -> Value | None:
    if len(parts := split(nodes, is_sign_of("\\cup"))) > 1:
        return Union(tuple(itertools.chain.from_iterable(_sets(_term(part)) for part in parts)))
    if len(sides := split(nodes, is_sign_of("\\setminus"))) != 2:
        return None
    found = difference(*map(_term, sides))
    if found is None:
        raise Unreadable("a difference of sets is left to carry out")
    return found


def _sets(value: Value) -> Sequence[Interval | Several]:
    match value:
        case Interval() | Several(kind="set"):
            return [value]
        case Several(kind="tuple", items=(low, high)):
            return [Interval(low, high, value.brackets)]
        case Number():  # \cup {1}
            return [Several("set", (value,))]
    raise Unreadable("a union of what is no set")


def _ratio(nodes: list[Node]) -> Value | None:
    parts = split(nodes, is_sign_of(":"), is_word_of("to"))
    return Ratio(tuple(_term(part) for part in parts)) if len(parts) > 1 else None


def _plus_or_minus(nodes: list[Node]) -> Value | None:
    choices = variants.sign_choices(nodes) if nodes[0].text != "\\{" else []
    return Several("list", tuple(map(_term, choices))) if choices else None


# ------------------------------------------------------------------------------------- quantities
def _amount(nodes: list[Node]) -> Value | None:
    """Reads an amount of money with its sign in front: $5, -$5, $5 million."""
    place = int(nodes[0] == Node("sign", "-"))
    if len(nodes) < place + 2 or nodes[place].kind != "word" or nodes[place].text not in _CURRENCIES:
        return None
    unit = units.parse(nodes[place].text)
    match _term([*nodes[:place], *nodes[place + 1 :]]):
        case Number() as size if unit is not None:
            return Quantity(size, unit)
        case Quantity(size=size, unit=by) if (
            whole := units.parse(f"{nodes[place].text} {by.name}")
        ) is not None:
            return Quantity(size, whole)  # $5/hour
    raise Unreadable("a currency sign stands before what is no amount")


def _quantity(nodes: list[Node]) -> Value | None:
    """Reads a value with what stands behind it: a unit, a percent or degree sign, a number word, a counted noun."""
    start = next((place for place in range(len(nodes)) if quantities.begins_unit(nodes, place)), None)
    if start is None:
        return None
    front, word = nodes[:start], nodes[start].text.lower()
    if any(node.text == "\\%" for node in [*front, *nodes[start + 1 :]]):
        raise Unreadable("a percentage has a unit")
    if not front:
        raise Unreadable("it is a text that cannot be read")
    if word == "times" and start == len(nodes) - 1:
        return Quantity(quantities.mathematics(front), units.counted("time"))
    for end in range(len(nodes), start, -1):  # the longest unit
        rest = stripped(nodes[end:])
        if (unit := quantities.unit_of(nodes[start:end])) is not None:
            ends = stripped(front)
            is_range = [node.kind for node in ends] == ["number", "sign", "number"] and ends[1].text == "-"
            if is_range and not _is_part(unit):  # 3-5 days
                return Ratio(
                    (quantities.mathematics(ends[:1]), Quantity(quantities.mathematics(ends[2:]), unit))
                )
            if any(map(is_sign_of("+", "-"), ends[1:])) and not quantities.is_closed(ends):
                raise Unreadable("a unit stands behind a sum")
            return _with_rest(Quantity(quantities.mathematics(front), unit), rest)
        if (factor := quantities.number_word(nodes[start:end])) is not None:
            size = number_or_expression(quantities.mathematics(front).value * factor)
            noun = quantities.unit_of(rest) if rest else None
            if rest and noun is None:
                raise Unreadable("something stands behind a number word")
            return Quantity(size, noun) if noun is not None else size  # 5 million dollars
    raise Unreadable("its words are no unit")


def _is_part(unit: units.Unit) -> bool:
    return unit.dimension == (("fraction", 1),)


def _with_rest(first: Quantity, rest: list[Node]) -> Value:
    """Returns a quantity with what stands behind its unit: 5 ft 6 in, 12 m by 5 m, 10 m north."""
    if not rest:
        return first
    text = plain(rest) or ""
    if rest[0].kind != "number" and (is_noun(text) or words.noun(text) is not None):
        return Several("compound", (first, Text("words", words.phrase(text) or text)))
    other = _term(rest) if rest[0].kind == "number" else None
    items = other.items if isinstance(other, Several) and other.kind == "compound" else (other,)
    if not all(isinstance(item, Quantity) for item in items):
        raise Unreadable("something stands behind a unit")
    return Several("compound", (first, *(item for item in items if item is not None)))


# ------------------------------------------------------------------------------------- expressions
