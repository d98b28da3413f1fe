"""Finds the data files that a user names, in a folder or on the Hugging Face hub, and reads their records."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, is_hub_name, one_line
from nemo_prorl.data import records
from nemo_prorl.data.building.source import Record, Source
from nemo_prorl.data.rows import read_content

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
    """Finds the local files, or downloads the hub's files into the hub's own cache: a broken download is continued,
    and a second build needs no network. Raises ConfigError if there are none."""
    if not given and source.generate is not None:
        return Origin(name="generated", revision="")
    if given and _is_local(given):
        found = files(Path(given))
        digest = hashlib.sha256()
        for path in found:
            digest.update(path.name.encode() + bytes.fromhex(read_content(path).sha256))
        name = ", ".join(path.name for path in found)
        return Origin(name=name, revision=digest.hexdigest(), files=tuple(found))
    hub_id = given or source.hub_id
    folder = download(hub_id, source.hub_files, revision)
    return Origin(name=hub_id, revision=folder.name, files=tuple(files(folder)))


def check(source: Source, given: str) -> None:
    """Checks that the first record of each local file has the source's columns. Raises ConfigError."""
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
        return [where]
    found = sorted(path for path in where.rglob("*") if path.is_file() and path.name.endswith(records.KINDS))
    if not found:
        what = f"holds no {', '.join(records.KINDS)}" if where.is_dir() else "does not exist"
        raise ConfigError(f"{where} {what}: write a data file, or a folder of such files.")
    return found


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file. Raises ConfigError when it cannot be read, or holds none."""
    record = None
    for record in records.read(path):
        yield dict(record.values)
    if record is None:
        raise ConfigError(f"{path} holds no record: fetch it again, or take it out.")


def split_of(name: str) -> str:
    """Returns train, or validation if the file's name says so."""
    return "validation" if _HELD_OUT.search(name.lower()) else "train"


def download(hub_id: str, pattern: str = "", revision: str = "") -> Path:
    """The data files of a data set on the hub, or those that `pattern` names, in a folder that is named by their
    commit. Files stay in the hub's own cache. Raises ConfigError when they cannot be had."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    patterns = [pattern] if pattern else [f"*{kind}" for kind in records.KINDS]
    try:
        return Path(
            snapshot_download(hub_id, repo_type="dataset", revision=revision or None, allow_patterns=patterns)
        )
    except GatedRepoError:
        raise ConfigError(
            f"{hub_id} is a gated data set: accept its terms on its page of the Hugging Face hub, then `hf auth login`."
        ) from None
    except RepositoryNotFoundError:
        raise ConfigError(
            f"{hub_id} is neither a local path nor a public data set on the Hugging Face hub: correct the name, or "
            "`hf auth login` if it is private."
        ) from None
    except (HfHubHTTPError, OSError, RuntimeError, ValueError) as error:
        first_sentence = re.split(r"(?<=\w)\. ", one_line(error), maxsplit=1)[0]
        reason = f"{type(error).__name__}: {textwrap.shorten(first_sentence, 200, placeholder=' ...')}"
        raise ConfigError(
            f"{hub_id} is not a local path and could not be read from the Hugging Face hub ({reason}): "
            "without a network, download it elsewhere and write the folder's path."
        ) from error


def _is_local(given: str) -> bool:
    return Path(given).exists() or not is_hub_name(given)
