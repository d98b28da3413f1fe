"""Checks the folders to which a run writes: permission, speed and free space."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.doctor.finding import Finding, failure, ok, warning
from nemo_prorl.run_folder.storage import nearest_existing

PROBE_BYTES = 32 << 20
NETWORK_FILE_SYSTEMS = {
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "wekafs", "fuse.sshfs",
}  # fmt: skip
MIN_CACHE_BYTES = 5 << 30
"""Space for what vLLM, Triton and Inductor compile for a few models."""
SLOW_CHECKPOINT_S = 1800.0
"""Longest time to write a checkpoint without a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """The results of writing to a folder."""

    path: str
    refusal: str = ""
    """Why a file could not be written, synced to disk and renamed; empty if it could."""
    has_locks: bool = True
    """Whether files can be locked."""
    bytes_per_s: float = 0.0
    free_bytes: float = 0.0
    file_system: str = ""


def probe_folder(folder: Path, probe_bytes: int = PROBE_BYTES) -> FolderFacts:
    """Measures writing to the folder, or to the nearest one that exists if it does not, so that none is created.
    Removes its files."""
    nearest = nearest_existing(folder)
    probe = nearest / f".doctor-{os.uname().nodename}-{os.getpid()}"
    renamed = probe.with_suffix(".renamed")
    try:
        began = time.monotonic()
        with probe.open("wb") as file:
            file.write(os.urandom(1 << 20) * (probe_bytes >> 20))
            file.flush()
            os.fsync(file.fileno())
            seconds = time.monotonic() - began
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_locks = True
            except OSError:
                has_locks = False
        os.replace(probe, renamed)
        return FolderFacts(
            path=str(folder),
            has_locks=has_locks,
            bytes_per_s=probe_bytes / max(seconds, 1e-6),
            free_bytes=shutil.disk_usage(nearest).free,
            file_system=file_system_of(nearest, Path("/proc/self/mounts").read_text(encoding="utf-8")),
        )
    except OSError as error:
        return FolderFacts(path=str(folder), refusal=f"{error.strerror or error}")
    finally:
        for file_left in (probe, renamed):
            with suppress(OSError):  # the parent may not be a folder
                file_left.unlink(missing_ok=True)


def file_system_of(folder: Path, mounts: str) -> str:
    """Returns the type of the file system of a folder, such as "nfs4". mounts: the text of /proc/self/mounts."""
    resolved, best, kind = folder.resolve(), Path("/"), ""
    for line in mounts.splitlines():
        _, place, type_, *_ = line.split(" ")
        mount = Path(place.replace("\\040", " "))
        if resolved.is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, kind = mount, type_
    return kind


def cache_folders(environment: Mapping[str, str]) -> list[Path]:
    """Returns the folders of compiled code of vLLM, Triton and Inductor, from their variables and defaults."""
    home = Path(environment.get("HOME") or Path.home())
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    folders = [
        Path(environment.get("VLLM_CACHE_ROOT") or cache / "vllm"),
        Path(environment.get("TRITON_CACHE_DIR") or home / ".triton" / "cache"),
    ]
    if inductor := environment.get("TORCHINDUCTOR_CACHE_DIR"):
        folders.append(Path(inductor))
    return folders


def judge_caches(facts: Sequence[FolderFacts]) -> Finding:
    """Returns one finding for all caches: that of the worst one."""
    where = "write CACHE_DIR=FOLDER on the node's own disk in slurm/site.env"
    for folder in facts:
        if folder.refusal:
            return failure("caches", f"{folder.path} cannot be written: {folder.refusal}", where)
    for folder in facts:
        if folder.file_system in NETWORK_FILE_SYSTEMS:
            found = f"{folder.path} is on {folder.file_system}, which all nodes share"
            return warning("caches", found, where)
        if folder.free_bytes < MIN_CACHE_BYTES:
            return warning("caches", f"{folder.path} has {folder.free_bytes / 1e9:.1f} GB free", where)
    return ok("caches", ", ".join(sorted({folder.path for folder in facts})))


def judge_run_folder(facts: FolderFacts, *, checkpoint_bytes: float, num_kept: int) -> Finding:
    """Judges the run's folder.

    checkpoint_bytes: size of a checkpoint; 0 if it is unknown or none is written. num_kept: number of checkpoints on
    disk at a time, including the one that is being written.
    """
    name = "run folder"
    if facts.refusal:
        advice = "write another exp_manager.explicit_log_dir, on a file system that every node may write to"
        return failure(name, f"{facts.path} cannot be written: {facts.refusal}", advice)
    found = f"{facts.path}: {facts.free_bytes / 1e9:,.0f} GB free, {facts.bytes_per_s / 1e6:,.0f} MB/s from one process"
    needed = num_kept * checkpoint_bytes
    if checkpoint_bytes:
        found += f"; a checkpoint has {checkpoint_bytes / 1e9:,.2f} GB, and up to {num_kept} are kept"
    if facts.free_bytes < needed:
        missing = (needed - facts.free_bytes) / 1e9
        advice = f"free another {missing:,.0f} GB, or keep fewer checkpoints (save_last_k, save_top_k)"
        return failure(name, found, advice)
    if not facts.has_locks:
        advice = "mount it with flock; until then a second job in the same folder is not detected"
        return warning(name, f"{found}; no file locks", advice)
    if checkpoint_bytes / facts.bytes_per_s > SLOW_CHECKPOINT_S:
        advice = "use a faster file system: one process would write a checkpoint for over 30 min"
        return warning(name, found, advice)
    return ok(name, found)
