r"""Reads an answer, LaTeX or plain text, as a value with a type (see `values`). Gold and answer are read alike.

`read` is a grammar from the outside in: labels and what is compared by its spelling, alternatives and lists,
relations, sets, ratios, quantities, and in the end expressions (see `expression`). Every node of the page becomes part
of the value, or the answer is no more than a page, which equals only itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import sympy

from reward.graders.math import expression, page, units, words
from reward.graders.math.arithmetic import INTEGER, SYMPY_ERRORS, symbol
from reward.graders.math.commands import CURRENCY_SIGNS
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
from reward.graders.math.sets import EMPTY, REALS, complement
from reward.graders.math.tokens import JOINING, behind_number, is_noun, is_phrase, plain, tokens
from reward.graders.math.values import (
    Ambiguous,
    Clock,
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
    first_meaning,
    number_or_expression,
    put,
)
from reward.graders.safe import is_cheap

_SETS: dict[str, Value] = {"\\mathbb{R}": REALS, "\\emptyset": EMPTY}
_PHRASES: dict[str, Value] = {
    "all real numbers": REALS,
    "no solution": EMPTY,
    "empty set": EMPTY,
    "none": EMPTY,
}
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\approx": "~", "\\equiv": "==",
    "\\in": "in", "\\notin": "not in", "\\sim": "~", "\\simeq": "~", "\\cong": "cong", "\\propto": "propto",
    "\\subset": "subset", "\\subseteq": "subseteq", "\\supset": "supset", "\\supseteq": "supseteq",
    "\\rightarrow": "->", "\\Rightarrow": "=>", "\\leftarrow": "<-", "\\Leftrightarrow": "<=>", "\\mapsto": "|->",
    "\\perp": "perp", "\\parallel": "parallel", "\\ll": "<<", "\\gg": ">>",
}  # fmt: skip
_CAPITALS = ("yes", "no", "true", "false", "none", "both", "neither")
_CONDITIONS = ("if", "for", "when", "where")
_SIGN_WORDS = {"minus": "-", "plus": "+", "times": "\\times"}
_INTEGERS = ("\\mathbb{Z}", "\\mathbb{N}")
_CURRENCIES = ("$", *CURRENCY_SIGNS)
_LABEL = re.compile(r"\(?(?:([A-H])|[a-h]|\d|i{1,3})\)|([A-H])[.:]")
_MOST_ITEMS = 60
_MOST_SIGNS = 3
_MAX_DEPTH = 60


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
    if not is_cheap(shown):
        return Reading(Text("page", shown), shown, "it is too expensive to compute")
    try:
        return Reading(_whole_value(nodes), shown)
    except Unreadable as error:
        return Reading(Text("page", shown), shown, str(error))
    except RecursionError:  # whose text depends on the depth at the start
        return Reading(Text("page", shown), shown, "sympy cannot compute it")
    except SYMPY_ERRORS as error:
        return Reading(Text("page", shown), shown, f"sympy cannot compute it: {error}")


def _whole_value(nodes: Nodes) -> Value | Ambiguous:
    value = _value(nodes)
    if isinstance(value, Number) and any(map(is_comma, nodes)):
        pairs = ((node, Node("space", " ")) if is_comma(node) else (node,) for node in nodes)
        return Ambiguous(value, _value(itertools.chain.from_iterable(pairs)), "comma")
    decimal = _with_decimal_logarithms(nodes)
    return Ambiguous(value, _value(decimal), "logarithm") if decimal != nodes else value


def _with_decimal_logarithms(nodes: Nodes) -> Nodes:
    """Returns nodes with `\\lg` for each `\\log` without a base."""
    found = []
    for node, following in itertools.zip_longest(nodes, nodes[1:]):
        is_bare = node == Node("function", "\\log") and not (following and following.kind == "sub")
        parts = tuple(map(_with_decimal_logarithms, node.parts))
        found.append(Node(node.kind, "\\lg" if is_bare else node.text, parts))
    return tuple(found)


def _value(nodes: Iterable[Node], depth: int = 0) -> Value:
    nodes = stripped(nodes)
    if depth > _MAX_DEPTH:
        raise Unreadable("it is nested too deeply")
    if not nodes:
        raise Unreadable("a part is missing")
    if len(nodes) == 1 and nodes[0].kind == "word" and len(nodes[0].text) == 1 and nodes[0].text.isalpha():
        nodes = [Node("letter", nodes[0].text)]
    for word in ("exactly", "approximately", "approx", "about", "around", "roughly"):
        for front in (nodes[:1], nodes[: len(word)]):
            if "".join(node.text for node in front).lower() == word and len(nodes) > len(front):
                return _value(nodes[len(front) + (nodes[len(front)].text == ".") :], depth + 1)
    if len(nodes) > 5 and "".join(node.text for node in nodes[-5:]) == " only":
        return _value(nodes[:-5], depth + 1)
    if len(nodes) > 1 and is_word_of("only")(nodes[-1]):
        return _value(nodes[:-1], depth + 1)
    if (found := _labelled(nodes, depth) or _spelled(nodes)) is not None:
        return found
    return _statement(tokens(nodes), depth)


# ------------------------------------------------------------------------------------- labels and spellings
def _labelled(nodes: Sequence[Node], depth: int) -> Value | None:
    """Returns what stands behind the label of an option or part, `(C) 12` or `a) 12`; None if there is no label."""
    start = int(is_word_of("option", "answer", "choice")(nodes[0]))
    for end in range(start + 2, min(start + 6, len(nodes))):
        text = plain(nodes[start:end]) or ""
        match = _LABEL.fullmatch(text)
        if match is None or closing(nodes[start:]) not in (0, end - start - 1):
            continue
        letter, rest = match[1] or match[2], stripped(nodes[end:])
        is_apart = nodes[end].kind in ("space", "wide", "word", "number", "frac", "sqrt") or any(
            node.kind == "word" for node in nodes[:end]
        )
        if not rest or not is_apart or rest[0].kind in ("sign", "sup", "relation", "comma"):
            return None
        if is_word_of(*JOINING)(rest[0]) or (text[0] == "(" and not letter and rest[0].kind != "number"):
            return None
        if not letter:
            return _value(rest, depth + 1)
        if any(_LABEL.fullmatch(plain(rest[at : at + 3]) or "") for at in range(len(rest))):
            raise Unreadable("it names two options")
        try:
            return Option(letter, _value(rest, depth + 1))
        except Unreadable:
            return Option(letter, Text("page", show(rest)))
    return None


def _spelled(nodes: Sequence[Node]) -> Value | None:
    """Returns what is compared by its spelling; None for mathematics."""
    if (numeral := _numeral(nodes)) is not None:
        return numeral
    text = plain(nodes) or ""
    points = plain(nodes[1:]) if nodes[0].text in ("\\angle", "\\triangle") else None
    if points is not None and re.fullmatch(r"[A-Z]{1,3}'?", points):
        return Text("name", f"{nodes[0].text} {points}")
    option = words.option(text)
    if option is not None and not re.fullmatch(r"\w\)", text):
        return Option(option)
    number = re.match(r"[-\d.,]+\s*", text)
    is_amount = (
        number is not None and units.parse(text[number.end() :]) is not None
    )  # 9000 Pa is no chemistry
    if (
        not is_amount
        and not re.fullmatch(r"\d+ ?[A-Z][a-z]", text)
        and (formula := words.formula(text)) is not None
    ):
        return Text("formula", formula)
    if (date := words.date(text)) is not None:
        return Text("date", date)
    if (clock := words.clock(text)) is not None:
        digits = re.fullmatch(r"(\d+):(\d\d)", text)  # 15:21 may be a ratio
        return Clock(int(digits[1]) * 60 + int(digits[2])) if digits else Clock(*clock)
    letters = text.replace(" ", "")
    phrase = words.phrase(text)
    is_run = all(node.kind in ("letter", "word", "space") for node in nodes)
    if (
        is_run
        and text.lower() not in _CAPITALS
        and re.fullmatch(r"[A-Z]{2,}", letters)
        and phrase in (text, text.lower(), None)
    ):
        return Text("name", text)
    if text.lower() in ("infinity", "infinite") or text in ("+infinity",):
        return Number(sympy.oo)
    if is_run and phrase is not None and text.isupper() and text.lower() in _CAPITALS:
        return Text("words", phrase)
    if phrase is not None and phrase not in (text, text.lower()) and text.isupper() and text.isalpha():
        return Text("words", phrase)  # DNE
    pieces = text.split()
    for end in range(1, len(pieces)):  # five apples
        if (size := words.number(" ".join(pieces[:end]))) is not None and words.noun(
            " ".join(pieces[end:])
        ) is not None:
            unit = _unit([Node("word", " ".join(pieces[end:]))])
            return (
                Quantity(Number(sympy.Rational(size.numerator, size.denominator)), unit)
                if unit is not None
                else None
            )
    if phrase is None or len(letters) < 2 or {"and", "or"} & {*phrase.split()} - {*_PHRASES}:
        return None
    is_upright = any(node.kind == "word" for node in nodes)
    return _PHRASES.get(phrase, Text("words", phrase)) if is_upright or is_phrase(text) else None


def _numeral(nodes: Sequence[Node]) -> Text | None:
    """Returns a numeral with its base, 101_2; None for anything else."""
    if len(nodes) < 2 or nodes[-1].kind != "sub":
        return None
    body = nodes[1:-2] if len(nodes) > 3 and (nodes[0].text, nodes[-2].text) == ("(", ")") else nodes[:-1]
    digits, base = (plain(part) or "" for part in (body, nodes[-1].parts[0]))
    base = str(words.number(base)) if base.isalpha() else base
    is_numeral = re.fullmatch(r"-?[0-9A-F ]*\d[0-9A-F ]*", digits) and base.isdigit()
    return Text("numeral", f"{digits.replace(' ', '')}_{base}") if is_numeral else None


# ------------------------------------------------------------------------------------- several values and relations
def _statement(nodes: Sequence[Node], depth: int) -> Value:
    """Reads alternatives, conditions and lists, then relations."""
    nodes = _without_remark(stripped(nodes))
    if len(alternatives := split(nodes, is_word_of("or"), is_sign_of("\\lor"))) > 1:
        return Several("or", tuple(_value(part, depth + 1) for part in alternatives))
    if len(condition := split(nodes, is_word_of(*_CONDITIONS))) > 1:
        if len(condition) > 2:
            raise Unreadable("it has two conditions")
        body = stripped(condition[0])
        body = body[:-1] if body and is_comma(body[-1]) else body
        return _family((_value(body, depth + 1), _membership(condition[1], depth)), "condition")
    parts = split(_with_commas(nodes), is_word_of("and"), is_sign_of("\\land"), is_comma)
    parts = [part for part in parts if len(parts) == 1 or stripped(part)]  # `1, and 2`
    if len(parts) > _MOST_ITEMS:
        raise Unreadable("it lists too much")
    if not parts:
        raise Unreadable("a part is missing")
    if len(parts) == 1:
        return _relation(parts[0], depth)
    return _family(tuple(_value(part, depth + 1) for part in parts))


def _without_remark(nodes: list[Node]) -> list[Node]:
    """Reads `0.5 (or 1/2)` as `0.5 or 1/2`, and `k\\pi (k \\in \\mathbb{Z})` with a comma."""
    for place in range(1, len(nodes) - 2):
        is_last = nodes[place].kind == "open" and closing(nodes[place:]) == len(nodes) - place - 1
        if is_last and nodes[-2].text in _INTEGERS and any(map(is_sign_of("\\in"), nodes[place:])):
            return [*nodes[:place], Node("comma", ","), *nodes[place + 1 : -1]]
        if is_last and is_word_of("or")(nodes[place + 1]):
            return [*nodes[:place], *nodes[place + 1 : -1]]
    return nodes


def _with_commas(nodes: Sequence[Node]) -> list[Node]:
    """Turns a wide space between two statements into a comma: `x = 1 \\quad y = 2`."""
    found, *parts = split(nodes, lambda node: node.kind == "wide")
    for part in parts:
        are_statements = all(any(node.kind == "relation" for node in side) for side in (found, part))
        has_comma = bool(stripped(found)) and is_comma(stripped(found)[-1])
        found = [
            *found,
            Node("comma", ",") if are_statements and not has_comma else Node("space", " "),
            *part,
        ]
    return found


def _membership(nodes: Sequence[Node], depth: int) -> Value:
    """Reads a condition; `k is an integer` says that k is in Z."""
    text = " ".join((plain(nodes) or "").split())
    found = re.fullmatch(r"([A-Za-z]) is any? integer|(?:(?:all|any|every|some) )?integers? ([A-Za-z])", text)
    whole = Expression(symbol("\\mathbb{Z}"))
    return (
        Relation((Expression(symbol(found[1] or found[2])), whole), ("in",))
        if found
        else _value(nodes, depth + 1)
    )


def _family(items: tuple[Value, ...], kind: str = "list") -> Several:
    """Returns a list, or the family `n\\pi, n \\in \\mathbb{Z}`, in which the letter does not matter."""
    if (
        isinstance(items[0], Relation)
        and items[0].signs == ("!=",)
        and all(isinstance(item, Number) for item in items[1:])
    ):
        items = tuple(
            Relation((items[0].sides[0], side), ("!=",)) for side in (items[0].sides[1], *items[1:])
        )  # x \\ne 1, 2
    if len(items) == 2 and isinstance(items[1], Relation) and items[1].signs == ("in",):
        variable, domain = items[1].sides
        if (
            isinstance(domain, Expression)
            and str(domain.value) in _INTEGERS
            and isinstance(variable, Expression)
        ):
            return Several("family", (put(items[0], variable.value, INTEGER), domain))
    return Several(kind, items)


def _relation(nodes: Sequence[Node], depth: int) -> Value:
    """Reads a chain of relations, with its modulus, or one term."""
    nodes, modulus = _modulus(stripped(nodes), depth)
    sides, signs = [[]], []  # type: tuple[list[list[Node]], list[str]]
    level = 0
    for node in nodes:
        level += (node.kind == "open") - (node.kind == "close")
        if level or node.kind != "relation" or node.text == "\\mid":
            sides[-1].append(node)
        elif node.text in _RELATIONS:
            signs.append(_RELATIONS[node.text])
            sides.append([])
        else:
            raise Unreadable(f"`{node.text}` is no relation of an answer")
    if not signs:
        term = _term(nodes, depth)
        return term if modulus is None else Relation((term,), (), modulus)
    if signs[0] in ("=", "~") and not stripped(sides[0]) and len(sides) == 2:
        return _term(sides[1], depth)  # = 5
    return Relation(tuple(_side(side, depth) for side in sides), tuple(signs), modulus)


def _modulus(nodes: list[Node], depth: int) -> tuple[list[Node], Value | None]:
    r"""Returns what stands in front of `\pmod{5}`, `(mod 5)` or `mod 5`, and the modulus."""
    if nodes and nodes[-1].kind == "mod":
        return stripped(nodes[:-1]), _value(nodes[-1].parts[0], depth + 1)
    place = next((place for place, node in enumerate(nodes) if is_word_of("mod")(node)), None)
    if place is None:
        return nodes, None
    before, behind = stripped(nodes[:place]), stripped(nodes[place + 1 :])
    if before and behind and (before[-1].text, behind[-1].text) == ("(", ")"):
        before, behind = stripped(before[:-1]), behind[:-1]
    return before, _value(behind, depth + 1)


def _side(nodes: Sequence[Node], depth: int) -> Value:
    """Reads a side of a relation, which may be a name: x(t), P_1(2), Area, an angle."""
    nodes = stripped(nodes)
    text = plain(nodes)
    start = next((place for place, node in enumerate(nodes) if node.kind == "open"), 0)
    inner = stripped(nodes[start + 1 : -1]) if start and nodes[-1].text == ")" else []
    is_call = (
        nodes[:1]
        and nodes[0].kind == "letter"
        and all(node.kind in ("letter", "sub", "mark", "sup") for node in nodes[:start])
    )
    if (
        inner
        and is_call
        and closing(nodes[start:]) == len(nodes) - start - 1
        and all(node.kind in ("letter", "number", "comma", "space", "open", "close") for node in inner)
    ):
        return Expression(symbol(show(nodes)))
    if nodes[:1] == [Node("letter", "m")] and len(nodes) > 1 and nodes[1].text == "\\angle":
        nodes = nodes[1:]
    if nodes and nodes[0].text in ("\\angle", "\\triangle") and (name := _spelled(nodes)) is not None:
        return name
    if nodes[:1] == [Node("letter", "\\Delta")] and nodes[-1:] == [Node("mark", "^\\circ")]:
        return Expression(symbol(show(nodes)))
    if (
        text
        and all(node.kind in ("word", "space", "letter") for node in nodes)
        and any(node.kind == "word" for node in nodes)
    ):
        return Text("words", words.phrase(text) or text)
    try:
        return _term(nodes, depth)
    except Unreadable:
        if nodes and not _has_numbers(nodes):
            return Text("page", show(nodes))  # a name: A \\cap B, f(x)_{\\max}
        raise


# ------------------------------------------------------------------------------------- terms
def _term(nodes: Sequence[Node], depth: int) -> Value:
    """Reads what stands between commas and relations."""
    nodes = stripped(nodes)
    if not nodes:
        raise Unreadable("a part is missing")
    if depth > _MAX_DEPTH:
        raise Unreadable("it is nested too deeply")
    if len(nodes) == 1 and nodes[0].text in _SETS:
        return _SETS[nodes[0].text]
    for reader in (
        _plus_or_minus,
        _matrix,
        _bracketed,
        _union,
        _ratio,
        _amount,
        _angle,
        _quantity,
        _bare_unit,
    ):
        if (found := reader(nodes, depth)) is not None:
            return found
    return _mathematics(nodes)


def _matrix(nodes: list[Node], depth: int) -> Value | None:
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
    rows = [[_case(cell) if are_cases else [*cell.parts[0]] for cell in row] for row in alone[0].parts]
    values = tuple(tuple(_value(cell, depth + 1) for cell in row if cell) for row in rows)
    return Matrix(values, "cases" if are_cases else "matrix")


def _case(cell: Node) -> list[Node]:
    """Returns the nodes of one of several cases without its comma and its `if`."""
    nodes = stripped(cell.parts[0])
    while nodes and (is_comma(nodes[-1]) or nodes[-1].text == "."):
        nodes = stripped(nodes[:-1])
    return nodes[1:] if nodes and is_word_of(*_CONDITIONS)(nodes[0]) else nodes


def _bracketed(nodes: list[Node], depth: int) -> Value | None:
    """Returns what brackets around the whole term hold: a tuple, a set, an interval, or a value."""
    if nodes[0].kind == "open" and nodes[-1].kind == "sup" and show(nodes[-1].parts[0]) in ("T", "\\top"):
        nodes = nodes[:-1]  # (1, 2, 3)^T
    if nodes[0].kind != "open" or closing(nodes) != len(nodes) - 1:
        return None
    brackets, inner = nodes[0].text + nodes[-1].text, stripped(nodes[1:-1])
    brackets = "()" if brackets == "\\langle\\rangle" else brackets
    if brackets == "\\{\\}":
        return _set(inner, depth)
    items = split(inner, is_comma)
    if len(items) == 1:
        return _statement(inner, depth + 1) if brackets in ("()", "[]") else None
    values = tuple(_value(item, depth + 1) for item in items)
    if len(values) == 2 and brackets in ("(]", "[)"):
        return Interval(*values, brackets)
    if brackets not in ("()", "[]"):
        raise Unreadable("its brackets do not match")
    return Several("tuple", values, brackets)


def _set(inner: list[Node], depth: int) -> Value:
    """Reads {1, 2}, or what {x | x > 1} and {x in R : x > 1} say of their members."""
    places = (place for place, node in enumerate(inner[:8]) if place and node.text in ("\\mid", "|", ":"))
    bar = next(places, 0)
    members = stripped(inner[:bar])
    if (
        members
        and members[0].kind == "letter"
        and (len(members) == 1 or any(is_sign_of("\\in")(node) for node in members))
    ):
        if len(members) > 1 and members[-1].text != "\\mathbb{R}":
            raise Unreadable("a set over other than the real numbers")
        return _statement(inner[bar + 1 :], depth + 1)
    if any(map(is_word_of("or"), inner)):
        raise Unreadable("a set of alternatives")
    items = split(_with_commas(inner), is_comma) if inner else []
    return Several("set", tuple(_value(item, depth + 1) for item in items))


def _union(nodes: list[Node], depth: int) -> Value | None:
    if len(parts := split(nodes, is_sign_of("\\cup"))) > 1:
        return Union(tuple(itertools.chain.from_iterable(_sets(_term(part, depth + 1)) for part in parts)))
    if len(sides := split(nodes, is_sign_of("\\setminus"))) != 2:
        return None
    whole, without = (_term(side, depth + 1) for side in sides)
    found = complement(without) if whole == REALS else None
    if found is None:
        raise Unreadable("a difference of sets is left to carry out")
    return found


def _sets(value: Value) -> Sequence[Interval | Several]:
    match value:
        case Union():
            return value.parts
        case Interval() | Several(kind="set"):
            return [value]
        case Several(kind="tuple", items=(low, high)):
            return [Interval(low, high, value.brackets)]
        case Number():  # \cup {1}
            return [Several("set", (value,))]
    raise Unreadable("a union of what is no set")


def _ratio(nodes: list[Node], depth: int) -> Value | None:
    parts = split(nodes, is_sign_of(":"), is_word_of("to"))
    return Ratio(tuple(_term(part, depth + 1) for part in parts)) if len(parts) > 1 else None


def _plus_or_minus(nodes: list[Node], depth: int) -> Value | None:
    """Returns the values of all choices of signs. With a sign of minus or plus, two signs are one choice."""
    signs = [*_double_signs(nodes)]
    if not signs or nodes[0].text == "\\{":
        return None
    if len(signs) > _MOST_SIGNS:
        raise Unreadable("it has too many signs of plus or minus")
    if "\\mp" in signs:
        choices = [tuple("+-" if sign == "\\pm" else "-+" for sign in signs)]
        choices = [tuple(pair[turn] for pair in choices[0]) for turn in (0, 1)]
    else:
        choices = [*itertools.product("+-", repeat=len(signs))]
    return Several("list", tuple(_term(_with_signs(nodes, iter(choice)), depth + 1) for choice in choices))


def _double_signs(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        if node.kind == "sign" and node.text in ("\\pm", "\\mp"):
            yield node.text
        for part in node.parts:
            yield from _double_signs(part)


def _with_signs(nodes: Iterable[Node], choice: Iterator[str]) -> list[Node]:
    """Returns nodes with each sign of plus or minus replaced by the next one of the choice."""
    found = []
    for node in nodes:
        is_double = node.kind == "sign" and node.text in ("\\pm", "\\mp")
        text = next(choice) if is_double else node.text
        found.append(Node(node.kind, text, tuple(tuple(_with_signs(part, choice)) for part in node.parts)))
    return found


# ------------------------------------------------------------------------------------- quantities
def _amount(nodes: list[Node], depth: int) -> Value | None:
    """Reads an amount of money with its sign in front: $5, -$5, $5 million."""
    place = int(nodes[0] == Node("sign", "-"))
    if len(nodes) < place + 2 or nodes[place].kind != "word" or nodes[place].text not in _CURRENCIES:
        return None
    unit = units.parse(nodes[place].text)
    match _term([*nodes[:place], *nodes[place + 1 :]], depth + 1):
        case Number() as size if unit is not None:
            return Quantity(size, unit)
        case Quantity() as amount if unit is not None and amount.unit.dimension == unit.dimension:
            return amount
        case Quantity(size=size, unit=by) if (
            whole := units.parse(f"{nodes[place].text} {by.name}")
        ) is not None:
            return Quantity(size, whole)  # $5/hour
    raise Unreadable("a currency sign stands before what is no amount")


def _angle(nodes: list[Node], depth: int) -> Value | None:
    r"""Reads 30^\circ 15' 20''."""
    degree = next((place for place, node in enumerate(nodes) if node == Node("mark", "^\\circ")), None)
    unit = units.parse("°")
    if degree is None and (
        feet := re.fullmatch(r"(\d+)'(\d+(?:\.\d+)?)''", "".join(node.text for node in nodes))
    ):
        inches = sympy.Rational(feet[2])  # 5'6"
        return Quantity(
            Number(sympy.Integer(feet[1]) + inches / 12), units.parse("ft") or units.counted("foot")
        )
    if degree is None or unit is None:
        return None
    text = "".join(node.text for node in nodes[degree + 1 :] if node.kind not in ("space", "wide"))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)'(?:(\d+(?:\.\d+)?)(?:''|\"))?", text)
    if match is None:
        return None
    minutes, seconds = sympy.Rational(match[1]), sympy.Rational(match[2] or 0)
    return Quantity(Number(_mathematics(nodes[:degree]).value + minutes / 60 + seconds / 3600), unit)


def _quantity(nodes: list[Node], depth: int) -> Value | None:
    """Reads a value with what stands behind it: a unit, a percent or degree sign, a number word, a counted noun."""
    start = next((place for place in range(len(nodes)) if _begins_unit(nodes, place)), None)
    if start is None:
        return None
    front, word = nodes[:start], nodes[start].text.lower()
    if any(node.text == "\\%" for node in [*front, *nodes[start + 1 :]]):
        raise Unreadable("a percentage has a unit")
    if not front:
        raise Unreadable("it is a text that cannot be read")
    if word == "times" and start == len(nodes) - 1:
        return Quantity(_mathematics(front), units.counted("time"))
    if word in _SIGN_WORDS:
        return _term([*front, Node("sign", _SIGN_WORDS[word]), *nodes[start + 1 :]], depth + 1)
    if word == "by":
        return Several("tuple", (_term(front, depth + 1), _term(nodes[start + 1 :], depth + 1)), "by")
    for end in range(len(nodes), start, -1):  # the longest unit
        rest = stripped(nodes[end:])
        if (unit := _unit(nodes[start:end])) is not None:
            ends = stripped(front)
            is_range = [node.kind for node in ends] == ["number", "sign", "number"] and ends[1].text == "-"
            if is_range and not _is_part(unit):  # 3-5 days
                return Ratio((_mathematics(ends[:1]), Quantity(_mathematics(ends[2:]), unit)))
            if any(map(is_sign_of("+", "-"), ends[1:])) and not _is_closed(ends):
                raise Unreadable("a unit stands behind a sum")
            return _with_rest(Quantity(_mathematics(front), unit), rest, depth)
        if (factor := _number_word(nodes[start:end])) is not None:
            size = number_or_expression(_mathematics(front).value * factor)
            noun = _unit(rest) if rest else None
            if rest and noun is None:
                raise Unreadable("something stands behind a number word")
            return Quantity(size, noun) if noun is not None else size  # 5 million dollars
    raise Unreadable("its words are no unit")


def _is_part(unit: units.Unit) -> bool:
    return unit.dimension == (("fraction", 1),)


def _is_closed(nodes: Sequence[Node]) -> bool:
    """Whether all signs of a sum stand in brackets."""
    return len(split(nodes, is_sign_of("+", "-"))) - int(nodes[0].kind == "sign") == 1


def _with_rest(first: Quantity, rest: list[Node], depth: int) -> Value:
    """Returns a quantity with what stands behind its unit: 5 ft 6 in, 12 m by 5 m, 10 m north."""
    if not rest:
        return first
    if is_word_of("by")(rest[0]):
        return Several("tuple", (first, _term(rest[1:], depth + 1)), "by")
    text = plain(rest) or ""
    if rest[0].kind != "number" and (is_noun(text) or words.noun(text) is not None):
        return Several("compound", (first, Text("words", words.phrase(text) or text)))
    other = _term(rest, depth + 1) if rest[0].kind == "number" else None
    items = other.items if isinstance(other, Several) and other.kind == "compound" else (other,)
    if not all(isinstance(item, Quantity) for item in items):
        raise Unreadable("something stands behind a unit")
    return Several("compound", (first, *(item for item in items if item is not None)))


def _begins_unit(nodes: Sequence[Node], place: int) -> bool:
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


def _unit(nodes: Sequence[Node]) -> units.Unit | None:
    """Returns the unit that nodes spell, or a counted noun."""
    text = plain(stripped(nodes))
    if not text or any(node.kind == "number" for node in nodes) or _number_word(nodes) is not None:
        return None
    unit = _parsed_unit(text)
    noun = words.noun(text.removesuffix(".").strip()) if unit is None else None
    return units.counted(noun) if noun is not None else unit


def _parsed_unit(text: str) -> units.Unit | None:
    return units.parse(re.sub(r"\^\{([-+]?\d+)\}", r"^\1", text))


def _number_word(nodes: Sequence[Node]) -> Fraction | None:
    text = (plain(stripped(nodes)) or "").lower()
    return None if text in ("one", "ones") else words.NUMBER_WORDS.get(text.removesuffix("s"))


def _bare_unit(nodes: list[Node], depth: int) -> Value | None:
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
    quantity = Quantity(_mathematics(nodes[:start]), unit)
    if nodes[start - 1].kind in ("space", "wide"):
        return quantity
    try:
        found = _mathematics(nodes)
    except Unreadable:
        return quantity  # 5g/mol
    return Expression(found.value, quantity=quantity) if isinstance(found, Expression) else None


def _has_numbers(nodes: Iterable[Node]) -> bool:
    return any(node.kind == "number" or any(map(_has_numbers, node.parts)) for node in nodes)


def _has_letters(nodes: Iterable[Node]) -> bool:
    """Whether nodes hold a variable, in their parts too."""
    return any(
        (node.kind == "letter" and node.text not in ("\\pi", "e")) or any(map(_has_letters, node.parts))
        for node in nodes
    )


# ------------------------------------------------------------------------------------- expressions
def _mathematics(nodes: Sequence[Node]) -> Number | Expression:
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
