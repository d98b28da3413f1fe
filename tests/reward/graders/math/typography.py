"""Other typography for an answer, none of which changes its value."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tests.reward.graders.math.answers import forms, raised

_UPRIGHT = re.compile(
    r"(\\(?:text|textbf|textrm|mathrm|ce|operatorname)\{[^{}]*\}"
    r"|\\(?:begin|end)\{[a-z]+\}(?:\{[cr]+\})?)"
)
_SIGNS = {
    "\\pi": "π", "\\theta": "θ", "\\alpha": "α", "\\infty": "∞", "\\times": "×", "\\cdot": "·", "\\div": "÷",
    "\\pm": "±", "\\le": "≤", "\\leq": "≤", "\\ge": "≥", "\\geq": "≥", "\\ne": "≠", "\\neq": "≠", "\\cup": "∪",
    "\\in": "∈", "\\angle": "∠", "\\emptyset": "∅", "\\epsilon": "ε", "\\Delta": "Δ", "\\rightarrow": "→",
    "\\equiv": "≡",
}  # fmt: skip
_POWER = re.compile(r"(?<=[\w)])\^(\d|\{-?\d+\})(?![\d^_])")


def _mathematics(text: str, change: Callable[[str], str]) -> str:
    """Changes what is not upright."""
    pieces = _UPRIGHT.split(text)
    return "".join(piece if index % 2 else change(piece) for index, piece in enumerate(pieces))


def _signs(text: str) -> str:
    text = re.sub(r"\^\{?\\circ\}?", "°", text)
    text = re.sub(r"\\sqrt\{(\d)\}(?![\w\\^(])", r"√\1", text)
    return re.sub(r"(\\[A-Za-z]+) ?", lambda match: _SIGNS.get(match[1], match[0]), text)


def _superscripts(text: str) -> str:
    return text if "_" in text else _POWER.sub(lambda match: raised(match[1].strip("{}")), text)


def _minus(text: str) -> str:
    return text if "->" in text or re.search(r"\de-", text) else text.replace("-", "−")


def _spaces(text: str, draw: random.Random) -> str:
    space = draw.choice(["\\,", "\\;", " ", "~", "\\ "])
    return re.sub(r"(?<=[\w})])\s*([+=<>])\s*(?=[\w\\(])", lambda match: f"{space}{match[1]}{space}", text)


def _commas(text: str, draw: random.Random) -> str:
    space = draw.choice(["\\, ", "\\ ", "\\;", "  "])
    return re.sub(r"(?<=[^\\]),\s", lambda _: f",{space}", text)


def _braces(text: str) -> str:
    return re.sub(r"(?<=[a-zA-Z)])\^(\d)(?!\d)", r"^{\1}", text)


def _short_fractions(text: str) -> str:
    return re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", text)


def _other_fractions(text: str, draw: random.Random) -> str:
    name = draw.choice(["\\dfrac", "\\tfrac", "\\cfrac"])
    return re.sub(r"\\frac(?![a-z])", lambda _: name, text)


def _growing(text: str) -> str:
    return f"\\left{text[:-1]}\\right{text[-1]}" if re.fullmatch(r"[(\[][^()\[\]]*[)\]]", text) else text


def _longer_names(text: str) -> str:
    return re.sub(r"\\(le|ge|ne)(?![a-z])", r"\\\1q", text)


_WRAPS = forms(r"$V$ | \(V\) | \displaystyle V | {V} | $\displaystyle V$")


def _wrapped(text: str, draw: random.Random) -> str:
    wraps = [wrap for wrap in _WRAPS if "$" not in text or "$" not in wrap]
    if re.fullmatch(r"[\d.,+-]+", text):
        wraps += [r"\mathbf{V}", "**V**", r"\boldsymbol{V}"]
    return draw.choice(wraps).replace("V", text)


def dress(text: str, draw: random.Random) -> str:
    """Returns the text in other typography, one to three changes at once."""
    changes: list[Callable[[str], str]] = [
        _growing,
        lambda text: _mathematics(text, _signs),
        lambda text: _mathematics(text, _superscripts),
        lambda text: _mathematics(text, _minus),
        lambda text: _mathematics(text, lambda piece: _spaces(piece, draw)),
        lambda text: _mathematics(text, lambda piece: _commas(piece, draw)),
        lambda text: _mathematics(text, _braces),
        lambda text: _mathematics(text, _short_fractions),
        lambda text: _mathematics(text, lambda piece: _other_fractions(piece, draw)),
        lambda text: _mathematics(text, _longer_names),
    ]
    for change in draw.sample(changes, draw.randint(0, 3)):
        text = change(text)
    if draw.random() < 0.4:
        text = _wrapped(text, draw)
    if draw.random() < 0.15 and re.search(r"[\d}a-z)$]$", text):
        text += "."
    return text
