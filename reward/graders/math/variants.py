"""Nodes as they are meant: with commas, with each choice of a double sign, with decimal logarithms."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from reward.graders.math.nodes import (
    Node,
    Nodes,
    Unreadable,
    is_comma,
    split,
    stripped,
)

_DOUBLE = Node("sign", "\\pm")
_MOST_SIGNS = 3
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


def sign_choices(nodes: Sequence[Node]) -> list[list[Node]]:
    """Returns nodes for all choices of signs, none if no sign is double. Raises Unreadable if there are too many."""
    count = _num_double(nodes)
    if count > _MOST_SIGNS:
        raise Unreadable("it has too many signs of plus or minus")
    choices = itertools.product("+-", repeat=count) if count else ()
    return [_with_signs(nodes, iter(choice)) for choice in choices]


def _num_double(nodes: Iterable[Node]) -> int:
    return sum((node == _DOUBLE) + sum(map(_num_double, node.parts)) for node in nodes)


def _with_signs(nodes: Iterable[Node], choice: Iterator[str]) -> list[Node]:
    """Returns nodes with each sign of plus or minus replaced by the next one of the choice."""
    found = []
    for node in nodes:
        text = next(choice) if node == _DOUBLE else node.text
        found.append(Node(node.kind, text, tuple(tuple(_with_signs(part, choice)) for part in node.parts)))
    return found


def with_decimal_logarithms(nodes: Nodes) -> Nodes:
    """Returns nodes with `\\lg` for each `\\log` without a base."""
    found = []
    for node, following in itertools.zip_longest(nodes, nodes[1:]):
        is_bare = node == Node("function", "\\log") and not (following and following.kind == "sub")
        parts = tuple(map(with_decimal_logarithms, node.parts))
        found.append(Node(node.kind, "\\lg" if is_bare else node.text, parts))
    return tuple(found)
