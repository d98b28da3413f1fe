"""Runs a command of ours in processes of this machine, with torchrun if there are several ranks."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

PR_SET_PDEATHSIG = 1
"""Linux's name for the signal that a process gets when its parent ends."""


def module_arguments(arguments: Sequence[str], num_ranks: int) -> list[str]:
    """Returns the arguments of `python -m` that run a module, `arguments[0]`, in so many ranks."""
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", "-m"]
    return [*(torchrun if num_ranks > 1 else []), *arguments]


def start_ranks(arguments: Sequence[str], *, num_ranks: int = 1, **options: Any) -> subprocess.Popen[str]:
    """Starts `python -m ARGUMENTS`, which ends with this process. options: of subprocess.Popen."""
    # If this process is killed, its children must not keep a run's folder locked; torchrun ends its ranks only upon a
    # signal that it can catch.
    last = signal.SIGKILL if num_ranks == 1 else signal.SIGTERM
    return subprocess.Popen(
        [sys.executable, "-m", *module_arguments(arguments, num_ranks)],
        # Our command line sets OMP_NUM_THREADS too, but torchrun would warn before.
        env={"OMP_NUM_THREADS": "1", **os.environ} if num_ranks > 1 else None,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, last),
        text=True,
        **options,
    )


def run_ranks(arguments: Sequence[str], *, num_ranks: int = 1, stdout: int | None = None) -> int:
    """Runs `python -m ARGUMENTS` and returns its exit code, negative if a signal ended it. However this process
    is stopped, the command ends first: a training saves and pauses."""
    process = start_ranks(arguments, num_ranks=num_ranks, stdout=stdout)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
