"""The definition of a benchmark: source of its problems, prompt format, metric, and the paper's numbers."""

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
from nemo_prorl.data.building.source import NoRow, OtherSet, Problem, Record
from nemo_prorl.data.layouts import shown_media
from nemo_prorl.data.rows import Row


class ScoreMetric(StrEnum):
    """`pass_at_1`: the share of samples that are fully right. `reward`: the mean of the graders' continuous scores.

    ProRL (arXiv 2505.24864, section 3.4) reports the first for math, code and STEM, the second for puzzles and IFEval.
    """

    pass_at_1 = "pass_at_1"
    reward = "reward"


_OUTSIDE_WINDOW = "outside_the_window_of_dates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """The problems that the records of a benchmark give."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """How many records are not among them, why, and what the problems lack; parts of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """An entry of the catalogue."""

    name: str
    title: str
    """Head of its column in the paper's tables."""
    domain: str
    """Which grader scores it (reward/protocol.py)."""
    metric: ScoreMetric
    where: str
    """Where to get the file; for people."""
    licence: str
    """What its authors say about it."""
    convert: Callable[[Record], Problem]
    """Reads one schema, or several of a family. Raises NoRow."""
    files: tuple[str, ...] = ()
    """File name patterns under evaluation.data_dir. All files that match the first pattern with a match are read."""
    generate: Callable[[], Iterable[Record]] | None = None
    """Generates the records, if no file is needed."""
    suffix: str = ""
    """The end of each prompt, unless the problem has an ending of its own."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """Task fields added to every problem, such as its publisher's time limit (docs/reward_service.md)."""
    num_problems: int = 0
    """How many problems it has, if known for certain; 0: not known. Results on another number are marked."""
    num_may_differ: int = 0
    """Files that differ from num_problems by at most this many are not marked."""
    counted_by: str = ""
    """The source of num_problems."""
    date_column: str = ""
    """Column with a problem's date, if evaluation can be limited to a window of dates."""
    has_puzzles: bool = False
    """Whether evaluation.puzzles can limit it to some of its tasks."""
    remark: str = ""
    """A caveat for readers of its numbers, shown by --list and below the tables."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Model -> the paper's number, in percent."""

    def problems(self, records: Iterable[Record], dates: str = "") -> Problems:
        """Returns the different problems of the records, in order; of records with the same question, the first.

        dates: the window in which date_column must lie, as in evaluation.livecodebench_dates; empty: any date. Raises
        ConfigError if no problem is left, or if a window is given and a record has no readable date.
        """
        first, _, last = dates.partition("..")
        rows: dict[str, Row] = {}
        num_duplicates, dropped, remarks = 0, Counter[str](), Counter[str]()
        lost: dict[str, str] = {}  # reason, if something is lost -> the first record
        for record in records:
            try:
                if dates and not date.fromisoformat(first) <= self._date(record) <= date.fromisoformat(last):
                    raise OtherSet(_OUTSIDE_WINDOW)
                if shown_media(record.values):
                    raise NoRow("not_text_alone")
                problem = self.convert(record)
            except NoRow as reason:
                dropped[str(reason)] += 1
                if not isinstance(reason, OtherSet):
                    lost.setdefault(str(reason), record.origin)
                continue
            row = self._row(problem)
            if row.uid in rows:
                num_duplicates += 1
                continue
            rows[row.uid] = row
            remarks.update(filter(None, [problem.remark]))
        if not rows:
            why = [
                f"{reason}, such as {lost[reason]}" if reason in lost else reason
                for reason in sorted(dropped)
            ]
            raise ConfigError(
                f"{self.name}: no problem could be made of its file ({', '.join(why) or 'it is empty'}); get it from "
                f"{self.where}."
            )
        outside = dropped[_OUTSIDE_WINDOW]
        return Problems(
            rows=tuple(rows.values()),
            notes=(
                *([f"{num_duplicates:,} duplicates were removed"] if num_duplicates else []),
                *([f"{outside:,} lie outside evaluation.livecodebench_dates"] if outside else []),
                *(
                    f"{dropped[why]:,} make no problem ({why}, such as {origin})"
                    for why, origin in lost.items()
                ),
                *(f"{count:,} of them {remark}" for remark, count in remarks.items()),
            ),
        )

    def _date(self, record: Record) -> date:
        """Returns the day of a problem, from text that begins with YYYY-MM-DD, or a date or datetime as in Parquet."""
        column, value = self.date_column, record.values.get(self.date_column)
        try:
            if not isinstance(value, (str, date)):
                raise ValueError
            return date.fromisoformat(str(value)[:10])
        except ValueError:
            has = f"{column}={value!r}" if column in record.values else f"no {column}"
            raise ConfigError(
                f"{record.origin} has {has}, and {self.name} is limited to a window of dates, which needs a date such "
                f"as 2024-08-01: get the file from {self.where}, or ask for all dates with "
                "evaluation.livecodebench_dates=''."
            ) from None

    def _row(self, problem: Problem) -> Row:
        """Returns a problem as a row. Its uid is a hash of the question, so samples stay valid if the file is
        reordered."""
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
    """Returns the error for a file that has none of the known schemas."""
    return ConfigError(
        f"{record.origin} has no {wanted}: it has {', '.join(map(str, record.values))}. Give the file as its "
        "publisher ships it (docs/evaluation.md)."
    )
