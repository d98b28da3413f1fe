"""What a benchmark is: where its problems come from, how they are asked, what counts, and what the paper reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building.source import Dropped, Problem, Record
from nemo_prorl.data.rows import Row


class Metric(StrEnum):
    """`pass_at_1`: the share of samples that are fully right. `reward`: the mean of the graders' continuous scores.

    ProRL (arXiv 2505.24864, section 3.4) reports the first for math, code and STEM, the second for puzzles and IFEval.
    """

    pass_at_1 = "pass_at_1"
    reward = "reward"


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
    """Patterns of the names that it looks for under evaluation.data_dir; the first with a match is taken."""
    generate: Callable[[], Iterable[Record]] | None = None
    """Makes the records, where no file is needed."""
    suffix: str = ""
    """Ends each prompt, unless the problem has an ending of its own."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Model -> what the paper reports, in percent."""

    def rows(self, records: Iterable[Record]) -> list[Row]:
        """One row a problem, the first of those that ask the same. Raises ConfigError when there is none."""
        rows: dict[str, Row] = {}
        dropped: list[str] = []
        for record in records:
            try:
                row = self._row(self.convert(record))
            except Dropped as reason:
                dropped.append(str(reason))
                continue
            rows.setdefault(row.uid, row)
        if not rows:
            why = ", ".join(sorted(set(dropped))) or "it is empty"
            raise ConfigError(
                f"{self.name}: no problem could be made of its file ({why}); get it from {self.where}."
            )
        return list(rows.values())

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
            task=problem.task,
        )


def missing_column(record: Record, wanted: str) -> ConfigError:
    """For a file that is of none of the known schemas."""
    return ConfigError(
        f"{record.origin} has no {wanted}: it has {', '.join(map(str, record.values))}. Give the file as its "
        "publisher ships it (docs/evaluation.md)."
    )
