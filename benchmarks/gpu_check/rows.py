"""The results of the check: figures, some of them with a limit, and their lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure. Example: Row(what="fused: log-probability", value=2e-7, unit="nats", limit=1e-5)"""

    what: str
    value: float
    unit: str
    limit: float | None = None
    """The largest value that passes; None for a figure that is only for information."""
    note: str = ""
    means: str = ""
    """What it would mean if the value were beyond its limit, and what to look at."""
    part: str = ""
    """The name of the part that found it, which the command writes into it."""

    @property
    def passed(self) -> bool | None:
        """Whether the value is within the limit, which NaN never is; None without a limit."""
        return None if self.limit is None else self.value <= self.limit


def line(row: Row) -> str:
    """Returns a row as text for a terminal of 120 columns."""
    verdict = {None: "", True: "ok", False: "FAILED"}[row.passed]
    limit = "" if row.limit is None else f"<= {row.limit:.3g}"
    text = f"{row.part:<9}{row.what:<48}{row.value:>12.4g} {row.unit:<11}{limit:<11}{verdict:<7}{row.note}"
    return text.rstrip() + (f"\n{'':9}-> {row.means}" if row.passed is False and row.means else "")


def seconds_of(once: Callable[[], Any], repeats: int = 5) -> float:
    """Returns the seconds of the fastest of `repeats` calls, after one to compile and warm up."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    once()
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        once()
        wait()
        times.append(time.perf_counter() - start)
    return min(times)
