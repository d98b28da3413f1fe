"""Reads what is compared by its spelling and no mathematics: names, words, formulas, numerals."""

from __future__ import annotations

import re
from collections.abc import Sequence

import sympy

from reward.graders.math import words
from reward.graders.math.nodes import Node
from reward.graders.math.sets import EMPTY, REALS
from reward.graders.math.tokens import is_phrase, plain
from reward.graders.math.values import Number, OptionLetter, Text, Value

_PHRASES: dict[str, Value] = {
    "all real numbers": REALS,
    **dict.fromkeys(("no solution", "empty set", "none"), EMPTY),
}
_CAPITALS = ("yes", "no", "true", "false", "none", "both", "neither")
"""Words that are no name of points, in capitals either."""


def spelled(nodes: Sequence[Node]) -> Value | None:
    """Returns the value of nodes that are compared by their spelling; None for mathematics."""
    text = plain(nodes) or ""
    if (found := _numeral(nodes) or _figure(nodes)) is not None:
        return found
    if (letter := words.option(text)) is not None:
        return OptionLetter(letter)
    if (formula := words.formula(text)) is not None:
        return Text("formula", formula)
    letters, phrase = text.replace(" ", ""), words.phrase(text)
    if re.fullmatch(r"[A-Z]{2,}", letters) and all(
        node.kind in ("letter", "word", "space") for node in nodes
    ):
        is_word = text.lower() in _CAPITALS or phrase not in (text, text.lower(), None)  # YES, DNE
        return Text("words", phrase) if phrase is not None and is_word else Text("name", text)
    if text.lower() in ("infinity", "infinite", "+infinity"):
        return Number(sympy.oo)
    if phrase is None or len(letters) < 2 or {"and", "or"} & {*phrase.split()} - {*_PHRASES}:
        return None
    is_upright = any(node.kind == "word" for node in nodes)
    return _PHRASES.get(phrase, Text("words", phrase)) if is_upright or is_phrase(text) else None


def _figure(nodes: Sequence[Node]) -> Text | None:
    """Returns an angle or a triangle by the names of its points."""
    points = plain(nodes[1:]) if nodes[0].text in ("\\angle", "\\triangle") else None
    is_named = points is not None and re.fullmatch(r"[A-Z]{1,3}'?", points)
    return Text("name", f"{nodes[0].text} {points}") if is_named else None


def _numeral(nodes: Sequence[Node]) -> Text | None:
    """Returns a numeral with its base, 101_2."""
    if len(nodes) < 2 or nodes[-1].kind != "sub":
        return None
    body = nodes[1:-2] if len(nodes) > 3 and (nodes[0].text, nodes[-2].text) == ("(", ")") else nodes[:-1]
    digits, base = (plain(part) or "" for part in (body, nodes[-1].parts[0]))
    base = str(words.NUMBER_WORDS.get(base, base))
    is_numeral = re.fullmatch(r"-?[0-9A-F ]*\d[0-9A-F ]*", digits) and base.isdigit()
    return Text("numeral", f"{digits.replace(' ', '')}_{base}") if is_numeral else None
