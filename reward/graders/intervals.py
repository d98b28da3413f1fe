r"""Intervals and inequalities: `1 \le x < 3` is `[1,3)`, and `x < 1 \text{ or } x > 2` is `(-\infty,1)\cup(2,\infty)`.

math-verify compares an interval with an inequality only where the gold is the inequality, and DeepScaleR's rules never
do. `parts` turns both into the same rows, which are compared end by end.
"""

from __future__ import annotations

import re

Row = tuple[str, str, str, str]
"""Left bracket, lower end, upper end, right bracket."""

_MEMBER = re.compile(r"[A-Za-z]\s*\\in\s*")
_SET_OF = re.compile(r"\\\{\s*[A-Za-z](?:\s*\\in\s*\\mathbb\{R\})?\s*(?:\\mid|\||:)(.*)\\\}", re.DOTALL)
_OR = re.compile(r"\\cup|\\lor\b|\\text\{\s*or\s*\}|\bor\b")
_AND = re.compile(r"\\land\b|\\text\{\s*and\s*\}|\band\b")
_INTERVAL = re.compile(r"([(\[])([^()\[\],]+),([^()\[\],]+)([)\]])")
_RELATION = re.compile(r"(<|>|\\le\b|\\ge\b)")
_VARIABLE = re.compile(r"[A-Za-z]|\\[A-Za-z]+")
_TURNED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_LONGEST = 300


def parts(text: str) -> tuple[str, list[Row]] | None:
    """Returns the notation, `interval` or `inequality`, and a row for each part; None for anything else.

    Example: parts(r"1 \\le x < 3") -> ("inequality", [("[", "1", "3", ")")])
    """
    if len(text) > _LONGEST:
        return None
    text = _MEMBER.sub("", text, count=1) if _MEMBER.match(text) else text
    if match := _SET_OF.fullmatch(text.strip()):
        text = match[1]
    pieces = [piece.strip() for piece in _OR.split(text)]
    intervals = [_interval(piece) for piece in pieces]
    if all(intervals):
        return "interval", [row for row in intervals if row]
    inequalities = [_inequality(piece) for piece in pieces]
    if all(inequalities) and len({row[1] for row in inequalities if row}) == 1:
        return "inequality", [row[0] for row in inequalities if row]
    return None


def _interval(piece: str) -> Row | None:
    match = _INTERVAL.fullmatch(piece)
    return None if match is None else (match[1], _end(match[2]), _end(match[3]), match[4])


def _inequality(piece: str) -> tuple[Row, str] | None:
    """Returns the row of one inequality, or of two joined by `and`, and the variable."""
    lower, upper, variables = None, None, set()
    for statement in _AND.split(piece):
        ends = _ends(statement)
        if ends is None:
            return None
        variables.add(ends[2])
        if (ends[0] and lower) or (ends[1] and upper):
            return None
        lower, upper = ends[0] or lower, ends[1] or upper
    if len(variables) != 1:
        return None
    left, low = lower or ("(", "-\\infty")
    right, high = upper or (")", "\\infty")
    return (left, low, high, right), variables.pop()


_End = tuple[str, str]


def _ends(statement: str) -> tuple[_End | None, _End | None, str] | None:
    """Returns the lower and the upper end of `1 < x`, `x < 1` or `1 < x < 2`, each with its bracket, and the
    variable."""
    sides = [side.strip() for side in _RELATION.split(statement)]
    if len(sides) == 3:
        if _VARIABLE.fullmatch(sides[2]):
            sides = [sides[2], _TURNED[sides[1]], sides[0]]
        sides = ["", "", *sides]
    elif len(sides) == 5 and sides[1] in (">", "\\ge"):
        sides = [sides[4], _TURNED[sides[3]], sides[2], _TURNED[sides[1]], sides[0]]
    if len(sides) != 5 or not _VARIABLE.fullmatch(sides[2]) or not sides[4]:
        return None
    low, first, variable, second, high = sides
    if variable in low + high or (first and first not in ("<", "\\le")):
        return None
    if second in (">", "\\ge"):
        return None if low else (("[" if second == "\\ge" else "(", _end(high)), None, variable)
    lower = ("[" if first == "\\le" else "(", _end(low)) if low else None
    return lower, ("]" if second == "\\le" else ")", _end(high)), variable


def _end(text: str) -> str:
    text = text.strip()
    return "\\infty" if re.fullmatch(r"\+\s*\\infty", text) else re.sub(r"^-\s+", "-", text)
