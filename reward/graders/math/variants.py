"""Nodes as they are meant: without a hedge or a remark, with commas, with each choice of a double sign."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from reward.graders.math.nodes import (
    Node,
    Nodes,
    Unreadable,
    closing,
    is_comma,
    is_word_of,
    show,
    split,
    stripped,
)

_DOUBLE = (Node("sign", "\\pm"), Node("sign", "\\mp"))
_MOST_SIGNS = 3
CALLED = ("f", "g", "h", "F", "G", "T")
"""Letters of functions, which may also be factors."""
CONDITIONS = ("if", "for", "when", "where")
INTEGERS = ("\\mathbb{Z}", "\\mathbb{N}")


def with_commas(nodes: Sequence[Node]) -> list[Node]:
    """Turns a wide space between two statements into a comma: `x = 1 \\quad y = 2`."""
    found, *parts = split(nodes, lambda node: node.kind == "wide")
    for part in parts:
        are_statements = all(any(node.kind == "relation" for node in side) for side in (found, part))
        has_comma = bool(stripped(found)) and is_comma(stripped(found)[-1])
        between = Node("comma", ",") if are_statements and not has_comma else Node("space", " ")
        found = [*found, between, *part]
    return found


def case_nodes(cell: Node) -> list[Node]:
    """Returns the nodes of one of several cases without its comma and its `if`."""
    nodes = stripped(cell.parts[0])
    while nodes and (is_comma(nodes[-1]) or nodes[-1].text == "."):
        nodes = stripped(nodes[:-1])
    return nodes[1:] if nodes and is_word_of(*CONDITIONS)(nodes[0]) else nodes


def sign_choices(nodes: Sequence[Node]) -> list[list[Node]]:
    """Returns nodes for all choices of signs, none if no sign is double. With a sign of minus or plus, two signs are
    one choice. Raises Unreadable if there are too many."""
    signs = [*_double_signs(nodes)]
    if len(signs) > _MOST_SIGNS:
        raise Unreadable("it has too many signs of plus or minus")
    choices = [*itertools.product("+-", repeat=len(signs))] if signs else []
    if "\\mp" in signs:
        pairs = ["+-" if sign == "\\pm" else "-+" for sign in signs]
        choices = [*zip(*pairs, strict=True)]
    return [_with_signs(nodes, iter(choice)) for choice in choices]


def _double_signs(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        if node in _DOUBLE:
            yield node.text
        for part in node.parts:
            yield from _double_signs(part)


def _with_signs(nodes: Iterable[Node], choice: Iterator[str]) -> list[Node]:
    """Returns nodes with each sign of plus or minus replaced by the next one of the choice."""
    found = []
    for node in nodes:
        text = next(choice) if node in _DOUBLE else node.text
        found.append(Node(node.kind, text, tuple(tuple(_with_signs(part, choice)) for part in node.parts)))
    return found


def with_other_notation(nodes: Nodes) -> Nodes:
    """Returns nodes with `\\lg` for each `\\log` without a base, and with a product of each call f(x)."""
    found = []
    for place, node in enumerate(nodes):
        following = nodes[place + 1] if place + 1 < len(nodes) else None
        is_bare = node == Node("function", "\\log") and not (following and following.kind == "sub")
        parts = tuple(map(with_other_notation, node.parts))
        found.append(Node(node.kind, "\\lg" if is_bare else node.text, parts))
        if node.kind == "letter" and node.text in CALLED and following and following.text == "(":
            inner = nodes[place + 1 : place + 1 + (closing(nodes[place + 1 :]) or 0)]
            letters = re.sub(r"\\[A-Za-z]+", "", show(inner))
            if re.search("[A-Za-z]", letters) and not re.search(
                "[abkmntuxyz]", letters
            ):  # f(1 + v/c), but f(x + 1)
                found.append(Node("sign", "\\cdot"))
    return tuple(found)
