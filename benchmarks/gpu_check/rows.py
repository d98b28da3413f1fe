"""What a part of the check yields: figures, some of them with a limit, and their table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """Example: Row(part="kernel", what="fused: log-probability", value=2e-7, unit="nats", limit=1e-5)"""

    part: str
    what: str
    value: float
    unit: str
    limit: float | None = None
    """The largest value that passes; None: a figure to read, without a verdict."""
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """NaN passes no limit."""
        return None if self.limit is None else self.value <= self.limit


def line(row: Row) -> str:
    """For a terminal of 120 columns."""
    verdict = {None: "", True: "ok", False: "FAILED"}[row.passed]
    limit = "" if row.limit is None else f"<= {row.limit:.3g}"
    text = f"{row.part:<9}{row.what:<48}{row.value:>12.4g} {row.unit:<11}{limit:<11}{verdict:<7}{row.note}"
    return text.rstrip()
