"""The row type of prompt files, and its Parquet form (docs/data.md)."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nemo_prorl.config import ConfigError, one_line
from nemo_prorl.run_folder.storage import replacing_file, sync

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


CONVERTED_FROM = b"nemo_prorl.converted_from"
"""The entry of the Parquet metadata that holds what a user wrote for the file that this one was converted from."""
GROUP_ROWS, GROUP_BYTES = 128, 1 << 20
"""Limits of a row group: to read one row, its whole group is decoded."""
GROUPS_KEPT = 4
"""Decoded row groups that a file keeps. Files from other writers, with a few big groups, are thus wholly in memory."""


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
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The file's further columns, which reward functions get by name."""

    @property
    def columns(self) -> dict[str, Any]:
        """Returns everything in the row by the name of its column."""
        columns = {name: getattr(self, name) for name in SCHEMA.names}
        return {**columns, "messages": [dict(message) for message in self.messages], **self.extra}


def split_answer(messages: Sequence[Mapping[str, str]]) -> tuple[Sequence[Mapping[str, str]], str]:
    """Returns what is asked, and the beginning of the answer: the last turn if it is the assistant's, else empty."""
    if messages and messages[-1]["role"] == "assistant":
        return messages[:-1], messages[-1]["content"]
    return messages, ""


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Returns the documented columns of these rows, and after them the further ones."""
    listed = [
        {**row.columns, "task": json.dumps(row.task, ensure_ascii=False, allow_nan=False)} for row in rows
    ]
    table = pa.Table.from_pylist(listed, schema=SCHEMA)
    for column in dict.fromkeys(key for row in rows for key in row.extra):
        table = table.append_column(_storable(column), _column([row.extra.get(column) for row in rows]))
    return table


def _column(values: Sequence[Any]) -> pa.Array:
    """Returns a column: values of one type stay as they are, others become text, as JSON knows no types of columns."""
    with suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
        if not _is_empty((array := pa.array(values)).type):
            return array
    texts = [one if isinstance(one, str | None) else json.dumps(one, default=str) for one in values]
    return pa.array([text and _storable(text) for text in texts], type=pa.string())


def _storable(text: str) -> str:
    """Returns a text with `?` for halves of characters, which UTF-8 cannot hold."""
    return text.encode(errors="replace").decode()


def _is_empty(kind: pa.DataType) -> bool:
    """Returns whether a type contains an object without fields, which Parquet cannot store, or only null, about which
    readers disagree."""
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_is_empty(field.type) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_empty(kind.value_type)
    return bool(pa.types.is_null(kind))


def write_table(path: Path, table: pa.Table) -> None:
    """Writes a temporary file to disk, then renames it: a reader sees all rows or none, also after a power cut."""
    mean_bytes = table.nbytes / max(1, table.num_rows)
    group_rows = int(min(GROUP_ROWS, max(1, GROUP_BYTES / max(1.0, mean_bytes))))
    with replacing_file(path) as aside:
        pq.write_table(table, aside, row_group_size=group_rows, compression="zstd")
        sync(aside)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """`write_table` of rows."""
    write_table(path, table_of(rows))


def domains_of(files: Iterable[str]) -> set[str]:
    """Returns every domain that prompt files name; reads one column. Raises ConfigError for a file of another form."""
    return _values(files, "domain")


MAX_SOURCES = 32
"""Most sources of which a run records metrics."""


def names_of_sources(*parts: Sequence[str]) -> dict[str, str]:
    """Returns source -> its name in metrics: of more than MAX_SOURCES sources the part before the first slash, which is
    a data set's. parts: lists of files. Each is named by itself, and a source of several as in the first; not if
    sources tell no more than domains, or are too many all the same."""
    found: dict[str, str] = {}
    for files in parts:
        sources, num_domains = _values(files, "source"), len(domains_of(files))
        whole = {source: source.replace("/", ".") for source in sources}
        for names in (whole, {source: source.partition("/")[0] for source in sources}):
            if num_domains < len(set(names.values())) <= MAX_SOURCES:
                found = names | found
    return found


def _values(files: Iterable[str], name: str) -> set[str]:
    found: set[str] = set()
    for file in files:
        try:
            column = pq.read_table(file, columns=[name])[name]
        except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
            reason = one_line(error)
            raise ConfigError(f"data file {file} cannot be read ({reason}): see docs/data.md.") from error
        found |= {value for value in pc.unique(column).to_pylist() if value is not None}
    return found


@dataclass(frozen=True, slots=True)
class FileContent:
    """Identifies what is in a data file."""

    sha256: str
    num_bytes: int


def read_content(path: Path) -> FileContent:
    """Reads the whole file. Raises ConfigError where that is not possible."""
    try:
        with path.open("rb") as file:
            return FileContent(
                hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
            )
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise ConfigError(f"data file {path} cannot be read ({error}): see docs/data.md.") from error


def _missing(path: Path) -> ConfigError:
    return ConfigError(f"data file {path} does not exist: write an existing prompt file (docs/data.md).")


class RowFile:
    """Random access to a prompt file that may be larger than memory: only recently used row groups are held."""

    def __init__(self, path: Path, *, with_extra: bool = False) -> None:
        """with_extra: rows also carry the file's further columns.

        Raises ConfigError if the file is missing, empty or not of the documented row type."""
        self.path = path
        self.name = str(path)
        """As the user wrote it: for a converted file, what it was converted from."""
        self._columns = None if with_extra else SCHEMA.names
        if not path.is_file():
            raise _missing(path)
        try:
            self._file = pq.ParquetFile(path, memory_map=True)
            metadata = self._file.schema_arrow.metadata or {}
            self.name = metadata.get(CONVERTED_FROM, str(path).encode()).decode()
            self._check_columns()
            self.uids = self._file.read(["uid"])["uid"]
        except (pa.ArrowException, OSError) as error:
            reason = one_line(error)
            raise ConfigError(f"data file {path} is not Parquet ({reason}): see docs/data.md.") from error
        sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        self._starts = list(itertools.accumulate(sizes, initial=0))
        self._group = functools.lru_cache(GROUPS_KEPT)(
            lambda number: self._file.read_row_group(number, columns=self._columns)
        )

    def _check_columns(self) -> None:
        schema, metadata = self._file.schema_arrow, self._file.metadata
        missing = [name for name in SCHEMA.names if name not in schema.names]
        if missing:
            raise ConfigError(
                f"data file {self.name} lacks the column(s) {', '.join(missing)}: see docs/data.md."
            )
        if metadata.num_rows == 0:
            raise ConfigError(f"data file {self.name} has no rows.")
        for field in SCHEMA:
            if (found := schema.field(field.name).type) != field.type:
                raise ConfigError(
                    f"data file {self.name} has {field.name} as {found}, not as {field.type}: see docs/data.md."
                )
        nulls = dict.fromkeys(SCHEMA.names, 0)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                if column.path_in_schema in nulls and column.statistics is not None:
                    nulls[column.path_in_schema] += column.statistics.null_count or 0
        for name, count in nulls.items():
            if count:
                raise ConfigError(
                    f"data file {self.name} has {count} row(s) without {name}: fill them in or leave them out."
                )

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Row:
        """Returns a row. Raises IndexError, and ConfigError for a row that lacks something."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        group = bisect.bisect_right(self._starts, index) - 1
        try:
            raw = self._group(group).slice(index - self._starts[group], 1).to_pylist()[0]
        except UnicodeDecodeError:
            raise ConfigError(
                f"data file {self.name}, row {index} has text that is not UTF-8: write the file anew."
            ) from None
        columns = {name: raw.pop(name) for name in SCHEMA.names}
        for name, value in columns.items():
            if value is None:
                raise ConfigError(
                    f"data file {self.name}, row {index} has no {name}: fill it in or leave it out."
                )
        where = f"data file {self.name}, row {index} ({columns['uid']})"
        messages = columns["messages"]
        is_whole = all(m and m["role"] is not None and m["content"] is not None for m in messages)
        if not (is_whole and any(m["content"] for m in split_answer(messages)[0])):
            raise ConfigError(f"{where} has no messages with role and content: correct it, or leave it out.")
        try:
            task = json.loads(columns["task"], parse_constant=_no_number)
        except (ValueError, RecursionError):
            task = None
        if not isinstance(task, dict):
            raise ConfigError(f"{where}: the task is not a JSON object, see docs/data.md.")
        return Row(**{**columns, "messages": tuple(messages), "task": task}, extra=raw)

    def sample(self, max_rows: int) -> list[tuple[int, Row]]:
        """Returns (index, row) for at most so many rows, evenly spaced over the file."""
        return [(place, self[place]) for place in evenly_spaced(len(self), max_rows)]


def evenly_spaced(count: int, most: int) -> list[int]:
    """Returns at most `most` of the indices 0 .. count - 1, evenly spaced from the first to the last: files are in the
    order of their sources, so their first rows may all be of one task."""
    return [int(place) for place in np.linspace(0, count - 1, min(count, most)).round()]


def _no_number(constant: str) -> None:
    """Refuses NaN and Infinity, which Python's reader of JSON takes."""
    raise ValueError(f"{constant} is no JSON")


def check_distinct(files: Sequence[RowFile]) -> None:
    """Raises ConfigError if two rows have the same uid, by which seeds, scores and file positions are stored."""
    counts = pc.value_counts(pa.chunked_array([chunk for file in files for chunk in file.uids.chunks]))
    repeated = [entry["values"] for entry in counts.filter(pc.greater(counts.field("counts"), 1)).to_pylist()]
    if repeated:
        places = [file.name for file in files if pc.any(pc.equal(file.uids, repeated[0])).as_py()]
        raise ConfigError(
            f"{len(repeated)} uid(s) stand in more than one row, such as {repeated[0]!r} in {' and '.join(places)}: "
            "give every problem a uid of its own."
        )
