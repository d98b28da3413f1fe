"""Reads what is compared by its spelling and no mathematics: names, words, formulas, times, dates, numerals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sympy

from reward.graders.math import units, words
from reward.graders.math.nodes import Node, closing, is_sign_of, split, stripped
from reward.graders.math.quantities import unit_of
from reward.graders.math.sets import EMPTY, REALS
from reward.graders.math.tokens import is_phrase, plain
from reward.graders.math.values import Clock, Number, OptionLetter, Quantity, Text, Value

_CODES = re.compile(
    r"(?:(?!\d{4}-\d\d-\d\d)\d+(?:-\d+)+|\d+(?:/\d+){2,}|0\d{3,}|\d+(?:\\times|x)(?!10$)\d+|(?:\(\d+\)){2,}"
    r"|[A-Z](?:-[A-Z]){2,})(?:,(?=.)|$)"
)
_PHRASES: dict[str, Value] = {
    "all real numbers": REALS,
    **dict.fromkeys(("no solution", "empty set", "none"), EMPTY),
}
_CONNECTIVES = (
    (("\\Leftrightarrow", "\\leftrightarrow"), sympy.Equivalent), (("\\Rightarrow", "\\rightarrow"), sympy.Implies),
    (("\\lor", "\\cup"), sympy.Or), (("\\land", "\\cap"), sympy.And),
)  # fmt: skip
_LOGIC = {"\\neg", "\\sim"}.union(*(signs for signs, _ in _CONNECTIVES))
_CAPITALS = ("yes", "no", "true", "false", "none", "both", "neither")
"""Words that are no name of points, in capitals either."""


def spelled(nodes: Sequence[Node]) -> Value | None:
    """Returns the value of nodes that are compared by their spelling; None for mathematics."""
    text = plain(nodes) or ""
    if (found := _numeral(nodes) or _figure(nodes) or _literal(text)) is not None:
        return found
    proposition = _proposition(nodes) if any(node.text in _LOGIC for node in nodes) else None
    if proposition is not None and len(proposition.free_symbols) < 7:
        return Text("proposition", str(sympy.simplify_logic(proposition, form="dnf", force=True)))
    letters, phrase = text.replace(" ", ""), words.phrase(text)
    is_run = all(node.kind in ("letter", "word", "space") for node in nodes)
    is_word = text.lower() in _CAPITALS
    if (
        is_run
        and not is_word
        and re.fullmatch(r"[A-Z]{2,}", letters)
        and phrase in (text, text.lower(), None)
    ):
        return Text("name", text)
    if text.lower() in ("infinity", "infinite", "+infinity"):
        return Number(sympy.oo)
    is_loud = (is_run and is_word) or (text.isalpha() and phrase not in (text, text.lower()))  # YES, DNE
    if phrase is not None and text.isupper() and is_loud:
        return Text("words", phrase)
    if (size := words.number(text)) is not None:
        return Number(sympy.Rational(size))
    if (amount := _amount(text.split())) is not None:
        return amount
    if phrase is None or len(letters) < 2 or {"and", "or"} & {*phrase.split()} - {*_PHRASES}:
        return None
    is_upright = any(node.kind == "word" for node in nodes)
    return _PHRASES.get(phrase, Text("words", phrase)) if is_upright or is_phrase(text) else None


@lru_cache(maxsize=4096)
def is_code(text: str) -> bool:
    """Whether a gold is a score, range, code, size or permutation, which its spelling decides and not its value."""
    return not _CODES.sub("", text)


@lru_cache(maxsize=4096)
def spelling(text: str) -> str:
    """Returns a code in one spelling: a range with a hyphen, a size with a cross."""
    text = re.sub(r"(?<=\d) ?(?:\\cdot|\\text\{by\}) ?(?=\d)", r"\\times", text.replace(", ", ","))
    return without_upright(re.sub(r"(?<=\d) ?\\text\{to\} ?(?=\d)", "-", text))


def without_upright(text: str) -> str:
    """Returns a text without regard to what is set upright."""
    return re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip()


def _literal(text: str) -> Value | None:
    """Returns an option without its text, a chemical formula, a date or a time of day."""
    if (letter := words.option(text)) is not None:
        return OptionLetter(letter)
    number = re.match(r"[-\d.,]+\s*", text)
    is_amount = (
        number is not None and units.parse(text[number.end() :]) is not None
    )  # 9000 Pa is no chemistry
    is_amount = is_amount or re.fullmatch(r"\d+ ?[A-Z][a-z]", text) is not None
    if not is_amount and (formula := words.formula(text)) is not None:
        return Text("formula", formula)
    if (date := words.date(text)) is not None:
        return Text("date", date)
    if (clock := words.clock(text)) is None:
        return None
    digits = re.fullmatch(r"(\d+):(\d\d)", text)  # 15:21 may be a ratio
    return Clock(int(digits[1]) * 60 + int(digits[2])) if digits else Clock(*clock)


def _amount(pieces: Sequence[str]) -> Value | None:
    """Returns an amount whose number is a word, too: `five apples`."""
    for end in range(1, len(pieces)):
        size, noun = words.number(" ".join(pieces[:end])), " ".join(pieces[end:])
        if (
            size is not None
            and words.noun(noun) is not None
            and (unit := unit_of([Node("word", noun)])) is not None
        ):
            return Quantity(Number(sympy.Rational(size)), unit)
    return None


def _figure(nodes: Sequence[Node]) -> Text | None:
    """Returns an angle or a triangle by the names of its points."""
    points = plain(nodes[1:]) if nodes[0].text in ("\\angle", "\\triangle") else None
    is_named = points is not None and re.fullmatch(r"[A-Z]{1,3}'?", points)
    return Text("name", f"{nodes[0].text} {points}") if is_named else None


def _proposition(nodes: Sequence[Node]) -> Any | None:
    """Returns a proposition, or a set, of letters; None for anything else."""
    nodes = stripped(nodes)
    for signs, connective in _CONNECTIVES:
        if len(parts := split(nodes, is_sign_of(*signs))) > 1:
            sides = [*map(_proposition, parts)]
            is_one = None not in sides and (len(sides) == 2 or connective in (sympy.And, sympy.Or))
            return connective(*sides) if is_one else None
    if nodes and nodes[0].text in ("\\neg", "\\sim"):
        inner = _proposition(nodes[1:])
        return None if inner is None else sympy.Not(inner)
    if nodes and nodes[0].text == "(" and closing(nodes) == len(nodes) - 1:
        return _proposition(nodes[1:-1])
    is_letter = (
        len(nodes) == 1 and nodes[0].kind in ("letter", "word") and re.fullmatch("[A-Za-z]", nodes[0].text)
    )
    return sympy.Symbol(nodes[0].text) if is_letter else None


def _numeral(nodes: Sequence[Node]) -> Text | None:
    """Returns a numeral with its base, 101_2."""
    if len(nodes) < 2 or nodes[-1].kind != "sub":
        return None
    body = nodes[1:-2] if len(nodes) > 3 and (nodes[0].text, nodes[-2].text) == ("(", ")") else nodes[:-1]
    digits, base = (plain(part) or "" for part in (body, nodes[-1].parts[0]))
    base = str(words.number(base)) if base.isalpha() else base
    digits = digits.upper() if base == "16" else digits
    is_numeral = re.fullmatch(r"-?[0-9A-F ]*\d[0-9A-F. ]*", digits) and base.isdigit()
    return Text("numeral", f"{digits.replace(' ', '')}_{base}") if is_numeral else None
