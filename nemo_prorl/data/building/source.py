"""What a source of problems is: a few words about it, the columns it needs, and how a record becomes a problem.

A source is a file of `nemo_prorl/data/sources/` that defines `SOURCE`; adding one is adding a file.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from nemo_prorl.config import ConfigError, DataBuildConfig
from nemo_prorl.data.rows import Row
from reward.protocol import ScoreRequest, ScoreResult

Submit = Callable[[ScoreRequest], Future[ScoreResult]]
"""Hands one request to the reward service."""

BOX_SUFFIX = " Let's think step by step and output the final answer within \\boxed{}."
"""Ends every math and STEM prompt (ProRL, appendix on training data)."""

ORDER = ("deepscaler", "eurus", "scp116k", "reasoning_gym", "llama_nemotron_if")
"""As in the paper's table of data sets. What two sources share stays with the earlier one."""


class Dropped(Exception):
    """This record makes no row; its text is a short stable name, counted in the manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as it was read. Example: Record(values={"problem": "2+2?", "answer": "4"}, split="train",
    origin="math.json:17")"""

    values: Mapping[str, Any]
    split: str
    origin: str
    """Where it stands: for people."""

    def text(self, column: str, *, otherwise: str) -> str:
        """The stripped text of a column, a number as text. Raises Dropped(otherwise) when there is none."""
        value = self.values.get(column)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise Dropped(otherwise)
        return value.strip()

    def first(self, columns: str) -> Any:
        """The value of the first of `a|b|c` that is there and not null, else None."""
        values = (self.values.get(column) for column in columns.split("|"))
        return next((value for value in values if value is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a source makes of a record."""

    question: str
    """What is asked, without anything added: duplicates and overlaps are looked for in it."""
    task: Mapping[str, Any]
    """What the grader needs (reward/protocol.py)."""
    suffix: str = ""
    """Ends the prompt."""
    system: str = ""
    """The system turn; none when empty."""
    kind: str = ""
    """Part of the source, such as the name of a puzzle; stands in the row's `source`."""
    gold: str | None = None
    """A response that has to score 1; None where the source has none."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the source's `refine` needs, and no row keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row that has still to prove itself."""

    row: Row
    problem: Problem
    origin: str
    by_judge_only: bool = False
    """That its answer is right is what a model says; the rule scorer did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A candidate that becomes no training row, and why. With a `file`, it is kept there for people to look at."""

    candidate: Candidate
    reason: str
    detail: str = ""
    file: str = ""


Refine = Callable[[Sequence[Candidate], DataBuildConfig, Submit], Iterable[Candidate | Refused]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Declares where problems come from and what becomes of them."""

    name: str
    domain: str
    summary: str
    """A few words for `data list`."""
    licence: str
    """What its authors say of it."""
    convert: Callable[[Record], Problem]
    """Raises Dropped."""
    columns: tuple[str, ...] = ()
    """That every file must have; `a|b` wants one of the two."""
    hub_id: str = ""
    """Data set on the Hugging Face hub, read when the user names nothing else; empty: records are generated."""
    hub_files: str = ""
    """Pattern of its files that are read; empty: all data files."""
    generate: Callable[[DataBuildConfig], Iterable[Record]] | None = None
    """Makes the records, where none are read."""
    check_options: Callable[[DataBuildConfig], None] | None = None
    """Raises ConfigError before any work."""
    refine: Refine | None = None
    """A filter over all candidates together, before they prove themselves."""
    paper_rows: int = 0
    """Training rows of ProRL's own set (2507.12507 table 1), kept where the option `rows` names no other number; 0: all
    that pass."""
    templated: bool = False
    """Questions are filled-in templates: n-grams in common say nothing about them, only equality does."""

    def check_columns(self, present: Iterable[str], where: str) -> None:
        """Raises ConfigError, naming what is missing."""
        there = sorted(present)
        missing = [names for names in self.columns if not set(names.split("|")) & set(there)]
        if missing:
            wanted = ", ".join(names.replace("|", " or ") for names in missing)
            raise ConfigError(
                f"{where} lacks the column(s) {wanted} of {self.name}: it has {', '.join(there)}. Give a file in the "
                f"schema of {self.hub_id}."
            )

    def candidate(self, record: Record) -> Candidate:
        """The row of a record. Its uid is made of what is asked, so it stays when the source is reordered.

        Raises Dropped."""
        problem = self.convert(record)
        system = [{"role": "system", "content": problem.system}] if problem.system else []
        messages = (*system, {"role": "user", "content": problem.question + problem.suffix})
        text = json.dumps(messages, ensure_ascii=True)
        row = Row(
            uid=f"{self.name}/{hashlib.sha256(text.encode()).hexdigest()[:16]}",
            domain=self.domain,
            source=f"{self.name}/{problem.kind}" if problem.kind else self.name,
            split=record.split,
            messages=messages,
            task=problem.task,
        )
        return Candidate(row=row, problem=problem, origin=record.origin)


@cache
def sources() -> dict[str, Source]:
    """Every source by name: those of ORDER, then the others by name."""
    from nemo_prorl.data import sources as package

    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    found = [importlib.import_module(f"{package.__name__}.{name}").SOURCE for name in names]
    by_name = {source.name: source for source in found}
    return {name: by_name[name] for name in [*ORDER, *sorted(set(by_name) - set(ORDER))] if name in by_name}


def get(name: str) -> Source:
    """Raises ConfigError for a name that no source has."""
    if name not in sources():
        raise ConfigError(f"{name} is not a source: write one of {', '.join(sources())}, or all.")
    return sources()[name]
