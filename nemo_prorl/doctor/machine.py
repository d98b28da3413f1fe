"""Checks what the machine allows: limits of the system that a run on many GPUs may exceed, and the run's folder."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from nemo_prorl.doctor.report import Finding, failure, not_applicable, ok, warning
from nemo_prorl.run_folder.storage import nearest_existing

GIB = 1 << 30
MIN_LOCKED_GIB = 16
"""InfiniBand accesses only locked memory (NVIDIA recommends no limit: "NCCL User Guide", Troubleshooting)."""
MIN_SHARED_GIB = 1
"""NCCL uses /dev/shm within a node (the --shm-size=1g of "NCCL User Guide", Troubleshooting)."""
PROBE_BYTES = 1 << 20


def read_limits() -> dict[str, float]:
    """Returns the hard limits of this process, to which the trainer raises its soft ones, and the size of /dev/shm in
    GiB, by the names of their findings; `inf` means no limit."""
    shared = Path("/dev/shm")
    return {
        "open files": _hard_limit(resource.RLIMIT_NOFILE),
        "locked memory": _hard_limit(resource.RLIMIT_MEMLOCK) / GIB,
        "processes": _hard_limit(resource.RLIMIT_NPROC),
        "shared memory": shutil.disk_usage(shared).total / GIB if shared.is_dir() else 0.0,
    }


def judge_limits(
    limits: Mapping[str, float], *, num_ranks: int, num_gpus: int, has_infiniband: bool
) -> list[Finding]:
    """Returns one finding per limit. num_ranks: ranks of the job. num_gpus: the job's GPUs on this node."""
    # gloo opens about 2 sockets per rank (measured with up to 12 ranks): 4 files per rank, and 512 for libraries, data
    # and logs. Each pool of the reward service has two to three processes per core, and threads count as processes too.
    needs = {
        "open files": (512 + 4 * num_ranks, failure, "raise the hard limit: ulimit -Hn, nofile in limits.conf"),
        "locked memory": (
            MIN_LOCKED_GIB * has_infiniband, failure, "allow Slurm's jobs unlimited locked memory (ulimit -l, memlock)"
        ),
        "processes": (
            1024 + 16 * (os.cpu_count() or 1), warning, "raise the hard limit: ulimit -Hu, nproc in limits.conf"
        ),
        "shared memory": (
            MIN_SHARED_GIB * (num_gpus > 1), failure, "give the container at least 1 GiB (docker run --shm-size=1g)"
        ),
    }  # fmt: skip
    findings = []
    for name, (needed, bad, advice) in needs.items():
        form = "{:,.3g} GiB" if name.endswith("memory") else "{:,.0f}"
        allowed = "unlimited" if limits[name] == inf else form.format(limits[name])
        found = f"{allowed}, and this run needs {form.format(needed)}"
        judged = ok(name, found) if limits[name] >= needed else bad(name, found, advice)
        findings.append(judged if needed else not_applicable(name, "this run needs none"))
    return findings


def _hard_limit(number: int) -> float:
    limit = resource.getrlimit(number)[1]
    return inf if limit == resource.RLIM_INFINITY else limit


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """The results of writing to a folder."""

    path: str
    refusal: str = ""
    """Why a file could not be written, synced to disk and renamed; empty if it could."""
    has_locks: bool = True
    """Whether files can be locked."""
    free_bytes: float = 0.0


def probe_folder(folder: Path) -> FolderFacts:
    """Tries the folder, or the nearest one that exists if it does not, so that none is created. Removes its files."""
    nearest = nearest_existing(folder)
    probe = nearest / f".doctor-{os.uname().nodename}-{os.getpid()}"
    renamed = probe.with_suffix(".renamed")
    try:
        with probe.open("wb") as file:
            file.write(b"x" * PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
            has_locks = False
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_locks = True
        os.replace(probe, renamed)
        free_bytes = shutil.disk_usage(nearest).free
        return FolderFacts(path=str(folder), has_locks=has_locks, free_bytes=free_bytes)
    except OSError as error:
        return FolderFacts(path=str(folder), refusal=f"{error.strerror or error}")
    finally:
        for file_left in (probe, renamed):
            with suppress(OSError):  # the parent may not be a folder
                file_left.unlink(missing_ok=True)


def judge_run_folder(facts: FolderFacts, *, checkpoint_bytes: float, num_kept: int) -> Finding:
    """Judges the run's folder.

    checkpoint_bytes: size of a checkpoint; 0 if it is unknown or none is written. num_kept: number of checkpoints on
    disk at a time, including the one that is being written.
    """
    name = "run folder"
    if facts.refusal:
        advice = "write another exp_manager.explicit_log_dir, on a file system that every node may write to"
        return failure(name, f"{facts.path} cannot be written: {facts.refusal}", advice)
    found = f"{facts.path}: {facts.free_bytes / 1e9:,.0f} GB free"
    if checkpoint_bytes:
        found += f"; a checkpoint has {checkpoint_bytes / 1e9:,.2f} GB, and up to {num_kept} are kept"
    if (missing := num_kept * checkpoint_bytes - facts.free_bytes) > 0:
        advice = f"free another {missing / 1e9:,.0f} GB, or keep fewer checkpoints (save_last_k, save_top_k)"
        return failure(name, found, advice)
    if not facts.has_locks:
        advice = "mount it with flock; until then a `train` outside of Slurm may meet another one in the same folder"
        return warning(name, f"{found}; no file locks", advice)
    return ok(name, found)
