r"""Reads an answer, LaTeX or plain text, as a value with a type (see `values`). Gold and answer are read alike.

`read` is a grammar from the outside in: what is compared by its spelling (words, chemistry, times, options), lists and
alternatives, relations, sets and intervals, ratios, quantities, and in the end expressions (see `expression`). Every node
of the page becomes part of the value, or the answer is unreadable; then it equals nothing but the same page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sympy

from reward.graders.math import expression, page, units, words
from reward.graders.math.expression import split
from reward.graders.math.limits import is_cheap
from reward.graders.math.page import Node, Unreadable, show
from reward.graders.math.values import (
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
)

REALS = Interval(Number(-sympy.oo), Number(sympy.oo), "()")
EMPTY = Several("set", ())
_SETS = {"\\mathbb{R}": REALS, "\\emptyset": EMPTY}
_PHRASES = {"all real numbers": REALS, "no solution": EMPTY, "empty set": EMPTY}
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\approx": "~", "\\equiv": "==",
    "\\in": "in", "\\notin": "not in", "\\sim": "~", "\\simeq": "~", "\\cong": "cong", "\\propto": "propto",
    "\\subset": "subset", "\\subseteq": "subseteq", "\\supset": "supset", "\\supseteq": "supseteq",
    "\\rightarrow": "->", "\\Rightarrow": "=>", "\\leftarrow": "<-", "\\Leftrightarrow": "<=>", "\\mapsto": "|->",
    "\\perp": "perp", "\\parallel": "parallel", "\\ll": "<<", "\\gg": ">>",
}  # fmt: skip
_JOINING = frozenset("and or if for when where by to minus plus times mod with than as otherwise".split())  # noqa: SIM905
_CONDITIONS = ("if", "for", "when", "where")
_SIGN_WORDS = {"minus": "-", "plus": "+", "times": "\\times"}
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp gcd lcm max min det".split()  # noqa: SIM905
)
_CURRENCIES = ("$", "€", "£", "¥", "₹")
_SHORT_NOUNS = ("BC", "AD", "BCE", "CE", "up")
_VOWELS = frozenset("aeiouyAEIOUY")
_INTEGERS = ("\\mathbb{Z}", "\\mathbb{N}")
_LONGEST_TEXT = 300
_MOST_ITEMS = 60
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of an answer, and what its page shows in one spelling. `reason`: why it is no more than a page."""

    value: Value
    shown: str
    reason: str = ""


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    r"""Returns the reading of the content of a box, or of a gold. Raises Unreadable if its page cannot be read.

    Example: read(r"\dfrac12").value -> Number(Rational(1, 2))
    """
    nodes = page.read(text)
    if not nodes:
        raise Unreadable("it is empty")
    shown = show(nodes)
    if (electrons := words.configuration(text)) is not None:  # 1s^22s^2 has no exponent 22
        return Reading(Text("formula", electrons), electrons)
    try:
        if not is_cheap(shown):
            raise Unreadable("it is too expensive to compute")
        return Reading(_value(nodes), shown)
    except Unreadable as error:
        return Reading(Text("page", shown), shown, str(error))
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError) as error:  # sympy's
        return Reading(Text("page", shown), shown, f"sympy cannot compute it: {error}")


# ------------------------------------------------------------------------------------- text and tokens
def plain(nodes: Iterable[Node]) -> str | None:
    """Returns nodes as plain text, with ^ and _ for scripts; None if they hold mathematics that is not plain."""
    found = ""
    for node in nodes:
        match node.kind:
            case "word" | "number" | "space" | "comma" | "open" | "close":
                found += node.text
            case "wide":
                found += " "
            case "letter" | "sign" | "relation":
                found += _PLAIN.get(node.text, node.text)
            case "mark":
                found += _PLAIN.get(node.text, node.text)
            case "sup" | "sub":
                inner = plain(node.parts[0])
                if inner is None:
                    return None
                found += f"{'^' if node.kind == 'sup' else '_'}{{{inner}}}"
            case "frac":
                above, below = map(plain, node.parts)
                if above is None or below is None or not any(item.kind == "word" for item in node.parts[1]):
                    return None
                found += f"{above}/({below})"
            case _:
                return None
        if len(found) > _LONGEST_TEXT:
            return None
    return (
        None
        if "\\" in found.replace("\\rightarrow", "").replace("\\rightleftharpoons", "")
        else found.strip()
    )


_PLAIN = {
    "\\mu": "µ", "\\Omega": "Ω", "\\cdot": "·", "\\times": "×", "^\\circ": "°", "\\%": "%", "\\$": "$",
    "\\rightarrow": "->", "\\rightleftharpoons": "<->", "\\AA": "Å", "\\bullet": "·", "\\{": "{", "\\}": "}",
}  # fmt: skip


def _tokens(nodes: Sequence[Node]) -> list[Node]:
    """Returns nodes with runs of bare letters as words where they are words, thousands and e-notation joined."""
    found: list[Node] = []
    place = 0
    nodes = [
        Node("letter", node.text) if _is_upright_variable(node, before) else node
        for before, node in zip((None, *nodes), nodes, strict=False)
        if not (
            node.kind == "word" and node.text in page.commands.ORDINALS and before and before.kind == "number"
        )
    ]
    while place < len(nodes):
        if (unit := _greek_unit(nodes[place:], found)) is not None:
            found.append(Node("word", unit[0]))
            place += unit[1]
            continue
        end = place
        while (
            end < len(nodes)
            and nodes[end].kind == "letter"
            and nodes[end].text.isascii()
            and nodes[end].text.isalpha()
        ):
            end += 1
        if end - place > 1 or (end > place and _is_unit_before_word(nodes, place, found)):
            found += _run(nodes[place:end], nodes[:place], nodes[end:])
            place = end
        else:
            found.append(nodes[place])
            place += 1
    return _roots(_whole_numbers(found))


def _is_upright_variable(node: Node, before: Node | None) -> bool:
    """Whether a letter is set upright and no unit: the x of 5\\text{x}."""
    is_letter = node.kind == "word" and len(node.text) == 1 and node.text.isalpha()
    return (
        is_letter
        and before is not None
        and before.kind in ("number", "letter", "close")
        and units.parse(node.text) is None
    )


def _is_unit_before_word(nodes: Sequence[Node], place: int, before: Sequence[Node]) -> bool:
    """Whether a letter between spaces is the unit in `16 m north`."""
    rest = nodes[place + 1 :]
    if (
        not before
        or before[-1].kind != "space"
        or not rest
        or rest[0].kind != "space"
        or not _behind_number(before)
    ):
        return False
    text = "".join(
        node.text if node.kind in ("letter", "word") and node.text.isalpha() else " " for node in rest[1:]
    )
    return _is_noun(text.split(" ")[0])


def _greek_unit(nodes: Sequence[Node], before: Sequence[Node]) -> tuple[str, int] | None:
    """Returns a unit with a Greek letter behind a number, \\mu C or k\\Omega, and how many nodes it takes."""
    for length in (1, 2, 3):
        group = nodes[:length]
        if all(node.kind in ("letter", "word", "space") for node in group) and any(
            node.text in ("\\mu", "\\Omega") for node in group
        ):
            text = (plain(group) or "").replace(" ", "")
            is_ended = len(nodes) == len(group) or nodes[length].kind not in ("letter", "word")
            if is_ended and _behind_number(before) and units.parse(text) is not None:
                return text, len(group)
    return None


def _run(run: Sequence[Node], before: Sequence[Node], after: Sequence[Node]) -> list[Node]:
    """Returns a run of letters as a word, a function's name, or as the letters of a product."""
    text = "".join(node.text for node in run)
    if _behind_number(before) and (
        units.is_bare_symbol(text)
        or (before[-1].kind == "space" and (units.parse(text) is not None or _is_noun(text)))
    ):
        return [Node("word", text)]
    for length in (6, 5, 4, 3, 2):
        if text[:length] in _FUNCTIONS and (len(text) == length or (len(text) == length + 1 and length > 2)):
            return [Node("function", f"\\{text[:length]}"), *run[length:]]
        if text[-length:] in _FUNCTIONS and after and not _is_word(text):
            return [*_run(run[:-length], before, after), Node("function", f"\\{text[-length:]}")]
    if text in ("pi", "infty", "infinity", "oo"):
        return [Node("letter", "\\pi" if text == "pi" else "\\infty")]
    if text in ("sqrt", "cbrt"):
        return [Node("function", text)]
    last = before[-1] if before else None
    if text in page.commands.ORDINALS and last is not None and last.kind == "number":
        return []
    is_apart = (not before or before[-1].kind != "letter") and (
        not after or after[0].kind not in ("sup", "sub", "mark")
    )
    if (
        text.lower() in _JOINING
        and is_apart
        and (not before or before[-1].kind in ("space", "wide", "close", "comma"))
    ):
        return [Node("word", text)]
    return [Node("word", text)] if is_apart and _is_word(text) else [*run]


def _is_noun(text: str) -> bool:
    return (
        text in _SHORT_NOUNS
        or len(text) > 3
        and text.islower()
        and not _VOWELS.isdisjoint(text)
        and text not in _FUNCTIONS
    )


def _behind_number(nodes: Sequence[Node]) -> bool:
    """Whether nodes end in a number, or in a unit behind one."""
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        if (
            node.kind == "sign"
            and node.text in ("\\cdot", "/")
            and place
            and nodes[place - 1].kind in ("word", "sup", "space")
        ):
            continue  # N \cdot m
        if node.kind not in ("space", "wide", "word", "sup", "mark"):
            return node.kind in ("number", "frac", "close", "sqrt") or node.text == "\\pi"
    return False


def _is_word(text: str) -> bool:
    """Whether letters in a row are a word and no product: four or more with a vowel, not in the order of the alphabet."""
    letters = text[1:] if text[:1].isupper() else text
    return (
        len(text) > 3
        and letters.islower()
        and not _VOWELS.isdisjoint(text)
        and not all(first < second for first, second in zip(text.lower(), text.lower()[1:], strict=False))
        or text.lower() in words.NUMBER_WORDS
    )


def _whole_numbers(nodes: Sequence[Node]) -> list[Node]:
    """Joins thousands (`1,234`, `1 234`; in brackets only with spaces), writes `7 3/4` as a mixed number, and e-notation
    as a product."""
    found: list[Node] = []
    place = depth = 0
    while place < len(nodes):
        node = nodes[place]
        depth += (node.kind == "open") - (node.kind == "close")
        if node.kind == "number" and not (found and found[-1].kind in ("comma", "number")):
            text, ends = "", []
            for following in nodes[place : place + 40]:
                if following.kind not in ("number", "comma", "space", "letter", "sign"):
                    break
                text += following.text
                ends.append(len(text))
            whole, length = _whole_number(text, depth)
            if length in ends:
                found += whole
                place += ends.index(length) + 1
                continue
        found.append(node)
        place += 1
    return found


_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:( )\d{3}(?: \d{3})*|(?:,\d{3})+)(?:\.\d+)?(?![\d,]| \d)", re.ASCII)
_MIXED = re.compile(r"(\d+) (\d+) ?/ ?(\d+)(?![\d.])", re.ASCII)
_SCIENTIFIC = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(?:E([+-]?)(\d{1,3})|e([+-]?)(\d{1,3}))(?![\w.])", re.ASCII)


def _whole_number(text: str, depth: int) -> tuple[list[Node], int]:
    if (match := _THOUSANDS.match(text)) and (depth <= 0 or match[1]):
        return [Node("number", re.sub("[ ,]", "", match[0]))], match.end()
    if match := _MIXED.match(text):
        parts = tuple((Node("number", digits),) for digits in match.groups()[1:])
        return [Node("number", match[1]), Node("frac", "", parts)], match.end()
    if match := _SCIENTIFIC.match(text):
        sign, exponent = match[2] or match[4] or "", match[3] or match[5]
        # 2e-1 is twice Euler's number less one
        if match[3] or not sign or "." in match[1] or len(exponent) > 1 or match[1] == "1":
            power = (*((Node("sign", "-"),) if sign == "-" else ()), Node("number", exponent))
            ten = (Node("number", "10"), Node("sup", "", (power,)))
            return [Node("number", match[1]), Node("sign", "\\times"), *ten], match.end()
    return [], -1


def _roots(nodes: Sequence[Node]) -> list[Node]:
    """Writes sqrt(2) and sqrt 2 as roots."""
    found: list[Node] = []
    rest = [*nodes]
    while rest:
        node = rest.pop(0)
        if node.kind != "function" or node.text not in ("sqrt", "cbrt"):
            found.append(node)
            continue
        while rest and rest[0].kind == "space":
            rest.pop(0)
        end = _closing(rest) if rest and rest[0].kind == "open" else 0 if rest else None
        if end is None:
            raise Unreadable("a root lacks its argument")
        inner = rest[1:end] if end else rest[:1]
        index = ((Node("number", "3"),),) if node.text == "cbrt" else ()
        found.append(Node("sqrt", "", (tuple(inner), *index)))
        del rest[: end + 1]
    return found


def _closing(nodes: Sequence[Node]) -> int | None:
    """Returns the place of the bracket that closes the first one."""
    depth = 0
    for place, node in enumerate(nodes):
        depth += (node.kind == "open") - (node.kind == "close")
        if depth == 0:
            return place
    return None


def _stripped(nodes: Sequence[Node]) -> list[Node]:
    found = [*nodes]
    while found and found[-1].kind in ("space", "wide"):
        found.pop()
    while found and found[0].kind in ("space", "wide"):
        del found[0]
    return found


# ------------------------------------------------------------------------------------- the grammar
def _value(nodes: Sequence[Node], depth: int = 0) -> Value:
    nodes = _stripped(nodes)
    if len(nodes) == 1 and nodes[0].kind == "word" and len(nodes[0].text) == 1 and nodes[0].text.isalpha():
        nodes = [Node("letter", nodes[0].text)]
    if depth > _MAX_DEPTH:
        raise Unreadable("it is nested too deeply")
    if not nodes:
        raise Unreadable("a part is missing")
    if (found := _labelled(nodes, depth) or _spelled(nodes)) is not None:
        return found
    return _statement(_tokens(nodes), depth)


def _spelled(nodes: Sequence[Node]) -> Value | None:
    """Returns what is compared by its spelling; None for mathematics."""
    if (numeral := _numeral(nodes)) is not None:
        return numeral
    if (
        nodes[0].text in ("\\angle", "\\triangle")
        and (points := plain(nodes[1:]))
        and re.fullmatch(r" ?[A-Z]{1,3}'?", points)
    ):
        return Text("name", f"{nodes[0].text} {points.strip()}")
    text = plain(nodes)
    if text is None:
        return None
    if (option := words.option(text)) is not None and not option[1] and not re.fullmatch(r"\w\)", text):
        return Option(option[0])
    is_amount = re.fullmatch(r"\d+ ?[A-Z][a-z]", text) or _is_amount(text)
    for kind, of in (("formula", words.formula), ("date", words.date)):
        if not is_amount and (spelling := of(text)) is not None:
            return Text(kind, spelling)
    if (clock := words.clock(text)) is not None:
        digits = re.fullmatch(r"(\d+):(\d\d)", text)  # 15:21 may be a ratio
        return Clock(int(digits[1]) * 60 + int(digits[2])) if digits else Clock(*clock)
    letters = text.replace(" ", "")
    if (
        re.fullmatch(r"[A-Z]{2,}", letters)
        and words.phrase(text) in (text, text.lower(), None)
        and all(node.kind in ("letter", "word", "space") for node in nodes)
    ):
        return Text("name", text if " " in text else letters)
    is_upright = any(node.kind == "word" for node in nodes)
    if (
        is_upright
        or text in ("no", "No", "NO")
        or (len(letters) > 2 and not _VOWELS.isdisjoint(letters) and _is_phrase(text))
    ):
        phrase = words.phrase(text)
        if phrase is not None and (phrase in _PHRASES or not set(phrase.split()) & {"and", "or"}):
            if is_upright and len(letters) == 1:
                return None
            return _PHRASES.get(phrase, Text("words", phrase))
    return None


def _is_amount(text: str) -> bool:
    """Whether a text is a number with a unit: 9000 Pa is no chemistry."""
    number = re.match(r"[-\d.,]+\s*", text)
    return number is not None and units.parse(text[number.end() :]) is not None


def _is_phrase(text: str) -> bool:
    """Whether bare letters are words: a word of three or more letters, and spaces, as in `does not exist`."""
    if not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[' -])*", text):
        return False
    pieces = text.split()
    return all(_is_word(piece) or piece.lower() in _COMMON for piece in pieces) or (
        len(pieces) > 1
        and any(len(piece) > 2 for piece in pieces)
        and all((len(piece) > 1 and not _VOWELS.isdisjoint(piece)) or piece in "aI" for piece in pieces)
    )


_COMMON = frozenset(
    "yes no not the odd even one two six ten men day sum all any none true red blue cat dog max min".split()
)  # noqa: SIM905


def _numeral(nodes: Sequence[Node]) -> Text | None:
    """Returns a numeral with its base, 101_2; None for anything else."""
    if len(nodes) < 2 or nodes[-1].kind != "sub":
        return None
    body = [*nodes[:-1]]
    if len(body) > 2 and (body[0].text, body[-1].text) == ("(", ")"):
        body = body[1:-1]
    digits, base = plain(body), plain(nodes[-1].parts[0])
    if digits is None or base is None or not re.fullmatch(r"-?[0-9A-F ]*\d[0-9A-F ]*", digits):
        return None
    if base.isalpha() and (named := words.number(base)) is not None:
        base = str(named)
    return Text("numeral", f"{digits.replace(' ', '')}_{base}") if base.isdigit() else None


_LABEL = re.compile(r"\(?(?:([A-H])|[a-h]|\d|i{1,3})\)|([A-H])[.:]")


def _labelled(nodes: Sequence[Node], depth: int) -> Value | None:
    """Returns the value behind the label of an option or part, `(C) 12` or `a) 12`; None if there is no label."""
    start = 0
    if nodes[0] in (Node("word", "Option"), Node("word", "Answer"), Node("word", "Choice")):
        start = 1
    for end in range(start + 2, min(start + 6, len(nodes))):
        text = plain(nodes[start:end])
        match = _LABEL.fullmatch(text) if text else None
        if match is None or _closing(nodes[start:]) not in (0, end - start - 1):
            continue
        rest = _stripped(nodes[end:])
        letter = match[1] or match[2]
        is_apart = (
            len(rest) < len(nodes) - end
            or nodes[end].kind in ("word", "number")
            or "word" in {n.kind for n in nodes[:end]}
        )
        if not rest or not is_apart or rest[0].kind in ("sign", "sup", "relation", "comma"):
            return None
        if rest[0].kind == "word" and rest[0].text.lower() in _JOINING:
            return None
        if (text[0] == "(" and not letter and rest[0].kind != "number") or (letter and not is_apart):
            return None
        if letter and any(_LABEL.fullmatch(plain(rest[at : at + 3]) or "") for at in range(len(rest))):
            raise Unreadable("it names two options")
        try:
            inner = _value(rest, depth + 1)
        except Unreadable:
            inner = Text("page", show(rest))
        return Option(letter, inner) if letter else inner
    return None


def _statement(nodes: Sequence[Node], depth: int) -> Value:
    """Reads lists, alternatives and conditions, then relations."""
    nodes = _without_remark(_stripped(nodes))
    if (alternatives := _split_at(nodes, _is_word_of("or"), _is_sign("\\lor"))) is not None:
        items = tuple(_value(part, depth + 1) for part in alternatives)
        return _together("or", items)
    if (condition := _split_at(nodes, _is_word_of(*_CONDITIONS))) is not None:
        if len(condition) != 2 or not _stripped(condition[0]):
            raise Unreadable("its condition cannot be read")
        body = _stripped(condition[0])
        body = body[:-1] if body[-1].kind == "comma" else body
        return Several("condition", (_value(body, depth + 1), _value(condition[1], depth + 1)))
    if (
        parts := _split_at(_with_commas(nodes), _is_word_of("and"), _is_sign("\\land"), _is_comma)
    ) is not None:
        parts = [part for part in parts if _stripped(part)]  # `1, and 2`
        if len(parts) > _MOST_ITEMS:
            raise Unreadable("it lists too much")
        items = tuple(_value(part, depth + 1) for part in parts)
        return items[0] if len(items) == 1 else _together("list", items)
    return _relation(nodes, depth)


def _without_remark(nodes: list[Node]) -> list[Node]:
    """Reads `0.5 (or 1/2)` as `0.5 or 1/2`."""
    if len(nodes) > 3 and nodes[-1].text == ")" and nodes[-1].kind == "close":
        for place in range(1, len(nodes) - 2):
            if (
                nodes[place].kind == "open"
                and nodes[place + 1].text == "or"
                and _closing(nodes[place:]) == len(nodes) - place - 1
            ):
                return [*nodes[:place], *nodes[place + 1 : -1]]
    return nodes


def _is_word_of(*names: str) -> Callable[[Node], bool]:
    return lambda node: node.kind == "word" and node.text.lower() in names


def _is_sign(*names: str) -> Callable[[Node], bool]:
    return lambda node: node.kind in ("sign", "relation", "letter") and node.text in names


def _is_comma(node: Node) -> bool:
    return node.kind == "comma"


def _split_at(nodes: Sequence[Node], *are_signs: Callable[[Node], bool]) -> list[list[Node]] | None:
    """Returns the parts between signs outside of brackets; None if there is no such sign."""
    parts = split(nodes, lambda node: any(is_sign(node) for is_sign in are_signs))
    return parts if len(parts) > 1 else None


def _with_commas(nodes: Sequence[Node]) -> list[Node]:
    """Turns a wide space between two statements into a comma: `x = 1 \\quad y = 2`."""
    parts = split(nodes, lambda node: node.kind == "wide")
    found = parts[0]
    for part in parts[1:]:
        states = all(any(node.kind == "relation" for node in side) for side in (found, part))
        found = [
            *found,
            Node("comma", ",") if states and _last(found).kind != "comma" else Node("space", " "),
            *part,
        ]
    return found


def _last(nodes: Sequence[Node]) -> Node:
    return next((node for node in reversed(nodes) if node.kind != "space"), Node("space"))


def _together(kind: str, items: tuple[Value, ...]) -> Value:
    """Returns several values as one: `n\\pi, n \\in \\mathbb{Z}` is a family, whose letter does not matter."""
    if len(items) == 2 and isinstance(items[1], Relation) and items[1].signs == ("in",):
        variable, domain = items[1].sides
        if (
            isinstance(domain, Expression)
            and str(domain.value) in _INTEGERS
            and isinstance(variable, Expression)
        ):
            return Several("family", (_renamed(items[0], variable.value), domain))
    return Several(kind, items)


def _renamed(value: Value, variable: sympy.Symbol) -> Value:
    whole = expression.symbol("\\mathbb{Z} 1")
    if isinstance(value, Expression):
        return Expression(value.value.subs(variable, whole), value.pending)
    if isinstance(value, Relation):
        return Relation(tuple(_renamed(side, variable) for side in value.sides), value.signs, value.modulus)
    if isinstance(value, Several):
        return Several(value.kind, tuple(_renamed(item, variable) for item in value.items), value.brackets)
    return value


def _relation(nodes: Sequence[Node], depth: int) -> Value:
    """Reads a chain of relations, or one term."""
    nodes = _stripped(nodes)
    modulus = None
    if nodes and nodes[-1].kind == "mod":
        modulus, nodes = _value(nodes[-1].parts[0], depth + 1), _stripped(nodes[:-1])
    elif (
        place := next((i for i, node in enumerate(nodes) if node.text == "mod" and node.kind == "word"), None)
    ) is not None:
        modulus = _value([node for node in nodes[place + 1 :] if node.text != ")"], depth + 1)
        nodes = _stripped(nodes[:place])
        if nodes and nodes[-1] == Node("open", "("):
            nodes = _stripped(nodes[:-1])
    sides: list[list[Node]] = [[]]
    signs: list[str] = []
    level = 0
    for node in nodes:
        level += (node.kind == "open") - (node.kind == "close")
        if level == 0 and node.kind == "relation" and node.text != "\\mid":
            if node.text not in _RELATIONS:
                raise Unreadable(f"`{node.text}` is no relation of an answer")
            signs.append(_RELATIONS[node.text])
            sides.append([])
        else:
            sides[-1].append(node)
    if signs and not _stripped(sides[0]) and len(sides) == 2 and signs[0] in ("=", "~"):
        return _term(sides[1], depth)  # = 5
    if not signs:
        term = _term(nodes, depth)
        return term if modulus is None else Relation((term,), (), modulus)
    return Relation(tuple(_side(side, depth) for side in sides), tuple(signs), modulus)


def _side(nodes: Sequence[Node], depth: int) -> Value:
    nodes = _stripped(nodes)
    start = next((place for place, node in enumerate(nodes) if node.kind == "open"), 0)
    if (
        0 < start
        and all(node.kind in ("letter", "sub", "mark") for node in nodes[:start])
        and nodes[0].kind == "letter"
    ):
        inner = [node for node in nodes[start + 1 : -1] if node.kind != "space"]
        if (
            nodes[-1].text == ")"
            and inner
            and all(node.kind in ("letter", "number", "comma") for node in inner)
        ):
            return Expression(expression.symbol(show(nodes)))  # x(t), P_1(2)
    text = plain(nodes)
    if nodes and nodes[0].text in ("\\angle", "\\triangle") and (name := _spelled(nodes)) is not None:
        return name
    if (
        text
        and any(node.kind == "word" for node in nodes)
        and all(node.kind in ("word", "space", "letter") for node in nodes)
    ):
        return Text("words", words.phrase(text) or text)  # Area = 12, pH = 7
    return _term(nodes, depth)


def _term(nodes: Sequence[Node], depth: int) -> Value:
    """Reads what stands between commas and relations."""
    nodes = _stripped(nodes)
    if not nodes:
        raise Unreadable("a part is missing")
    if depth > _MAX_DEPTH:
        raise Unreadable("it is nested too deeply")
    if len(nodes) == 1 and nodes[0].text in _SETS:
        return _SETS[nodes[0].text]
    for reader in (_matrix, _bracketed, _union, _ratio, _plus_or_minus, _quantity):
        if (found := reader(nodes, depth)) is not None:
            return found
    if any(node.kind == "matrix" for node in nodes):
        matrix, pending = expression.parse(nodes)
        if pending or not isinstance(matrix, sympy.MatrixBase):
            raise Unreadable("a determinant or a product of matrices is left to carry out")
        return Matrix(tuple(tuple(map(_sympy_value, row)) for row in matrix.tolist()))
    return _mathematics(nodes)


def _bracketed(nodes: list[Node], depth: int) -> Value | None:
    """Returns what brackets around the whole term hold: a tuple, a set, an interval, or a value."""
    opening = nodes[0]
    if opening.kind != "open" or _closing(nodes) != len(nodes) - 1:
        return None
    brackets, inner = opening.text + nodes[-1].text, _stripped(nodes[1:-1])
    if brackets in ("\\lfloor\\rfloor", "\\lceil\\rceil"):
        return None
    if brackets == "\\{\\}":
        return _set(inner, depth)
    items = [_stripped(item) for item in split(inner, _is_comma)]
    if len(items) == 1:
        return _statement(inner, depth + 1) if brackets in ("()", "[]") else None
    if brackets == "\\langle\\rangle":
        brackets = "()"
    if len(items) == 2 and brackets in ("(]", "[)"):
        low, high = (_value(item, depth + 1) for item in items)
        return Interval(low, high, brackets)
    if brackets not in ("()", "[]"):
        raise Unreadable("its brackets do not match")
    return Several("tuple", tuple(_value(item, depth + 1) for item in items), brackets)


def _set(inner: list[Node], depth: int) -> Value:
    if not inner:
        return EMPTY
    bar = next(
        (place for place, node in enumerate(inner) if node.text in ("\\mid", "|", ":") and 0 < place < 8),
        None,
    )
    members = inner[:bar] if bar is not None else []
    if (
        bar is not None
        and members[0].kind == "letter"
        and (len(_stripped(members)) == 1 or any(node.text == "\\in" for node in members))
    ):
        if len(_stripped(members)) > 1 and _stripped(members)[-1].text not in ("\\mathbb{R}",):
            raise Unreadable("a set over other than the real numbers")
        return _statement(inner[bar + 1 :], depth + 1)
    items = split(_with_commas(inner), _is_comma)
    return Several("set", tuple(_value(item, depth + 1) for item in items))


def _union(nodes: list[Node], depth: int) -> Value | None:
    parts = _split_at(nodes, _is_sign("\\cup"))
    if parts is not None:
        found: list[Interval | Several] = []
        for part in map(lambda part: _term(part, depth + 1), parts):
            found += part.parts if isinstance(part, Union) else [_as_set(part)]
        return Union(tuple(found))
    if (sides := _split_at(nodes, _is_sign("\\setminus"))) is not None and len(sides) == 2:
        whole, without = (_term(side, depth + 1) for side in sides)
        if whole != REALS or not isinstance(without, Several) or without.kind != "set":
            raise Unreadable("a difference of sets is left to carry out")
        return without_points([*without.items])
    return None


def without_points(points: list[Value]) -> Union:
    """Returns the real numbers but for some of them. Raises Unreadable unless these are real numbers."""
    if not all(isinstance(point, Number) and point.value.is_real for point in points):
        raise Unreadable("a set without what is no number")
    ends = sorted(
        (point.value for point in points if isinstance(point, Number)), key=lambda value: value.evalf(30)
    )
    edges = [-sympy.oo, *ends, sympy.oo]
    return Union(
        tuple(Interval(Number(low), Number(high), "()") for low, high in zip(edges, edges[1:], strict=False))
    )


def _as_set(value: Value) -> Interval | Several:
    if isinstance(value, Interval) or (isinstance(value, Several) and value.kind == "set"):
        return value
    if isinstance(value, Several) and value.kind == "tuple" and len(value.items) == 2:
        return Interval(*value.items, value.brackets)
    if isinstance(value, Number):  # \cup {1}
        return Several("set", (value,))
    raise Unreadable("a union of what is no set")


def _ratio(nodes: list[Node], depth: int) -> Value | None:
    parts = _split_at(nodes, _is_sign(":"), _is_word_of("to"))
    return None if parts is None else Ratio(tuple(_term(part, depth + 1) for part in parts))


def _plus_or_minus(nodes: list[Node], depth: int) -> Value | None:
    if not any(node.text in ("\\pm", "\\mp") and node.kind == "sign" for node in nodes):
        return None
    signs = ({"\\pm": "+", "\\mp": "-"}, {"\\pm": "-", "\\mp": "+"})
    both = (
        [Node("sign", table.get(node.text, node.text)) if node.kind == "sign" else node for node in nodes]
        for table in signs
    )
    return Several("list", tuple(_term(one, depth + 1) for one in both))


def _matrix(nodes: list[Node], depth: int) -> Value | None:
    """Reads several cases, and matrices of anything but mathematics (see `expression` for those)."""
    if not any(node.kind == "matrix" for node in nodes):
        return None
    alone = nodes[1:-1] if nodes[0].kind == "open" and nodes[-1].kind == "close" else nodes
    if len(alone) != 1 or alone[0].text in ("vmatrix", "Vmatrix"):
        return None
    is_cases = alone[0].text == "cases"
    cells = [
        [_condition(cell.parts[0]) if is_cases else cell.parts[0] for cell in row] for row in alone[0].parts
    ]
    rows = tuple(tuple(_value(cell, depth + 1) for cell in row if cell) for row in cells)
    return Matrix(rows, "cases" if is_cases else "matrix")


def _condition(cell: Sequence[Node]) -> list[Node]:
    """Returns a cell of several cases without its comma and its `if`."""
    nodes = _stripped(cell)
    while nodes and (nodes[-1].kind == "comma" or nodes[-1].text == "."):
        nodes = _stripped(nodes[:-1])
    return _stripped(nodes[1:]) if nodes and _is_word_of(*_CONDITIONS)(nodes[0]) else nodes


# ------------------------------------------------------------------------------------- quantities
_UNIT_KINDS = frozenset(
    ("word", "letter", "sup", "sign", "space", "wide", "mark", "open", "close", "frac", "number")
)


def _quantity(nodes: list[Node], depth: int) -> Value | None:
    """Returns a value with the unit, currency, percent or degree sign, number word or counted noun behind it."""
    if (
        nodes[0].kind == "word"
        and nodes[0].text in _CURRENCIES
        or nodes[0] in (Node("sign", "-"),)
        and nodes[1:]
        and nodes[1].text in _CURRENCIES
    ):
        at = 0 if nodes[0].kind == "word" else 1
        rest = _term([*nodes[:at], *nodes[at + 1 :]], depth + 1)
        unit = units.parse(nodes[at].text)
        if (
            unit is None
            or not isinstance(rest, Number | Quantity)
            or (isinstance(rest, Quantity) and rest.unit.dimension != unit.dimension)
        ):
            raise Unreadable("a currency sign stands before what is no amount")
        return Quantity(rest.size if isinstance(rest, Quantity) else rest, unit)
    if (angle := _degrees_and_minutes(nodes)) is not None:
        return angle
    start = next((place for place, node in enumerate(nodes) if _begins_unit(nodes, place)), None)
    if start is None:
        return _bare_letters(nodes)
    if start == 0:
        raise Unreadable("it is a text that cannot be read")
    if nodes[start].text.lower() in _SIGN_WORDS:
        sign = Node("sign", _SIGN_WORDS[nodes[start].text.lower()])
        return _term([*nodes[:start], sign, *nodes[start + 1 :]], depth + 1)
    if nodes[start].text.lower() == "by":
        return Several("tuple", (_term(nodes[:start], depth + 1), _term(nodes[start + 1 :], depth + 1)), "by")
    for end in range(len(nodes), start, -1):
        unit = _unit(nodes[start:end])
        if unit is None:
            continue
        size = _mathematics(
            [node for node in nodes[:start] if node.text != "\\$"]
            if isinstance(unit, units.Unit)
            else nodes[:start]
        )
        rest = _stripped(nodes[end:])
        if isinstance(unit, units.Unit):
            first: Value = Quantity(size, unit)
        else:
            first = _sympy_value(size.value * sympy.Rational(unit.numerator, unit.denominator))
        if not rest:
            return first
        if isinstance(first, Number):  # 5 million dollars
            noun = _unit(rest)
            if isinstance(noun, units.Unit):
                return Quantity(first, noun)
            raise Unreadable("something stands behind a number word")
        text = plain(rest)
        following = words.phrase(text) if text and not any(c.isdigit() for c in text) else None
        if following is not None and (
            text in _SHORT_NOUNS or words.noun(text or "") is not None
        ):  # 10 m north
            return Several("compound", (first, Text("words", following)))
        if rest[0].text.lower() == "by":
            return Several("tuple", (first, _term(rest[1:], depth + 1)), "by")
        if rest[0].kind == "number":
            other = _term(rest, depth + 1)  # 5 ft 6 in
            items = other.items if isinstance(other, Several) and other.kind == "compound" else (other,)
            if all(isinstance(item, Quantity) for item in items):
                return Several("compound", (first, *items))
        raise Unreadable("something stands behind a unit")
    raise Unreadable("its words are no unit")


def _begins_unit(nodes: Sequence[Node], place: int) -> bool:
    node = nodes[place]
    if node.kind == "word" or (node.kind == "mark" and node.text in ("\\%", "^\\circ")):
        level = sum((n.kind == "open") - (n.kind == "close") for n in nodes[:place])
        if node.kind == "mark" and any(n.kind == "function" for n in nodes[:place]):
            return False
        return level == 0
    if node.kind == "frac":
        return place > 0 and any(part[:1] and part[0].kind == "word" for part in node.parts)
    return False


def _unit(nodes: Sequence[Node]) -> units.Unit | object | None:
    """Returns the unit or the number word (a Fraction) that nodes spell; None for anything else."""
    text = plain(_stripped(nodes))
    if not text or any(node.kind == "number" for node in nodes):
        return None
    text = re.sub(r"\^\{([-+]?\d+)\}", r"^\1", text.strip())
    if (unit := units.parse(text)) is not None:
        return unit
    if (
        number := words.NUMBER_WORDS.get(text.lower().removesuffix("s"))
    ) is not None and text.lower() not in ("one", "ones"):
        return number
    noun = words.noun(text.removesuffix(".").strip())
    return units.counted(noun) if noun is not None else None


def _degrees_and_minutes(nodes: Sequence[Node]) -> Quantity | None:
    r"""Reads 30^\circ 15' 20''."""
    degree = next((place for place, node in enumerate(nodes) if node == Node("mark", "^\\circ")), None)
    if degree is None or not any(node == Node("mark", "'") for node in nodes[degree:]):
        return None
    rest = [node for node in nodes[degree + 1 :] if node.kind not in ("space", "wide")]
    texts = "".join(node.text for node in rest)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)'(?:(\d+(?:\.\d+)?)(?:''|\"))?", texts)
    unit = units.parse("°")
    if match is None or unit is None:
        return None
    size = _mathematics(nodes[:degree])
    total = size.value + sympy.Rational(match[1]) / 60 + sympy.Rational(match[2] or 0) / 3600
    return Quantity(Number(total), unit)


def _bare_letters(nodes: Sequence[Node]) -> Value | None:
    """Reads a last letter that may be a unit: behind a space it is one (5 m), else it may be one (5m)."""
    start = next(
        (place for place, node in enumerate(nodes) if node.kind == "letter" and node.text.isalpha()), 0
    )
    body = nodes[:start]
    if not body or not _behind_number(body) or _has_letters(body):
        return None
    text = plain(nodes[start:])
    unit = units.parse(re.sub(r"\^\{([-+]?\d+)\}", r"^\1", text)) if text else None
    if unit is None:
        return None
    size = _mathematics(_stripped(body))
    if body[-1].kind in ("space", "wide"):
        return Quantity(size, unit)
    if len(nodes) > start + 1:
        return None
    found = _mathematics(nodes)
    return (
        Expression(found.value, found.pending, Quantity(size, unit))
        if isinstance(found, Expression)
        else found
    )


def _has_letters(nodes: Iterable[Node]) -> bool:
    return any(
        (node.kind == "letter" and node.text not in ("\\pi", "e")) or any(map(_has_letters, node.parts))
        for node in nodes
    )


# ------------------------------------------------------------------------------------- expressions
def _mathematics(nodes: Sequence[Node]) -> Number | Expression:
    nodes = _stripped(nodes)
    value, pending = expression.parse(nodes)
    if not isinstance(value, sympy.Expr):
        raise Unreadable("it is no number and no expression")
    if value.has(sympy.nan, sympy.zoo):
        raise Unreadable("it has no value")
    if pending or value.free_symbols or value.atoms(sympy.core.function.AppliedUndef):
        return Expression(value, pending)
    return Number(value, _places(nodes))


def _sympy_value(value: sympy.Expr) -> Number | Expression:
    return Expression(value) if value.free_symbols else Number(value)


def _places(nodes: Sequence[Node]) -> int | None:
    """Returns the decimals of a decimal number, counted from the point, behind any power of ten; None for others."""
    text = "".join(show([node]) for node in nodes if node.kind != "space")
    match = re.fullmatch(r"[-+]?\d*\.(\d+)(?:(?:\\times|\\cdot|\*)10\^\{([-+]?\d+)\})?", text)
    return len(match[1]) - int(match[2] or 0) if match else None
