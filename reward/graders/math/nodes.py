"""The nodes of a page: what it shows, in order. `show` writes them in one spelling; the rest finds its way in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reward.graders.math import commands


class Unreadable(ValueError):
    """The box does not show one value; the message says why."""


@dataclass(frozen=True, slots=True)
class Node:
    """Something that the page shows. `kind`: number, letter, word, function, sign, comma, open, close, relation, space,
    wide (a space between statements), frac, binom, sqrt (radicand, index), sup, sub, mark (', !, %, degrees), accent,
    mod, group (the braces of an argument), matrix (a part per row, of cells), cell.

    Example: Node("number", "12")
    """

    kind: str
    text: str = ""
    parts: tuple[tuple[Node, ...], ...] = ()


Nodes = tuple[Node, ...]


def show(nodes: Iterable[Node]) -> str:
    r"""Returns nodes as LaTeX in one spelling.

    Example: show(read(r"x = \dfrac 12")) -> r"x=\frac{1}{2}"
    """
    line, before, is_apart = "", "", False
    for node in nodes:
        if node.kind in ("space", "wide"):
            is_apart = True
            continue
        piece, between = _piece(node), (before, node.kind)
        # A space is shown only where it separates words, letters or numbers; 1, 234 is not 1,234.
        is_apart &= between == ("comma", "number") or {*between} <= {"word", "letter", "number"}
        if is_apart or (piece[:1].isalpha() and re.search(r"\\[A-Za-z]+$", line)):
            line += " "
        line += piece
        before, is_apart = node.kind, False
    return line.strip()


def _piece(node: Node) -> str:
    parts = [show(part) for part in node.parts] if node.kind != "matrix" else []
    match node.kind:
        case "frac" | "binom":
            return f"\\{node.kind}{{{parts[0]}}}{{{parts[1]}}}"
        case "sqrt":
            return f"\\sqrt{f'[{parts[1]}]' if len(parts) > 1 else ''}{{{parts[0]}}}"
        case "sup":
            return f"^{{{parts[0]}}}"
        case "sub":
            upright = re.fullmatch(r"\\text\{(.*)\}|\\([a-z]+)", parts[0])  # v_{\text{max}}, x_{\max}
            return f"_{{{upright[1] or upright[2] if upright else parts[0]}}}"
        case "accent":
            return f"{node.text}{{{parts[0]}}}"
        case "mod":
            return f"\\pmod{{{parts[0]}}}"
        case "group":
            return f"{{{parts[0]}}}"
        case "word" if node.text in ("$", *commands.CURRENCY_SIGNS):
            return f"\\{node.text}" if node.text == "$" else node.text
        case "word":
            return f"\\text{{{node.text}}}"
        case "cell":
            return parts[0]
        case "matrix":
            body = " \\\\ ".join(" & ".join(map(_piece, row)) for row in node.parts)
            return f"\\begin{{{node.text}}}{body}\\end{{{node.text}}}"
    return node.text


def stripped(nodes: Iterable[Node]) -> list[Node]:
    """Returns nodes without the spaces at both ends."""
    found = [*nodes]
    while found and found[-1].kind in ("space", "wide"):
        found.pop()
    while found and found[0].kind in ("space", "wide"):
        del found[0]
    return found


def closing(nodes: Sequence[Node]) -> int | None:
    """Returns the place of the bracket that closes the first node; None if nothing does."""
    depth = 0
    for place, node in enumerate(nodes):
        depth += (node.kind == "open") - (node.kind == "close")
        if depth == 0:
            return place
    return None


def split(nodes: Iterable[Node], *are_signs: Callable[[Node], bool]) -> list[list[Node]]:
    """Returns the nodes between the signs that stand outside of brackets."""
    parts: list[list[Node]] = [[]]
    depth = 0
    for node in nodes:
        depth += (node.kind == "open") - (node.kind == "close")
        if depth == 0 and any(is_sign(node) for is_sign in are_signs):
            parts.append([])
        else:
            parts[-1].append(node)
    return parts


def is_comma(node: Node) -> bool:
    """Whether a node is a comma or a semicolon."""
    return node.kind == "comma"


def is_word_of(*names: str) -> Callable[[Node], bool]:
    """Returns a test for any of these words."""
    return lambda node: node.kind == "word" and node.text.lower() in names


def is_sign_of(*names: str) -> Callable[[Node], bool]:
    """Returns a test for any of these signs."""
    return lambda node: node.kind in ("sign", "relation", "letter") and node.text in names
