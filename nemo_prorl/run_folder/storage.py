"""Files that are complete or absent: written under another name, flushed, renamed, and listed with their hashes.

A manifest lists the other files of its folder and is written last, so a folder without it is incomplete. Listing
checkpoints compares the sizes of files, using one also their contents. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time_ns
from typing import Any, TypeVar

from nemo_prorl.config import ConfigError, one_line
from nemo_prorl.run_folder.terminal import say_once

T = TypeVar("T")

MANIFEST_FILE = "manifest.json"
ASIDE = ".writing-"
"""Prefix of incomplete files and folders. A killed run leaves them behind; the next one deletes them."""
MODEL_FILES = {".json", ".txt", ".model", ".jinja"}
MORE_TEMPLATES = "additional_chat_templates"
"""Folder of a Hugging Face model with chat templates for other uses than conversation, such as tools."""
OWN_FILES = {MANIFEST_FILE, "policy.json", "metadata.json", "state.json"}
"""Our files and Megatron's, which lie beside the model's in an imported checkpoint."""

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError)
"""What readers of JSON and Parquet raise for a damaged file, or one of another kind."""
ENGINES_FILE = "engines.json"
"""File in a run's folder with the engines' settings in the newest process that trained there (`engines.device`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A file's size in bytes and the BLAKE2b-128 hash of its content in hexadecimal digits."""

    size: int
    digest: str


def fingerprint(file: Path) -> Fingerprint:
    """Reads and hashes a file. Hashing releases Python's global lock; a thread reaches about one GB/s."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        return Fingerprint(size=stream.tell(), digest=digest)


def fingerprints(folder: Path, files: Iterable[Path]) -> dict[str, Fingerprint]:
    """Returns path relative to the folder -> fingerprint; reads several files at a time."""
    listed = list(files)
    names = [file.relative_to(folder).as_posix() for file in listed]
    with ThreadPoolExecutor(8) as threads:
        return dict(zip(names, threads.map(fingerprint, listed), strict=True))


def write_manifest(folder: Path, known: Mapping[str, Fingerprint], *, without: Path | None = None) -> None:
    """Replaces the manifest of a folder, reading the files that `known` lacks. All files are flushed to disk on return.
    without: a folder whose files are not listed."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    files = {path.relative_to(folder).as_posix(): path for path in paths if without not in path.parents}
    missing = [path for name, path in files.items() if name not in known]
    for path in missing:
        sync(path)
    listed = {**known, **fingerprints(folder, missing)}
    record = {"files": {name: asdict(listed[name]) for name in sorted(files)}}
    with replacing_file(folder / MANIFEST_FILE) as aside:
        write_text(aside, json.dumps(record, indent=1))
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync(path)


def read_manifest(folder: Path) -> dict[str, Fingerprint]:
    """Returns the folder's manifest. Raises OSError or ValueError if none can be read."""
    try:
        record: dict[str, Any] = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        return {name: Fingerprint(**entry) for name, entry in record["files"].items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a manifest ({error})") from error


def missing_or_torn(folder: Path) -> str:
    """Returns what is wrong with the names and sizes of the folder's files; empty if nothing. Reads only the
    manifest."""
    if not (folder / MANIFEST_FILE).is_file():
        return f"it has no {MANIFEST_FILE}"
    try:
        listed = read_manifest(folder)
    except (OSError, ValueError) as error:
        return f"{MANIFEST_FILE} cannot be read: {error}"
    for name, wanted in listed.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != wanted.size:
            return f"{name} has {size} bytes instead of {wanted.size}"
    return ""


def changed_content(folder: Path, *, share: int = 0, num_shares: int = 1) -> str:
    """Returns what is wrong with the contents of the folder's files; empty if nothing. Reads every `num_shares`-th
    file, so that `num_shares` ranks together read all of them."""
    listed = read_manifest(folder)
    mine = sorted(listed, key=lambda name: (listed[name].size, name))[share::num_shares]
    try:
        found = fingerprints(folder, [folder / name for name in mine])
    except OSError as error:
        return f"a file cannot be read: {error}"
    changed = [name for name in mine if found[name] != listed[name]]
    return f"{changed[0]} is not what was written" if changed else ""


@contextmanager
def replacing_folder(final: Path) -> Iterator[Path]:
    """Yields a folder to write into, which replaces `final` at the end. A crash leaves the old folder or none, never an
    incomplete one. Whoever may read the folder may read its files: some libraries make files for their owner only."""
    aside = final.parent / f"{ASIDE}{final.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        for path in aside.rglob("*"):
            if path.is_file():
                path.chmod(aside.stat().st_mode & 0o666)
            sync(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
        sync(final.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_writable(key: str, folder: Path) -> None:
    """Raises ConfigError unless files can be created in the folder, which need not exist yet: before a long computation
    whose result would be lost. `key` is what the user wrote."""
    nearest, reason = nearest_existing(folder), ""
    if not nearest.is_dir():
        reason = f"{nearest} is a file, not a folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        reason = f"{nearest} is not writable"
    else:
        try:  # some file systems, such as /proc, claim to be writable and are not
            Path(tempfile.mkdtemp(prefix=ASIDE, dir=nearest)).rmdir()
        except OSError as error:
            reason = f"no folder can be made in {nearest} ({error.strerror})"
    if reason:
        raise ConfigError(f"{key} cannot be written, because {reason}: write a folder that you may write to.")


def check_writable_file(key: str, file: Path) -> None:
    """Raises ConfigError unless the file can be created or replaced. `key` is what the user wrote."""
    if file.is_dir():
        raise ConfigError(f"{key} is a folder: write the name of a file.")
    check_writable(key, file.absolute().parent)


def nearest_existing(path: Path) -> Path:
    """Returns the path itself, or the nearest of its parents that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def write_text(file: Path, text: str) -> None:
    """Writes a text and flushes it to disk."""
    file.write_text(text, encoding="utf-8")
    sync(file)


@contextmanager
def replacing_file(file: Path) -> Iterator[Path]:
    """Yields a file to write into, which replaces `file` at the end in one rename: a reader sees the old or the new
    content, never a part. Creates the folder; does not flush to disk. Several hosts may replace the same file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        yield aside
        os.replace(aside, file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def replace_text(file: Path, text: str) -> None:
    """Replaces a file by a text, as `replacing_file` does."""
    with replacing_file(file) as aside:
        aside.write_text(text, encoding="utf-8")


def keep_unread(file: Path) -> None:
    """Renames a file that its writer could not read and would replace, and says so; does nothing if there is none."""
    if file.exists():
        aside = file.with_name(f"unread-{time_ns()}-{file.name}")
        os.replace(file, aside)
        say_once(f"{file} cannot be read and begins anew; it is now called {aside.name}")


def read_json(file: Path) -> dict[str, Any]:
    """Returns a file's JSON object; empty if the file is not there, is being replaced, or is something else."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def read_yaml(file: Path) -> dict[str, Any]:
    """Returns a file's YAML mapping, as `read_json` does; needs PyYAML."""
    import yaml

    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return data if isinstance(data, dict) else {}


def read_or_skip(file: Path, read: Callable[[Path], T]) -> T | None:
    """Returns what `read` makes of a file; None if it cannot be read, which is said once on standard error."""
    try:
        return read(file)
    except UNREADABLE as error:
        say_once(f"skipped {file}, which cannot be read: {one_line(error)}")
        return None


def read_or_refuse(file: Path, read: Callable[[Path], T], instead: str) -> T:
    """Returns what `read` makes of a file. Raises ConfigError if it cannot be read. instead: what to do about it."""
    try:
        return read(file)
    except UNREADABLE as error:
        raise ConfigError(
            f"{file} cannot be read ({one_line(error)}): bring back a copy of it, or {instead}."
        ) from error


def sync(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def copy_model_files(source: Path, target: Path) -> None:
    """Copies config, generation config, tokenizer and chat templates of a Hugging Face folder, but no weights."""
    target.mkdir(parents=True, exist_ok=True)
    for file in [*source.iterdir(), *(source / MORE_TEMPLATES).glob("*.jinja")]:
        is_weights = "safetensors" in file.name
        if file.suffix in MODEL_FILES and not is_weights and file.name not in OWN_FILES:
            copy = target / file.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)


@dataclass(frozen=True, slots=True)
class StepFiles:
    """A folder with one file per step. A run that resumes deletes the files of later steps and writes them again, so
    that an interrupted run leaves the same files as another.

    Example: StepFiles(run_dir / "samples", ".jsonl").path(40) is samples/step-00000040.jsonl."""

    folder: Path
    suffix: str

    def path(self, step: int, stage: str = "") -> Path:
        """Returns the path of a step's file, whether it exists or not. stage: distinguishes the files of
        two stages, which both validate the step between them."""
        return self.folder / f"step-{step:08d}{f'-{stage}' if stage else ''}{self.suffix}"

    def all(self) -> list[tuple[int, Path]]:
        """Returns (step, file) in the order of the steps; empty if there is no folder."""
        files = sorted(self.folder.glob(f"step-*{self.suffix}"))
        return [(int(path.name.removesuffix(self.suffix).split("-")[1]), path) for path in files]

    def take_back(self, step: int) -> None:
        """Deletes the files of all steps after `step`, and those that a killed run has not completed."""
        for of_step, path in self.all():
            if of_step > step:
                path.unlink()
        for path in self.folder.glob(f".step-*{self.suffix}.*"):  # as `replacing_file` calls them
            path.unlink()


STEP_FOLDERS = {
    "samples": ".jsonl", "difficulty": ".parquet", "validations": ".parquet", "rollouts": ".parquet",
    "rollouts/trained": ".parquet",
}  # fmt: skip
"""Folder of a run with a file per step or validation -> the suffix of its files."""


def step_files(run_dir: Path, folder: str) -> StepFiles:
    """Returns the files of one of STEP_FOLDERS."""
    return StepFiles(run_dir / folder, STEP_FOLDERS[folder])
