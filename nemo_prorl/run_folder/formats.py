"""How times, numbers and tables are written for people, on the terminal and on pages."""

from __future__ import annotations

from collections.abc import Sequence

FIRST_COLUMN = 12
"""Characters that a table's first column keeps where the lines are too long."""


def duration(seconds: float) -> str:
    """Formats seconds, in at most seven characters up to 27 years: "40 s", "12 min", "3.5 h", "19.7 d"."""
    for unit, size_s, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < most:
            return f"{seconds / size_s:.{int(unit == 'h')}f} {unit}"
    return f"{seconds / 86400:.1f} d"


def number_text(value: float) -> str:
    """Formats a number with about three digits that count: "12,346", "0.123", "2e-06"."""
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3f}" if 0.01 <= abs(value) < 10 else f"{value:.4g}"


def large(number: float) -> str:
    """Formats a count with three digits and a unit: "2.90 B", "12.3 k", "840"."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:#.3g}".rstrip(".") + f" {unit}"
    return f"{number:.3g}"


def table(rows: Sequence[Sequence[str]], alignment: str, width: int = 0) -> list[str]:
    """Returns a line for each row, with two blanks between columns. alignment: < or > for each column. width: of the
    lines, for which the first column is cut at its beginning, down to FIRST_COLUMN characters; 0: as long as needed."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width:
        room = width - sum(widths[1:]) - 2 * len(widths[1:])
        widths[0] = min(widths[0], max(FIRST_COLUMN, room))
    return [
        "  ".join(
            f"{cell if len(cell) <= size else f'…{cell[1 - size :]}':{side}{size}}"
            for cell, size, side in zip(row, widths, alignment, strict=True)
        ).rstrip()
        for row in rows
    ]
