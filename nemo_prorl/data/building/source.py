"""The definition of a source of problems: a description, the columns it needs, and how a record becomes a problem.

A source is a file of `nemo_prorl/data/sources/` that defines `SOURCE`; to add one, add a file, and its name to ORDER.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from string import ascii_uppercase
from typing import Any

from nemo_prorl.config import ConfigError, DataBuildConfig, one_line
from nemo_prorl.data.rows import Row
from reward.protocol import ScoreRequest, ScoreResult, id_of
from reward.rows import BadLabel, answer_text

Submit = Callable[[ScoreRequest], Future[ScoreResult]]
"""Sends one request to the reward service."""

BOX_SUFFIX = " Let's think step by step and output the final answer within \\boxed{}."
"""The end of every math and STEM prompt (ProRL, appendix on training data)."""

ORDER = ("deepscaler", "eurus", "scp116k", "reasoning_gym", "llama_nemotron_if", "goosereason")
"""The sources, first those of the paper in the order of its table. A problem found in two of them stays in the
earlier."""
NUM_EXAMPLES = 3
"""Examples per reason for dropping that the manifest keeps."""


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
        return self._data(column, list)

    def object(self, column: str) -> dict[str, Any]:
        """Returns an object, given as such or as JSON text; empty for none. Raises ConfigError for anything else."""
        return self._data(column, dict)

    def _data(self, column: str, kind: type) -> Any:
        value, why = self.values.get(column), ""
        if isinstance(value, str):
            try:
                value = json.loads(value) if value.strip() else None
            except (ValueError, RecursionError) as error:
                why = f"is not JSON ({one_line(error)})"
        if not why and value is not None and not isinstance(value, kind):
            why = f"is no {'list' if kind is list else 'object'}"
        if why:
            raise ConfigError(
                f"{self.origin}: the column {column} {why}: get the file anew, as its publisher ships it."
            )
        return kind() if value is None else value

    def first(self, columns: str) -> Any:
        """Returns the value of the first of `a|b|c` that exists and is not null, else None."""
        values = (self.values.get(column) for column in columns.split("|"))
        return next((value for value in values if value is not None), None)


def only_user_turn(turns: Any, *, otherwise: str) -> str:
    """Returns the text of a conversation's only user turn; a text is such a conversation. Raises NoRow(otherwise) if
    there is not exactly one, or if it is blank."""
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    listed = turns if isinstance(turns, list) else []
    texts = [
        turn.get("content") for turn in listed if isinstance(turn, Mapping) and turn.get("role") == "user"
    ]
    if len(texts) != 1 or not isinstance(texts[0], str) or not texts[0].strip():
        raise NoRow(otherwise)
    return texts[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem made from a record."""

    question: str
    """The question without additions; duplicates and overlaps are searched in it."""
    task: Mapping[str, Any]
    """What the grader needs (reward/protocol.py)."""
    suffix: str = ""
    """The end of the prompt."""
    kind: str = ""
    """Part of the source, such as the name of a puzzle; appended to the row's `source`."""
    gold: str | None = None
    """A response that has to score 1; None if the source has none."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Input for the source's `refine`; not kept in the row."""
    remark: str = ""
    """What readers of a benchmark's score should know of this problem, which counts such problems; ends the sentence
    "3 of them ..."."""


def multiple_choice(question: str, options: Sequence[str], right: int) -> Problem:
    """Returns a question that lists its options by letters; the answer is the letter of the one with index `right`."""
    letter, lines = ascii_uppercase[right], zip(ascii_uppercase, options, strict=False)
    listed = "\n".join(f"{name}. {option}" for name, option in lines)
    return Problem(
        question=f"{question}\n\n{listed}\n\nThe final answer is the letter of the right option.",
        task={"answer": letter},
        gold=f"\\boxed{{{letter}}}",
    )


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


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What happened to every record."""

    began: float = field(default_factory=time.monotonic)
    num_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=lambda: defaultdict(list))
    apart: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """File -> dropped rows that it shows to people."""

    def drop(self, reason: str, origin: str, detail: str = "") -> None:
        """Counts a record that becomes no row."""
        self.dropped[reason] += 1
        if len(self.examples[reason]) < NUM_EXAMPLES:
            self.examples[reason].append({"origin": origin, "detail": detail[:300]})

    def reject(self, candidate: Candidate, reason: str, detail: str = "", *, file: str = "") -> None:
        """Drops a candidate. With a `file`, it is written there."""
        self.drop(reason, candidate.origin, detail)
        if file:
            self.apart[file].append(candidate.row)


Refine = Callable[[Sequence[Candidate], DataBuildConfig, Submit, Ledger], Iterable[Candidate]]


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
    """A filter over all candidates together, before they are verified; rejects the others."""
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
        messages = ({"role": "user", "content": problem.question + problem.suffix},)
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
    """Returns every source by name, in the order of ORDER."""
    return {name: importlib.import_module(f"nemo_prorl.data.sources.{name}").SOURCE for name in ORDER}


def get(name: str) -> Source:
    """Returns the source. Raises ConfigError for an unknown name."""
    if name not in sources():
        raise ConfigError(
            f"{name} is not a source: write one of {', '.join(sources())}, or all. Files of your own need no build: "
            "`train data.train=FILE` reads them (docs/data.md)."
        )
    return sources()[name]
