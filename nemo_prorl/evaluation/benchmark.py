"""What a benchmark is: where its problems come from, how they are asked, what counts, and what the paper reports."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building.source import Dropped, Problem, Record
from nemo_prorl.data.rows import Row


class Metric(StrEnum):
    """`pass_at_1`: the share of samples that are fully right. `reward`: the mean of the graders' continuous scores.

    ProRL (arXiv 2505.24864, section 3.4) reports the first for math, code and STEM, the second for puzzles and IFEval.
    """

    pass_at_1 = "pass_at_1"
    reward = "reward"


OUTSIDE_WINDOW = "outside_the_window_of_dates"


@dataclass(frozen=True, slots=True, kw_only=True)
class DateWindow:
    """Days as YYYY-MM-DD, both included. Example: DateWindow(first="2024-08-01", last="2025-02-01")"""

    first: str
    last: str

    @staticmethod
    def parse(text: str) -> DateWindow | None:
        """Of the option's form FIRST..LAST, which config.py checks; None of the empty text, for no limit."""
        first, _, last = text.partition("..")
        return DateWindow(first=first, last=last) if text else None

    def holds(self, day: date) -> bool:
        """Whether the day lies in it."""
        return date.fromisoformat(self.first) <= day <= date.fromisoformat(self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """What the records of a benchmark came to."""

    rows: tuple[Row, ...]
    num_duplicates: int
    """Records that ask what an earlier one asked."""
    dropped: Mapping[str, int]
    """Reason -> number of records that made no problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """An entry of the catalogue. Adding a benchmark is adding one."""

    name: str
    title: str
    """Head of its column in the paper's tables."""
    domain: str
    """Which grader judges (reward/protocol.py)."""
    metric: Metric
    where: str
    """Where the file is to be had: for people."""
    licence: str
    """What its authors say of it."""
    convert: Callable[[Record], Problem]
    """One schema, or several of a family. Raises Dropped."""
    files: tuple[str, ...] = ()
    """Patterns of file names under evaluation.data_dir. All that match the first pattern with a match are read."""
    generate: Callable[[], Iterable[Record]] | None = None
    """Makes the records, where no file is needed."""
    suffix: str = ""
    """Ends each prompt, unless the problem has an ending of its own."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """What the grader is told with every problem, such as its publisher's time limit (docs/rewards.md)."""
    num_problems: int = 0
    """How many problems it has, where that is known for sure; 0: not known. Results on another number are marked."""
    num_may_differ: int = 0
    """Files with so many problems more or fewer than num_problems are not marked."""
    counted_by: str = ""
    """Whose count num_problems is."""
    date_column: str = ""
    """Column with the date of a problem, where a window of dates may be asked for."""
    has_puzzles: bool = False
    """Whether evaluation.puzzles may limit it to some of its tasks."""
    remark: str = ""
    """What a reader of its numbers has to know: shown by --list and below the tables."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Model -> what the paper reports, in percent."""

    def problems(self, records: Iterable[Record], window: DateWindow | None = None) -> Problems:
        """The different problems of the records, in their order; of records that ask the same, the first one.

        window: dates that date_column must lie in; None: any. Raises ConfigError when no problem is left, or when a
        window is given and a record has no date that can be read.
        """
        rows: dict[str, Row] = {}
        num_duplicates, dropped = 0, Counter[str]()
        for record in records:
            try:
                if window is not None and not window.holds(self._date(record)):
                    raise Dropped(OUTSIDE_WINDOW)
                row = self._row(self.convert(record))
            except Dropped as reason:
                dropped[str(reason)] += 1
                continue
            num_duplicates += row.uid in rows
            rows.setdefault(row.uid, row)
        if not rows:
            why = ", ".join(sorted(dropped)) or "it is empty"
            raise ConfigError(
                f"{self.name}: no problem could be made of its file ({why}); get it from {self.where}."
            )
        return Problems(rows=tuple(rows.values()), num_duplicates=num_duplicates, dropped=dict(dropped))

    def _date(self, record: Record) -> date:
        """The day of a problem: text that begins with YYYY-MM-DD, or a date or datetime, as Parquet has them."""
        value = record.values.get(self.date_column)
        if isinstance(value, date):  # a datetime is one, too
            return date(value.year, value.month, value.day)
        try:
            if not isinstance(value, str):
                raise ValueError
            return date.fromisoformat(value[:10])
        except ValueError:
            has = (
                f"{self.date_column}={value!r}"
                if self.date_column in record.values
                else f"no {self.date_column}"
            )
            raise ConfigError(
                f"{record.origin} has {has}, and {self.name} is limited to a window of dates, which needs a date such "
                f"as 2024-08-01: get the file from {self.where}, or ask for all dates with "
                "evaluation.livecodebench_dates=''."
            ) from None

    def _row(self, problem: Problem) -> Row:
        """Its uid is made of what is asked, so that a sample stays valid when the file is reordered."""
        question = problem.question + (problem.suffix or self.suffix)
        text = json.dumps([question, problem.kind])
        return Row(
            uid=f"{self.name}/{hashlib.sha256(text.encode()).hexdigest()[:16]}",
            domain=self.domain,
            source=f"{self.name}/{problem.kind}" if problem.kind else self.name,
            split="test",
            messages=({"role": "user", "content": question},),
            task={**problem.task, **self.task},
        )


def missing_column(record: Record, wanted: str) -> ConfigError:
    """For a file that is of none of the known schemas."""
    return ConfigError(
        f"{record.origin} has no {wanted}: it has {', '.join(map(str, record.values))}. Give the file as its "
        "publisher ships it (docs/evaluation.md)."
    )
