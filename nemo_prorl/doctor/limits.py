"""Checks system limits that a run on many GPUs may exceed: open files, locked memory, processes, shared memory."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass
from math import inf
from pathlib import Path

from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, warning

GIB = 1 << 30
MIN_LOCKED_BYTES = 16 * GIB
"""Locked memory needed for InfiniBand, which accesses only such memory (NVIDIA recommends no limit: "NCCL
User Guide", Troubleshooting)."""
MIN_SHARED_BYTES = 1 * GIB
"""Size needed for /dev/shm, which NCCL uses within a node (the --shm-size=1g of "NCCL User Guide", Troubleshooting)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """The hard limits of this process, to which the trainer raises its soft ones; `inf` means no limit."""

    open_files: float
    locked_bytes: float
    processes: float
    shared_bytes: float
    """Size of /dev/shm."""
    num_cores: int


def read_limits() -> UserLimits:
    """Returns the limits of this process and machine."""
    shared = Path("/dev/shm")
    return UserLimits(
        open_files=_hard(resource.RLIMIT_NOFILE),
        locked_bytes=_hard(resource.RLIMIT_MEMLOCK),
        processes=_hard(resource.RLIMIT_NPROC),
        shared_bytes=shutil.disk_usage(shared).total if shared.is_dir() else 0,
        num_cores=os.cpu_count() or 1,
    )


def judge_limits(limits: UserLimits, *, num_ranks: int, num_gpus: int, has_infiniband: bool) -> list[Finding]:
    """Returns one finding per limit. num_ranks: ranks of the job. num_gpus: the job's GPUs on this node."""
    return [
        _open_files(limits, num_ranks),
        _locked_memory(limits, has_infiniband),
        _processes(limits),
        _shared_memory(limits, num_gpus),
    ]


def _hard(what: int) -> float:
    hard = resource.getrlimit(what)[1]
    return inf if hard == resource.RLIM_INFINITY else hard


def _open_files(limits: UserLimits, num_ranks: int) -> Finding:
    """Requires 4 files per rank and 512 for libraries, data and logs. gloo opens about 2 sockets per rank
    (measured with up to 12 ranks)."""
    needed = 512 + 4 * num_ranks
    found = f"at most {_number(limits.open_files)} per process; {num_ranks} rank(s) need about {needed:,}"
    if limits.open_files < needed:
        return failure("open files", found, "raise the hard limit: ulimit -Hn, nofile in limits.conf")
    return ok("open files", found)


def _locked_memory(limits: UserLimits, has_infiniband: bool) -> Finding:
    if not has_infiniband:
        return not_applicable("locked memory", "needed only for InfiniBand")
    if limits.locked_bytes < MIN_LOCKED_BYTES:
        found = f"at most {limits.locked_bytes / GIB:.2f} GiB, although this node has InfiniBand"
        advice = "allow Slurm's jobs unlimited locked memory (ulimit -l, memlock)"
        return failure("locked memory", found, advice)
    size = "unlimited" if limits.locked_bytes == inf else f"{limits.locked_bytes / GIB:.0f} GiB"
    return ok("locked memory", size)


def _processes(limits: UserLimits) -> Finding:
    """Requires 16 processes per core and 1,024 more. Each pool of the reward service has two to three processes per
    core, and threads count as processes too."""
    needed = 1024 + 16 * limits.num_cores
    found = f"at most {_number(limits.processes)} per user; {limits.num_cores} core(s) may need {needed:,}"
    if limits.processes < needed:
        return warning("processes", found, "raise the hard limit: ulimit -Hu, nproc in limits.conf")
    return ok("processes", found)


def _shared_memory(limits: UserLimits, num_gpus: int) -> Finding:
    found = f"/dev/shm has {limits.shared_bytes / GIB:.1f} GiB"
    if num_gpus < 2:
        return not_applicable("shared memory", f"{found}; needed only with several GPUs on a node")
    if limits.shared_bytes < MIN_SHARED_BYTES:
        return failure("shared memory", found, "give the container at least 1 GiB (docker run --shm-size=1g)")
    return ok("shared memory", found)


def _number(limit: float) -> str:
    return "any number" if limit == inf else f"{limit:,.0f}"
