r"""Says what the letters and digits of a page stand for, before the grammar of `reading` sees them.

Letters in a row are a word, a unit behind a number, a function's name, or a product. Digits are joined to one number
(`1,234`, `10 000`), and `1.2e5` and `sqrt(2)` become what they mean.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from reward.graders.math import units, words
from reward.graders.math.commands import PLAIN, TYPED_FUNCTIONS, names
from reward.graders.math.nodes import Node, Unreadable, closing, stripped

JOINING = names("and or if for when where by to minus plus times mod with than as")
"""Words that join values. In a product of letters they stand only between spaces."""
_GREEK = names("pi infty alpha beta gamma delta theta lambda sigma omega phi rho tau epsilon")
_NAMED = {"infinity": "\\infty", "oo": "\\infty"} | {name: f"\\{name}" for name in _GREEK}
_ROOTS = ("sqrt", "cbrt")
_SHORT_NOUNS = ("BC", "AD", "BCE", "CE", "up")
_VOWELS = frozenset("aeiouyAEIOUY")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:( )\d{3}(?: \d{3})*|(?:,\d{3})+)(?:\.\d+)?(?![\d,]| \d)", re.ASCII)
_SCIENTIFIC = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(?:E([+-]?)(\d{1,3})|e([+-]?)(\d{1,3}))(?![\w.])", re.ASCII)
_LONGEST_TEXT = 300
_LONGEST_NUMBER = 40
"""How many nodes are searched for the digits of one number."""


def plain(nodes: Iterable[Node]) -> str | None:
    """Returns nodes as plain text, with ^ and _ for scripts; None if they hold mathematics that has no such text."""
    found = ""
    for node in nodes:
        match node.kind:
            case "sup" | "sub":
                inner = plain(node.parts[0])
                found += f"{'^' if node.kind == 'sup' else '_'}{{{inner}}}" if inner is not None else "\\"
            case "frac" if any(item.kind == "word" for item in node.parts[1]):  # m/s
                above, below = map(plain, node.parts)
                found += f"{above}/({below})" if above is not None and below is not None else "\\"
            case "frac" | "binom" | "sqrt" | "accent" | "mod" | "group" | "matrix" | "cell" | "function":
                return None
            case _:
                found += PLAIN.get(node.text, node.text)
        if "\\" in found or len(found) > _LONGEST_TEXT:
            return None
    return found.strip()


def tokens(nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes with runs of letters as what they stand for, and the digits of a number as one."""
    found: list[Node] = []
    rest = [*nodes]
    while rest:
        before = found[-1] if found else None
        end = next((place for place, node in enumerate(rest) if not _is_bare(node)), len(rest))
        if (length := _greek_unit(rest, found)) > 0:
            found.append(Node("word", (plain(rest[:length]) or "").replace(" ", "")))
        elif end > 1 or (end == 1 and _is_unit_before_noun(rest, found)):
            length = end
            found += _run(rest[:end], found, rest[end:])
        else:
            length, node = 1, rest[0]
            is_function = node.kind == "word" and node.text in (*TYPED_FUNCTIONS, "cis")
            if is_function and not (behind_number(found) and units.parse(node.text) is not None):
                node = Node("function", node.text if node.text == "cis" else f"\\{node.text}")
            found.append(Node("letter", node.text) if _is_upright_variable(node, before) else node)
        del rest[:length]
    return _with_roots(_with_whole_numbers(found))


def _is_bare(node: Node) -> bool:
    return node.kind == "letter" and node.text.isascii() and node.text.isalpha()


def _is_upright_variable(node: Node, before: Node | None) -> bool:
    """Whether a letter is set upright, and no unit: the x of 5\\text{x}."""
    is_letter = node.kind == "word" and len(node.text) == 1 and node.text.isalpha()
    is_factor = before is not None and before.kind in ("number", "letter", "close")
    return is_letter and is_factor and units.parse(node.text) is None


def _is_unit_before_noun(nodes: Sequence[Node], before: Sequence[Node]) -> bool:
    """Whether a letter between spaces is the unit in `16 m north`."""
    kinds = [node.kind for node in (*before[-1:], *nodes[1:2])]
    if kinds != ["space", "space"] or not behind_number(before):
        return False
    if nodes[2:3] and nodes[2].kind == "number":  # 2 h 30 min
        return units.parse(nodes[0].text) is not None
    following = itertools.takewhile(lambda node: _is_bare(node) or node.kind == "word", nodes[2:])
    return is_noun("".join(node.text for node in following))


def _greek_unit(nodes: Sequence[Node], before: Sequence[Node]) -> int:
    """Returns how many nodes form a unit with a Greek letter behind a number, \\mu C or k\\Omega; 0 if none do."""
    run = [*itertools.takewhile(lambda node: node.kind in ("letter", "word", "space"), nodes[:4])]
    for length in range(1, min(3, len(run)) + 1) if behind_number(before) else ():
        has_greek = any(node.text in ("\\mu", "\\Omega") for node in run[:length])
        is_ended = length == len(run) or run[length].kind == "space"
        if has_greek and is_ended and units.parse((plain(run[:length]) or "").replace(" ", "")):
            return length
    return 0


def _run(run: Sequence[Node], before: Sequence[Node], after: Sequence[Node]) -> list[Node]:
    """Returns a run of letters as a word, a function's name, or the letters of a product."""
    text = "".join(node.text for node in run)
    last = before[-1].kind if before else ""
    if behind_number(before):
        is_unit = last == "space" and (units.parse(text) is not None or is_noun(text))
        if is_unit or units.is_bare_symbol(text):
            return [Node("word", text)]
    if text in _NAMED:
        return [Node("letter", _NAMED[text])]
    if text in _ROOTS:
        return [Node("function", text)]
    for name in TYPED_FUNCTIONS:
        if text == name or (text.startswith(name) and len(text) == len(name) + 1 and len(name) > 2):  # sinx
            return [Node("function", f"\\{name}"), *run[len(name) :]]
    is_apart = not (after and after[0].kind in ("sup", "sub", "mark"))
    is_joining = text.lower() in JOINING and last in ("", "space", "wide", "open", "close", "comma")
    return [Node("word", text)] if is_apart and (is_joining or is_word(text)) else [*run]


def behind_number(nodes: Sequence[Node]) -> bool:
    """Whether nodes end in a number, or in units behind one."""
    for place in range(len(nodes) - 1, -1, -1):
        node, earlier = nodes[place], nodes[place - 1].kind if place else ""
        if node.text in ("\\cdot", "/") and earlier in ("word", "sup", "space"):
            continue  # N \cdot m
        if node.kind not in ("space", "wide", "word", "sup", "mark"):
            return node.kind in ("number", "frac", "close", "sqrt") or node.text == "\\pi"
    return False


def is_noun(text: str) -> bool:
    """Whether letters behind a number and a space are a word: 20 apples, 500 BC."""
    is_long = (
        len(text) > 3 and text.islower() and not _VOWELS.isdisjoint(text) and text not in TYPED_FUNCTIONS
    )
    return is_long or text in _SHORT_NOUNS


def is_word(text: str) -> bool:
    """Whether letters in a row are a word and no product: four or more with a vowel, not in alphabetical order."""
    is_sorted = all(first < second for first, second in itertools.pairwise(text.lower()))
    is_cased = text.islower() or text[1:].islower()
    is_long = len(text) > 3 and is_cased and not is_sorted and not _VOWELS.isdisjoint(text)
    return is_long or text.lower() in words.NUMBER_WORDS


def is_phrase(text: str) -> bool:
    """Whether a text without upright words is words all the same: `does not exist`, `bed bug`, `No`."""
    pieces = text.split()
    if text in _NAMED:
        return False
    if text in ("no", "No") or not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[' -])*", text):
        return text in ("no", "No")
    if all(is_word(piece) or piece.lower() in words.COMMON for piece in pieces):
        return True
    are_words = all((len(piece) > 1 and not _VOWELS.isdisjoint(piece)) or piece in "aI" for piece in pieces)
    return len(pieces) > 1 and are_words and any(len(piece) > 2 for piece in pieces)


def _with_whole_numbers(nodes: Sequence[Node]) -> list[Node]:
    """Joins thousands (in brackets only with spaces), and writes e-notation as mathematics."""
    found: list[Node] = []
    rest, depth = [*nodes], 0
    while rest:
        node, length = rest[0], 1
        depth += (node.kind == "open") - (node.kind == "close")
        is_first = node.kind == "number" and not (found and found[-1].kind in ("comma", "number"))
        run = itertools.takewhile(
            lambda node: node.kind in ("number", "comma", "space", "letter", "sign"), rest[:_LONGEST_NUMBER]
        )
        ends = [*itertools.accumulate(len(node.text) for node in run)] if is_first else []
        whole, end = _whole_number("".join(node.text for node in rest[: len(ends)]), depth)
        if end in ends:
            length = ends.index(end) + 1
            found += whole
        else:
            found.append(node)
        del rest[:length]
    return found


def _whole_number(text: str, depth: int) -> tuple[list[Node], int]:
    """Returns the nodes of the number that a text begins with, and how many characters it takes; 0 for none."""
    if (match := _THOUSANDS.match(text)) and (depth <= 0 or match[1]):
        return [Node("number", re.sub("[ ,]", "", match[0]))], match.end()
    if match := _SCIENTIFIC.match(text):
        sign, exponent = match[2] or match[4] or "", match[3] or match[5]
        is_measured = re.match(r"\s*[A-Za-z]", text[match.end() :]) is not None
        # 2e-1 is twice Euler's number less one
        if is_measured or match[3] or not sign or "." in match[1] or len(exponent) > 1 or match[1] == "1":
            power = (*((Node("sign", "-"),) if sign == "-" else ()), Node("number", exponent))
            ten = (Node("number", "10"), Node("sup", "", (power,)))
            return [Node("number", match[1]), Node("sign", "\\times"), *ten], match.end()
    return [], 0


def _with_roots(nodes: Sequence[Node]) -> list[Node]:
    """Writes sqrt(2) and sqrt 2 as roots."""
    found: list[Node] = []
    rest = [*nodes]
    while rest:
        node = rest.pop(0)
        if node.kind != "function" or node.text not in _ROOTS:
            found.append(node)
            continue
        rest = stripped(rest)
        end = closing(rest) if rest and rest[0].kind == "open" else 0 if rest else None
        if end is None:
            raise Unreadable("a root lacks its argument")
        index = ((Node("number", "3"),),) if node.text == "cbrt" else ()
        found.append(Node("sqrt", "", (tuple(rest[1:end] if end else rest[:1]), *index)))
        del rest[: end + 1]
    return found
