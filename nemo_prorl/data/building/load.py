"""Reads records from the Hugging Face hub, or from local JSON, JSON Lines and Parquet files, through `datasets`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building.source import Record, Source

BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""File name extension -> the builder of `datasets` that reads it. JSON may be gzipped."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HELD_OUT = re.compile(r"(^|[^a-z])(validation|valid|val|dev|test)([^a-z]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The files that are read, and their revision."""

    name: str
    """Hub id, or the names of the files."""
    revision: str
    """Commit of the data set on the hub; SHA-256 of the files' names and contents."""
    files: tuple[Path, ...] = ()


def locate(source: Source, given: str, revision: str) -> Origin:
    """Finds the local files, or downloads those of the hub into the hub's own cache: a broken download is continued,
    and a second build needs no network. Raises ConfigError if there are none."""
    if not given and source.generate is not None:
        return Origin(name="generated", revision="")
    if given and _is_local(given):
        found = files(Path(given))
        digest = hashlib.sha256()
        for path in found:
            with path.open("rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
        return Origin(
            name=", ".join(path.name for path in found), revision=digest.hexdigest(), files=tuple(found)
        )
    hub_id = given or source.hub_id
    folder = _download(hub_id, source.hub_files, revision)
    return Origin(name=hub_id, revision=folder.name, files=tuple(files(folder)))


def check(source: Source, given: str) -> None:
    """Checks that there is something to read, and that the first record of each local file has the source's columns.
    Raises ConfigError."""
    if not given and not source.hub_id and source.generate is None:
        raise ConfigError(
            f"{source.name} names no data set on the hub: write source=FILE, or a folder of files."
        )
    if given and _is_local(given):
        for path in files(Path(given)):
            source.check_columns(next(rows_of(path)), str(path))


def read(source: Source, origin: Origin) -> Iterator[Record]:
    """Yields every record, file by file. Raises ConfigError naming the file and the missing columns."""
    for path in origin.files:
        for index, values in enumerate(rows_of(path)):
            if index == 0:
                source.check_columns(values, str(path))
            yield Record(values=values, split=split_of(path.name), origin=f"{path.name}:{index}")


def files(where: Path) -> list[Path]:
    """Returns the file, or all data files of the folder, sorted by relative path. Raises ConfigError if there is
    none."""
    if where.is_file():
        _builder(where)
        return [where]
    found = sorted(path for path in where.rglob("*") if path.is_file() and _suffix(path) in BUILDERS)
    if not found:
        what = (
            "holds no .json, .jsonl, .json.gz, .jsonl.gz or .parquet" if where.is_dir() else "does not exist"
        )
        raise ConfigError(f"{where} {what}: write a data file, or a folder of such files.")
    return found


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Streams a file: nothing is cached or copied. Raises ConfigError if it cannot be read, or holds no record."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError
    from datasets.utils import logging

    logging.set_verbosity(logging.CRITICAL)  # our own message replaces what it would log
    found = False
    try:
        for row in load_dataset(_builder(path), data_files=[str(path)], split="train", streaming=True):
            found = True
            yield row
    except (DatasetGenerationError, ValueError, OSError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} cannot be read as {_builder(path)}: {_one_line(error)}") from error
    except StopIteration:
        pass  # the library's error for an empty file
    if not found:
        raise ConfigError(f"{path} holds no record: fetch it again, or take it out.")


def split_of(name: str) -> str:
    """Returns train, or validation if the file's name says so."""
    return "validation" if _HELD_OUT.search(name.lower()) else "train"


def _download(hub_id: str, pattern: str, revision: str) -> Path:
    """Downloads the files and returns their folder, which is named by the commit."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    patterns = [pattern] if pattern else [f"*{suffix}{gz}" for suffix in BUILDERS for gz in ("", ".gz")]
    try:
        return Path(
            snapshot_download(hub_id, repo_type="dataset", revision=revision or None, allow_patterns=patterns)
        )
    except (HfHubHTTPError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{hub_id} is not a local path and could not be read from the Hugging Face hub ({_one_line(error)}): "
            "without a network, download it elsewhere and write source=FOLDER."
        ) from error


def _is_local(given: str) -> bool:
    return Path(given).exists() or not _HUB_ID.fullmatch(given)


def _builder(path: Path) -> str:
    if _suffix(path) not in BUILDERS:
        raise ConfigError(f"{path} is not .json, .jsonl, .json.gz, .jsonl.gz or .parquet: write such a file.")
    return BUILDERS[_suffix(path)]


def _suffix(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
