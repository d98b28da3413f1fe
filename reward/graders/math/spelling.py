"""Writes a text as its page is usually typed, before anything is parsed: the only place where text is rewritten."""

from __future__ import annotations

import itertools
import json
import re
from importlib.resources import files

_TABLES = json.loads(files("reward").joinpath("data/characters.json").read_text(encoding="utf-8"))
CHARACTERS: dict[str, str] = _TABLES["latex"]
"""Characters beyond ASCII, and the LaTeX for what they show."""
CHINESE: dict[str, str] = _TABLES["chinese_units"]
_TO_LATEX = str.maketrans(CHARACTERS)
SUPERSCRIPTS: dict[str | int, str | int | None] = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
SUBSCRIPTS: dict[str | int, str | int | None] = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n", strict=True))
CHINESE_UNIT = re.compile(
    rf"(?<=[\d}}])\s*(?:\\(?:text|mathrm|mbox)\s*\{{\s*({'|'.join(CHINESE)})\s*\}}|({'|'.join(CHINESE)}))\s*$"
)
"""A unit behind the number."""
_THIN = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\[,;]|,?\{\\,\})\s*(?=\d{3}(?!\d))")
_RELATIONS = (("<=", "\\le "), (">=", "\\ge "), (" !=", "\\ne "))
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[A-Za-z]))")


def one_spelling(box: str) -> str:
    """Returns a box without line breaks at its end and Markdown around it, with LaTeX for other characters. Any Chinese
    word but a unit stays, and is unreadable, as it may mean `or`."""
    text = re.sub(r"\s*\\+\s*$", "", box.strip())
    if match := re.fullmatch(r"(\*\*|`)([^*`]+)\1", text):  # Markdown
        text = match[2]
    text = re.sub(r"(?<!\\)[,;~]\s*$", "", text)
    for typed, command in _RELATIONS:
        text = text.replace(typed, command)
    text = _scripts(_THIN.sub("", text)).translate(_TO_LATEX)
    return CHINESE_UNIT.sub(lambda found: f"\\text{{ {CHINESE[found[1] or found[2]]}}}", text)


def _scripts(text: str) -> str:
    """Writes raised and lowered digits and the sign of a root as LaTeX."""
    if text.isascii():
        return text
    for sign, digits in (("^", SUPERSCRIPTS), ("_", SUBSCRIPTS)):
        pieces = re.split(f"([{''.join(map(str, digits))}]+)", text)
        runs = (f"{sign}{{{run.translate(str.maketrans(digits))}}}" for run in pieces[1::2])
        text = "".join(itertools.chain.from_iterable(itertools.zip_longest(pieces[::2], runs, fillvalue="")))
    return _ROOT.sub(lambda found: f"\\sqrt{{{found[found.lastindex or 1]}}}", text)
