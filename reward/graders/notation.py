"""Handles notations that neither DeepScaleR's rules nor math-verify read.

`plain` rewrites what models write instead of LaTeX, and repeating decimals, in a form that both verifiers read. `parts`
splits what they mistake for something simpler: of several cases math-verify reads only the first, and it reads `2:3:4`
as 2/3/4, which equals 2:4:3 too. `differ` compares marks that they drop: the base of a numeral, am and pm, a prime, a
conjugate.
"""

from __future__ import annotations

import re
from fractions import Fraction

_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "×": "\\times ", "⋅": "\\cdot ", "·": "\\cdot ", "÷": "\\div ", "°": "^\\circ ",
        "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ",
        "∈": "\\in ", "±": "\\pm ", "∅": "\\emptyset ", "½": "\\frac{1}{2}", "⅓": "\\frac{1}{3}",
        "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}", "⅔": "\\frac{2}{3}", "，": ",", "（": "(", "）": ")",
    }
)  # fmt: skip
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_POWER = re.compile(rf"[{_SUPERSCRIPTS}]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[A-Za-z]))")
_THOUSANDS = re.compile(r"(?<=\d)\\[,;](?=\d{3}(?!\d))")
_REPEATING = re.compile(
    r"(?<![\d.])(\d{0,30})\.(\d{0,30})\\(?:overline|bar|dot)\s*(?:\{\s*(\d{1,30})\s*\}|(\d))(?!\d)", re.ASCII
)
_CASES = re.compile(r"\\begin\s*\{cases\}(.*)\\end\s*\{cases\}", re.DOTALL)
_CONDITION = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*(?:if|for|when|where|,)?\s*\}")
_BASE = re.compile(r"\(?[0-9A-Fa-f]+\)?_\s*\{?\s*(\d+)\s*\}?")
_MARKS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<=[A-Za-z)}])'(?![A-Za-z])|\\prime\b",
        r"\\(?:overline|bar)\s*(?:\{\s*[A-Za-z]\s*\}|[A-Za-z]\b)",
        r"\\(?:neg|lnot)\b",
        r"\\(?:det|Re|Im)\b",
        r"\\[|]|\\Vert\b",
        r"\^\s*\{?\s*(?:T\b|\\top\b)",
    )
)
"""A prime, a conjugate, a negation, a determinant and the like, a norm, a transpose."""
_HALF_DAY = re.compile(r"\d\s*([ap])\.?\s?m\.?(?![A-Za-z])", re.IGNORECASE)


def plain(answer: str) -> str:
    """Rewrites Unicode signs as LaTeX, removes thin spaces between thousands, and turns repeating decimals into
    fractions.

    Example: plain("−0.1\\\\overline{6}") -> "-\\\\frac{1}{6}"
    """
    text = _POWER.sub(_power, _ROOT.sub(_root, answer).translate(_SIGNS))
    return _REPEATING.sub(_fraction, _THOUSANDS.sub("", re.sub(r"(?<!\\)[,;~]\s*$", "", text)))


def parts(answer: str) -> list[tuple[str, ...]] | None:
    """Returns the rows of several cases, or one row with the terms of a ratio of three or more; None for anything
    else."""
    if match := _CASES.search(answer):
        rows = [row for row in re.split(r"\\\\", match[1]) if row.strip()]
        return [tuple(_CONDITION.sub("", cell).strip(" ,;.\n") for cell in row.split("&")) for row in rows]
    terms = answer.split(":")
    if len(terms) > 2 and "=" not in answer and all(re.search(r"\w", term) for term in terms):
        return [tuple(term.strip() for term in terms)]
    return None


def differ(answer: str, gold: str) -> bool:
    """Whether two answers name different bases or different halves of the day, or only one has a given mark."""
    bases = [_BASE.fullmatch(side.strip("$ ")) for side in (answer, gold)]
    halves = [_HALF_DAY.search(re.sub(r"\\[a-z]+|[{}~]", " ", side)) for side in (answer, gold)]
    for one, other in (bases, halves):
        if one is not None and other is not None and one[1].lower() != other[1].lower():
            return True
    ours, golds = answer.rpartition("=")[2], gold.rpartition("=")[2]  # f'(x) = 2x names what 2x is
    return any(len(mark.findall(ours)) != len(mark.findall(golds)) for mark in _MARKS)


def _power(digits: re.Match[str]) -> str:
    return "^{" + "".join(str(_SUPERSCRIPTS.index(digit)) for digit in digits[0]) + "}"


def _root(match: re.Match[str]) -> str:
    return "\\sqrt{" + next(group for group in match.groups() if group is not None) + "}"


def _fraction(match: re.Match[str]) -> str:
    whole, once, again = match[1] or "0", match[2], match[3] or match[4]
    value = Fraction(int(whole + once + again) - int(whole + once), 10 ** len(once) * (10 ** len(again) - 1))
    return str(value) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
