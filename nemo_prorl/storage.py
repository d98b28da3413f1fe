"""Files that are complete or absent: written under another name, flushed, renamed, and listed with their hashes.

A manifest lists every other file of its folder, and is written last: a folder without it is not whole. Sizes are
compared whenever a folder is looked at, contents when it is about to be used. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

MANIFEST_FILE = "manifest.json"
ASIDE = ".writing-"
"""Prefix of incomplete files and folders. A killed run leaves them behind; the next one deletes them."""
MODEL_FILES = {".json", ".txt", ".model", ".jinja"}
OWN_FILES = {MANIFEST_FILE, "policy.json", "metadata.json", "state.json"}
"""Ours and Megatron's, beside the model's where a checkpoint was imported."""


LOCK_FILE = "lock"
ENGINES_FILE = "engines.json"
"""In a run's folder: what the newest process that trained there computes with (`engines.in_use`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """What the lock file says about the process that holds it."""

    host: str
    job: str
    """Id of its Slurm job; empty outside of Slurm."""
    restarts: int
    """How often Slurm had requeued the job by then."""
    cluster: str = ""
    """Name of the Slurm cluster that the job runs on, because another cluster may have a job of the same number."""
    user: str = ""
    """Whose job it is, because Slurm may hide the jobs of other users."""

    def __str__(self) -> str:
        return f"job {self.job} on {self.host}" if self.job else f"a process on {self.host}"


def this_process() -> LockHolder:
    """As which this process holds locks."""
    return LockHolder(
        host=socket.gethostname(),
        job=os.environ.get("SLURM_JOB_ID", ""),
        restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        cluster=os.environ.get("SLURM_CLUSTER_NAME", ""),
        user=os.environ.get("SLURM_JOB_USER", ""),
    )


def lock_holder(folder: Path) -> LockHolder | None:
    """Returns the holder; None if nobody has locked the folder yet, or only an older version that wrote nothing."""
    try:
        return LockHolder(**json.loads((folder / LOCK_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def sole_user(
    folder: Path, is_gone: Callable[[LockHolder], bool] = lambda holder: False
) -> Iterator[LockHolder | None]:
    """Keeps every other process that asks for it out of the folder, until the block or the process ends, however it
    ends. A file system without locks keeps nobody out.

    A node that has crashed keeps its locks on NFS until it is up again. `is_gone` says whether the holder is certain to
    have ended: its lock is then put aside, as lock.JOB-RESTARTS, and the holder yielded. Raises BlockingIOError when
    another process is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path, gone = folder / LOCK_FILE, None
    with ExitStack() as stack:
        file = stack.enter_context(path.open("a"))
        try:
            if not _locked(file, path):
                holder = lock_holder(folder)
                if holder is None or not is_gone(holder):
                    raise BlockingIOError
                # To ask takes seconds. If the lock came free meanwhile, it is ours now or belongs to somebody else.
                if not _locked(file, path):
                    if lock_holder(folder) != holder or not _put_aside(path, holder):
                        raise BlockingIOError
                    file, gone = stack.enter_context(path.open("a")), holder
                    if not _locked(file, path):
                        raise BlockingIOError
        except BlockingIOError:
            raise
        except OSError:
            pass  # such as Lustre mounted without flock
        file.truncate(0)
        file.write(json.dumps(asdict(this_process())) + "\n")
        file.flush()
        yield gone


def _locked(file: IO[str], path: Path) -> bool:
    """Returns whether this process has locked the file, and the file still has this name."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(file.fileno()).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _put_aside(path: Path, holder: LockHolder) -> bool:
    """Takes its name from a lock file, whoever still locks it. Only one process ever does this to one holder's lock: a
    second one might hit the lock that the first has made in its place."""
    try:
        os.link(path, path.with_name(f"{path.name}.{holder.job}-{holder.restarts}"))
    except FileExistsError:
        return False
    path.unlink()
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A file's size in bytes and the BLAKE2b-128 hash of its content in hexadecimal digits."""

    size: int
    digest: str


def fingerprint(file: Path) -> Fingerprint:
    """Reads the file; hashing runs outside Python's lock, at about a gigabyte a second and thread."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        return Fingerprint(size=stream.tell(), digest=digest)


def fingerprints(folder: Path, files: Iterable[Path]) -> dict[str, Fingerprint]:
    """Returns fingerprints by path relative to the folder; reads several files at a time."""
    listed = list(files)
    with ThreadPoolExecutor(8) as threads:
        return dict(
            zip(
                [file.relative_to(folder).as_posix() for file in listed],
                threads.map(fingerprint, listed),
                strict=True,
            )
        )


def write_manifest(folder: Path, known: Mapping[str, Fingerprint]) -> None:
    """Lists every file of the folder, those that `known` lacks after reading them; all are on disk on return."""
    files = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    missing = [path for name, path in files.items() if name not in known]
    for path in missing:
        sync(path)
    listed = {**known, **fingerprints(folder, missing)}
    record = {"files": {name: asdict(listed[name]) for name in sorted(files)}}
    write_text(folder / MANIFEST_FILE, json.dumps(record, indent=1))
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
    """What is wrong with the folder by the names and sizes of its files; empty if nothing. Reads no file but one."""
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
    """What is wrong with the contents of the folder's files; empty if nothing. Reads each `num_shares`-th file, so that
    as many ranks look at all of them."""
    listed = read_manifest(folder)
    mine = sorted(listed, key=lambda name: (listed[name].size, name))[share::num_shares]
    try:
        found = fingerprints(folder, [folder / name for name in mine])
    except OSError as error:
        return f"a file cannot be read: {error}"
    changed = [name for name in mine if found[name] != listed[name]]
    return f"{changed[0]} is not what was written" if changed else ""


@contextmanager
def written_aside(final: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of `final` at the end. A crash leaves the old one, or none; never
    half of one."""
    aside = final.parent / f"{ASIDE}{final.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        for path in aside.rglob("*"):
            sync(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
        sync(final.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def why_not_writable(folder: Path) -> str:
    """What keeps files from being made in a folder, which need not exist yet; empty if nothing is known of. Without
    looking, a long computation ends where its result is to be written."""
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        return f"{nearest} is a file, not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} is not writable"
    try:  # file systems such as /proc say yes and mean no
        Path(tempfile.mkdtemp(prefix=ASIDE, dir=nearest)).rmdir()
    except OSError as error:
        return f"no folder can be made in {nearest} ({error.strerror})"
    return ""


def write_text(file: Path, text: str) -> None:
    """Writes a text; it is on disk on return."""
    file.write_text(text, encoding="utf-8")
    sync(file)


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """A file to write into, which takes the place of `file` at the end in one rename: a reader sees all of the old or
    all of the new. Makes the folder. Not forced to disk. Several hosts and containers may replace the same file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        yield aside
        os.replace(aside, file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def replace_text(file: Path, text: str) -> None:
    """Replaces a file by a text, as `replaced` does."""
    with replaced(file) as aside:
        aside.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def copy_model_files(source: Path, target: Path) -> None:
    """Config, generation config, tokenizer and chat template of a Hugging Face folder: everything but weights."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        is_weights = "safetensors" in file.name
        if file.suffix in MODEL_FILES and not is_weights and file.name not in OWN_FILES:
            shutil.copy2(file, target / file.name)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE]
