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
    # gloo opens about 2 sockets per rank (measured with up to 12 ranks): 4 files per rank, and 512 for libraries, data
    # and logs.
    needed = 512 + 4 * num_ranks
    found = f"at most {_number(limits.open_files)} per process; {num_ranks} rank(s) need about {needed:,}"
    open_files = ok("open files", found)
    if limits.open_files < needed:
        open_files = failure("open files", found, "raise the hard limit: ulimit -Hn, nofile in limits.conf")

    size = "unlimited" if limits.locked_bytes == inf else f"{limits.locked_bytes / GIB:.0f} GiB"
    locked_memory = ok("locked memory", size)
    if not has_infiniband:
        locked_memory = not_applicable("locked memory", "needed only for InfiniBand")
    elif limits.locked_bytes < MIN_LOCKED_BYTES:
        found = f"at most {limits.locked_bytes / GIB:.2f} GiB, although this node has InfiniBand"
        advice = "allow Slurm's jobs unlimited locked memory (ulimit -l, memlock)"
        locked_memory = failure("locked memory", found, advice)

    # Each pool of the reward service has two to three processes per core, and threads count as processes too.
    needed = 1024 + 16 * limits.num_cores
    found = f"at most {_number(limits.processes)} per user; {limits.num_cores} core(s) may need {needed:,}"
    processes = ok("processes", found)
    if limits.processes < needed:
        processes = warning("processes", found, "raise the hard limit: ulimit -Hu, nproc in limits.conf")

    found = f"/dev/shm has {limits.shared_bytes / GIB:.1f} GiB"
    shared_memory = ok("shared memory", found)
    if num_gpus < 2:
        shared_memory = not_applicable("shared memory", f"{found}; needed only with several GPUs on a node")
    elif limits.shared_bytes < MIN_SHARED_BYTES:
        advice = "give the container at least 1 GiB (docker run --shm-size=1g)"
        shared_memory = failure("shared memory", found, advice)
    return [open_files, locked_memory, processes, shared_memory]


def _hard(what: int) -> float:
    hard = resource.getrlimit(what)[1]
    return inf if hard == resource.RLIM_INFINITY else hard


def _number(limit: float) -> str:
    return "any number" if limit == inf else f"{limit:,.0f}"
