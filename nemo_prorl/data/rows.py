"""The one row type of prompt files, and its Parquet form (docs/data.md)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nemo_prorl.config import ConfigError

SCHEMA = pa.schema(
    [
        ("uid", pa.string()),
        ("domain", pa.string()),
        ("source", pa.string()),
        ("split", pa.string()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("task", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem.

    Example: Row(uid="chain_sum/7", domain="logic", source="reasoning_gym/chain_sum", split="train",
                 messages=({"role": "user", "content": "3 + 4 ="},), task={"task": "chain_sum", "entry": {...}})
    """

    uid: str
    domain: str
    source: str
    split: str
    messages: tuple[Mapping[str, str], ...]
    task: Mapping[str, Any]
    """What the grader needs; JSON in the file, because every domain has its own fields."""


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes aside, then renames: a reader sees all rows or none."""
    table = pa.Table.from_pylist(
        [
            {
                "uid": row.uid,
                "domain": row.domain,
                "source": row.source,
                "split": row.split,
                "messages": [dict(message) for message in row.messages],
                "task": json.dumps(row.task, ensure_ascii=False, allow_nan=False),
            }
            for row in rows
        ],
        schema=SCHEMA,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, aside)
    os.replace(aside, path)


class RowFile:
    """Random access to a prompt file. Rows stay in Arrow's columns; only the one asked for becomes Python objects."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when the file is missing, empty or not of the documented row type."""
        self.path = path
        if not path.is_file():
            raise ConfigError(
                f"data file {path} does not exist: write an existing prompt file (docs/data.md)."
            )
        try:
            table = pq.read_table(path, memory_map=True)
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"data file {path} is not Parquet ({reason}): see docs/data.md.") from error
        missing = [name for name in SCHEMA.names if name not in table.column_names]
        if missing:
            raise ConfigError(f"data file {path} lacks the column(s) {', '.join(missing)}: see docs/data.md.")
        if table.num_rows == 0:
            raise ConfigError(f"data file {path} has no rows.")
        self._table = pa.table({field.name: self._column(table, field) for field in SCHEMA}, SCHEMA)
        self.fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()

    def _column(self, table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        """Other writers use large strings, or fields in another order: the same to us."""
        column = table[field.name]
        try:
            column = column.cast(field.type)
        except pa.ArrowException:
            raise ConfigError(
                f"data file {self.path} has {field.name} as {column.type}, not as {field.type}: see docs/data.md."
            ) from None
        if column.null_count:
            raise ConfigError(
                f"data file {self.path} has {column.null_count} row(s) without {field.name}: fill them in or leave "
                "them out."
            )
        return column

    @property
    def uids(self) -> pa.ChunkedArray:
        return self._table["uid"]

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Row:
        raw = self._table.slice(index, 1).to_pylist()[0]
        return Row(
            uid=raw["uid"],
            domain=raw["domain"],
            source=raw["source"],
            split=raw["split"],
            messages=tuple(raw["messages"]),
            task=self._task(index, raw["uid"], raw["task"]),
        )

    def _task(self, index: int, uid: str, text: str) -> dict[str, Any]:
        try:
            task = json.loads(text)
        except json.JSONDecodeError:
            task = None
        if not isinstance(task, dict):
            raise ConfigError(
                f"data file {self.path}, row {index} ({uid}): the task is not a JSON object, see docs/data.md."
            )
        return task


def check_distinct(files: Sequence[RowFile]) -> None:
    """Raises ConfigError when two rows have one uid: seeds, verdicts and the position in a file go by it."""
    counts = pc.value_counts(pa.chunked_array([chunk for file in files for chunk in file.uids.chunks]))
    repeated = [entry["values"] for entry in counts.filter(pc.greater(counts.field("counts"), 1)).to_pylist()]
    if repeated:
        places = [str(file.path) for file in files if pc.any(pc.equal(file.uids, repeated[0])).as_py()]
        raise ConfigError(
            f"{len(repeated)} uid(s) stand in more than one row, such as {repeated[0]!r} in {' and '.join(places)}: "
            "give every problem a uid of its own."
        )
