"""Joins the pieces of an answer into one line of text.

`attach` puts an exponent or a mark behind the piece that it belongs to. `to_text` writes the pieces as text: it joins
thousands and mixed numbers, and refuses two values side by side without a sign between them, since one verifier adds
them and another multiplies or joins them.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from reward.graders.units import unit_of

_LABEL = re.compile(r"\s*\(?(?:[A-Z]|\\text\{\s*\(?[A-Z])\s*[).:]\s*\}?\s*|\s*(?:\(?[a-h]|\d|i{1,3})\)\s*")
"""The letter of an option, or the number of a part, whose text may begin with a number."""
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:( )\d{3}(?: \d{3})*|(?:,\d{3})+)(?:\.\d+)?(?![\d,]| \d)", re.ASCII)
_MIXED = re.compile(r"(\d+) (\d+) ?/ ?(\d+)(?![\d.])", re.ASCII)
_LETTERS = re.compile(r"\\text\{\s*([a-z]{1,2})\s*\}((?:[_^].*)?)")
_SHORT_WORDS = frozenset("or if is in at of by to no am pm th st nd rd sq cu cc hp mi".split())  # noqa: SIM905
_LONGEST = 40
"""How many pieces are searched for the digits of one number."""


class Unreadable(ValueError):
    """The box does not show one answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the line. Kinds: number, value (complete, such as a fraction), letter, function (what follows is its
    argument), text, sign, comma, open, close, relation, space, wide (a space between statements).

    Example: Piece("number", "12")
    """

    kind: str
    text: str


def last_of(found: list[Piece]) -> Piece | None:
    """Returns the last piece that is not a space."""
    return next((piece for piece in reversed(found) if piece.kind not in ("space", "wide")), None)


def attach(found: list[Piece], mark: str) -> None:
    """Writes an exponent, a factorial sign or the like behind the piece that it belongs to."""
    while found and found[-1].kind in ("space", "wide"):
        found.pop()
    base = found.pop() if found else Piece("sign", "")
    if mark[0] in "^_" and re.search(rf"\{mark[0]}(?:\{{[^{{}}]*\}}|\\circ)$", base.text):
        raise Unreadable("two exponents or two indices follow one another")
    kind = base.kind if base.kind in ("function", "text", "relation", "letter", "close") else "value"
    kind = "value" if kind == "letter" and mark[0] in "^_" else kind
    found.append(Piece(kind, base.text + mark))


def to_text(pieces: list[Piece]) -> str:
    """Returns the pieces as one text. Raises Unreadable where two values stand side by side."""
    pieces = _with_whole_numbers(_with_commas_for_wide_spaces(_with_letters(pieces)))
    line = ""
    before: Piece | None = None
    for piece in pieces:
        # A number may follow a sign, and degrees as minutes (5^\circ 30'), or the bracket of a label (`(a) 5`); behind
        # another value or a full stop it would be a second guess.
        if piece.text[:1].isdigit() and before is not None:
            is_minutes = before.text.endswith("^\\circ") and piece.text.endswith("'")
            if (before.kind in ("number", "value") and not is_minutes) or (
                before.kind == "close" and not _LABEL.fullmatch(line)
            ):
                raise Unreadable(f"two values stand side by side: `{before.text.strip()}` and `{piece.text}`")
            if before.text == "." and not _LABEL.fullmatch(line):
                raise Unreadable("a number follows a full stop")
        if piece.kind == "space" and line.endswith(" "):
            continue
        if re.search(r"\\[A-Za-z]+$", line) and piece.text[:1].isalpha():
            line += " "  # \pi x is not \pix
        line += piece.text
        before = before if piece.kind == "space" else piece
    line = line.strip()
    return re.sub(r"\s*\.$", "", line) if re.search(r"(?:^|[^A-Za-z.])\s*\.$", line) else line


def _with_letters(pieces: list[Piece]) -> list[Piece]:
    """Reads one or two letters of text behind a number, if they are no unit and no word, as variables: `3\\text{i}` is
    3i. One verifier would drop them as a unit."""
    found: list[Piece] = []
    for piece in pieces:
        match = _LETTERS.fullmatch(piece.text) if piece.kind == "text" else None
        is_variable = match and match[1] not in _SHORT_WORDS and unit_of(f"1 {match[1]}") is None
        last = last_of(found)
        if match and is_variable and last is not None and last.kind in ("number", "value"):
            piece = Piece("value" if match[2] else "letter", match[1] + match[2])
        found.append(piece)
    return found


def _with_commas_for_wide_spaces(pieces: list[Piece]) -> list[Piece]:
    """Turns `x = 1 \\quad y = 2` into a list of two equations; any other wide space becomes a plain space."""
    places = [number for number, piece in enumerate(pieces) if piece.kind == "wide"]
    starts = [0, *(place + 1 for place in places)]
    parts = [pieces[start:end] for start, end in zip(starts, [*places, len(pieces)], strict=True)]
    found = parts[0]
    for previous, part in itertools.pairwise(parts):
        states = all(any(piece.kind == "relation" for piece in side) for side in (previous, part))
        last = last_of(previous)
        found = [
            *found,
            Piece("comma", ",") if states and last and last.kind != "comma" else Piece("space", " "),
        ]
        found += [Piece("space", " "), *part]
    return found


def _with_whole_numbers(pieces: list[Piece]) -> list[Piece]:
    """Joins thousands (`1,234`, `1 234`; in brackets only with spaces), and writes `7 3/4` as `7\\frac{3}{4}`."""
    found: list[Piece] = []
    depth = place = 0
    while place < len(pieces):
        piece = pieces[place]
        depth += (piece.kind == "open") - (piece.kind == "close")
        whole, end = _whole_number(pieces, place, depth) if piece.kind == "number" else ([], place)
        if whole and not (found and found[-1].kind in ("comma", "number")):
            found += whole
            place = end
        else:
            found.append(piece)
            place += 1
    return found


def _whole_number(pieces: list[Piece], place: int, depth: int) -> tuple[list[Piece], int]:
    """Returns the number that the pieces from `place` on form together, and the index behind it."""
    text = "".join(piece.text for piece in pieces[place : place + _LONGEST])
    if (match := _THOUSANDS.match(text)) and (depth <= 0 or match[1]):
        whole = [Piece("number", re.sub("[ ,]", "", match[0]))]
    elif match := _MIXED.match(text):
        whole = [Piece("number", match[1]), Piece("value", f"\\frac{{{match[2]}}}{{{match[3]}}}")]
    else:
        return [], place
    length = len(match[0])
    while length > 0:
        length -= len(pieces[place].text)
        place += 1
    return (whole, place) if length == 0 else ([], place)
