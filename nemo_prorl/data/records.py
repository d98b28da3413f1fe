"""Reads data files as their publishers ship them: JSON, JSON Lines and CSV, each perhaps gzipped, and Parquet.

These are plain readers instead of the package `datasets`, because Arrow has one type for a column, and the tests of
programs or a column with answers such as 42 and "x + 1" do not.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, one_line
from nemo_prorl.data.building.source import Record

KINDS = (".json", ".jsonl", ".csv", ".parquet", ".json.gz", ".jsonl.gz", ".csv.gz")


def read(path: Path) -> Iterator[Record]:
    """Yields the records of a file, one after the other, without holding all of them in memory (but for a JSON list).

    Raises ConfigError for a file that cannot be read, is of no known kind, or has two columns of one name."""
    kind = kind_of(path)
    readers = {".json": _json, ".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
    if kind not in readers:
        raise ConfigError(f"{path} is of no known kind: write a file that ends in {', '.join(KINDS)}.")
    try:
        for index, values in enumerate(readers[kind](path)):
            if not isinstance(values, dict):
                raise ValueError(f"entry {index} is no object with named fields")
            yield Record(values=values, split="test", origin=f"{path.name}:{index}")
    except (ValueError, OSError, EOFError, OverflowError, RecursionError, csv.Error, zlib.error) as error:
        if isinstance(error, ConfigError):
            raise
        reason = one_line(error)[:200]
        raise ConfigError(
            f"{path} cannot be read as {kind[1:]} ({reason}): repair it or download it again."
        ) from error


def kind_of(path: Path) -> str:
    """Returns the suffix of the name without .gz, which may be one of KINDS."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _open(path: Path) -> io.TextIOBase:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")  # type: ignore[return-value]
    return path.open(encoding="utf-8-sig")


def _json_lines(path: Path) -> Iterator[Any]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield json.loads(line, object_pairs_hook=_object)
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"line {number} is not JSON: {error}") from error


def _json(path: Path) -> Iterator[Any]:
    """Yields the objects of a list, or of the only list in an object, or of JSON Lines with the extension .json, which
    is common (DOLMA's shards, which do not fit into memory)."""
    with _open(path) as file:
        first, more = [*islice(filter(str.strip, file), 2), "", ""][:2]
    try:
        is_lines = bool(more) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        is_lines = False
    if is_lines:
        yield from _json_lines(path)
        return
    with _open(path) as file:
        loaded = json.load(file, object_pairs_hook=_object)
    if isinstance(loaded, dict):
        listed = [value for value in loaded.values() if isinstance(value, list)]
        loaded = listed[0] if len(loaded) == 1 and listed else [loaded]
    yield from loaded


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _check_names(name for name, _ in pairs)
    return dict(pairs)


def _check_names(names: Iterable[str]) -> None:
    """Raises ValueError unless all names differ; columns without a name do not count."""
    for name, count in Counter(filter(None, names)).items():
        if count > 1:
            raise ValueError(f"the name {name} is there twice, and it is not clear which one is meant")


def _csv(path: Path) -> Iterator[Any]:
    csv.field_size_limit(sys.maxsize)
    with _open(path) as file:
        reader = csv.DictReader(file)
        _check_names(reader.fieldnames or ())
        for values in reader:
            if None in values:
                raise ValueError(f"line {reader.line_num} has more fields than the first line names")
            yield values


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        _check_names(file.schema_arrow.names)
        for batch in file.iter_batches(64):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error
