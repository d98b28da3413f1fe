"""The definition of a source of problems: a description, the columns it needs, and how a record becomes a problem.

A source is a file of `nemo_prorl/data/sources/` that defines `SOURCE`; to add one, add a file.
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
from reward.protocol import ScoreRequest, ScoreResult, id_of
from reward.rows import BadLabel, answer_text

Submit = Callable[[ScoreRequest], Future[ScoreResult]]
"""Sends one request to the reward service."""

BOX_SUFFIX = " Let's think step by step and output the final answer within \\boxed{}."
"""The end of every math and STEM prompt (ProRL, appendix on training data)."""

ORDER = ("deepscaler", "eurus", "scp116k", "reasoning_gym", "llama_nemotron_if")
"""The order of the paper's table of data sets. A problem found in two sources stays in the earlier one."""


class NoRow(Exception):
    """This record makes no row; the message is a short stable name, counted in the manifest."""


class OtherSet(NoRow):
    """This record makes no row because it belongs to something else, so that nothing is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as read. Example: Record(values={"problem": "2+2?", "answer": "4"}, split="train",
    origin="math.json:17")"""

    values: Mapping[str, Any]
    split: str
    origin: str
    """File and line, for people."""

    def text(self, column: str, *, otherwise: str) -> str:
        """Returns the stripped text of a column, a number as text. Raises NoRow(otherwise) if there is none."""
        try:
            return answer_text(self.values.get(column)).strip()
        except BadLabel:
            raise NoRow(otherwise) from None

    def list(self, column: str) -> list[Any]:
        """Returns a list, given as such or as JSON text; empty for none. Raises ConfigError for anything else."""
        found = self._data(column)
        if found is not None and not isinstance(found, list):
            raise self.unreadable(column, "is no list")
        return found or []

    def object(self, column: str) -> dict[str, Any]:
        """Returns an object, given as such or as JSON text; empty for none. Raises ConfigError for anything else."""
        found = self._data(column)
        if found is not None and not isinstance(found, Mapping):
            raise self.unreadable(column, "is no object")
        return dict(found or {})

    def _data(self, column: str) -> Any:
        value = self.values.get(column)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise self.unreadable(column, f"is not JSON ({' '.join(str(error).split())})") from None

    def unreadable(self, column: str, why: str) -> ConfigError:
        """Returns the error for a value that cannot be read, which names file and row."""
        return ConfigError(
            f"{self.origin}: the column {column} {why}: get the file anew, as its publisher ships it."
        )

    def first(self, columns: str) -> Any:
        """Returns the value of the first of `a|b|c` that exists and is not null, else None."""
        values = (self.values.get(column) for column in columns.split("|"))
        return next((value for value in values if value is not None), None)


def user_turns(turns: Any) -> list[str]:
    """Returns the texts of a conversation's user turns; a text is such a conversation with one turn."""
    if isinstance(turns, str):
        return [turns]
    found = [turn for turn in turns or [] if isinstance(turn, Mapping) and turn.get("role") == "user"]
    return [turn["content"] for turn in found if isinstance(turn.get("content"), str)]


def only_user_turn(turns: Any, *, otherwise: str) -> str:
    """Returns the stripped text of a conversation's only user turn; a text is such a conversation. Raises
    NoRow(otherwise) if there is not exactly one, or if it is empty."""
    texts = user_turns(turns)
    if len(texts) != 1 or not texts[0].strip():
        raise NoRow(otherwise)
    return texts[0].strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem made from a record."""

    question: str
    """The question without additions; duplicates and overlaps are searched in it."""
    task: Mapping[str, Any]
    """What the grader needs (reward/protocol.py)."""
    suffix: str = ""
    """The end of the prompt."""
    system: str = ""
    """The system turn; none when empty."""
    kind: str = ""
    """Part of the source, such as the name of a puzzle; appended to the row's `source`."""
    gold: str | None = None
    """A response that has to score 1; None if the source has none."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Input for the source's `refine`; not kept in the row."""
    remark: str = ""
    """What readers of a benchmark's score should know of this problem, which counts such problems; ends the sentence
    "3 of them ..."."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row that has not been verified yet."""

    row: Row
    problem: Problem
    origin: str
    by_judge_only: bool = False
    """Whether only a model, and not the rule scorer, says that its answer is right."""

    def request(self, response: str) -> ScoreRequest:
        """Returns the request to grade a response to it."""
        row = self.row
        return ScoreRequest(request_id=id_of(row.uid), domain=row.domain, response=response, task=row.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCandidate:
    """A candidate that becomes no training row, and why. With a `file`, it is written there for people to inspect."""

    candidate: Candidate
    reason: str
    detail: str = ""
    file: str = ""


Refine = Callable[[Sequence[Candidate], DataBuildConfig, Submit], Iterable[Candidate | RejectedCandidate]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Declares where problems come from and how they are processed."""

    name: str
    domain: str
    summary: str
    """A few words for `data list`."""
    licence: str
    """What its authors say about it."""
    convert: Callable[[Record], Problem]
    """Turns a record into a problem. Raises NoRow."""
    columns: tuple[str, ...] = ()
    """Columns that every file must have; `a|b` requires one of the two."""
    hub_id: str = ""
    """Data set on the Hugging Face hub, read when the user names nothing else; empty: records are generated."""
    hub_files: str = ""
    """Pattern of its files to read; empty: all data files."""
    generate: Callable[[DataBuildConfig], Iterable[Record]] | None = None
    """Generates the records, if none are read."""
    check_options: Callable[[DataBuildConfig], None] | None = None
    """Checks options before any work. Raises ConfigError."""
    refine: Refine | None = None
    """A filter over all candidates together, before they are verified."""
    paper_rows: int = 0
    """Training rows of ProRL's own set (2507.12507 table 1), kept unless the option `rows` gives another number; 0: all
    that pass."""
    templated: bool = False
    """Whether questions are filled-in templates: then only equality counts, since shared n-grams mean nothing."""

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
        """Returns the row of a record. Its uid is a hash of its messages, so it stays when the source is reordered.

        Raises NoRow."""
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
    """Returns every source by name: first ORDER, then the others by name."""
    from nemo_prorl.data import sources as package

    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    found = [importlib.import_module(f"{package.__name__}.{name}").SOURCE for name in names]
    by_name = {source.name: source for source in found}
    return {name: by_name[name] for name in [*ORDER, *sorted(set(by_name) - set(ORDER))] if name in by_name}


def get(name: str) -> Source:
    """Returns the source. Raises ConfigError for an unknown name."""
    if name not in sources():
        raise ConfigError(
            f"{name} is not a source: write one of {', '.join(sources())}, or all. Files of your own need no build: "
            "`train data.train=FILE` reads them (docs/data.md)."
        )
    return sources()[name]
