"""Context managers for vLLM's start: they undo its changes to the process, and keep its shared memory separate from
the memory of other jobs. Written for vLLM 0.32."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed


@contextmanager
def host_process_undisturbed() -> Iterator[None]:
    """Restores on exit what vLLM changes in the process while it starts: it seeds all random generators, disables
    torch.set_num_threads and rewrites environment variables that child processes and launchers read."""
    variables = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LOCAL_WORLD_SIZE")
    before = {name: os.environ.get(name) for name in variables}
    set_num_threads = torch.set_num_threads
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state)
        torch.set_num_threads = set_num_threads
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def shared_memory_of(job: str) -> Iterator[None]:
    """Gives the shared memory through which the ranks of an engine communicate on CPU a name that is unique to `job`,
    and unlinks it on exit, when all ranks have opened it.

    vLLM derives the name from the engine's address, which is the same for every job under an external launcher: two
    jobs on one machine would share the memory, and the file of a killed job would keep all later ones from starting.
    """
    name = _CPUSHMDistributed.make_group_name
    _CPUSHMDistributed.make_group_name = staticmethod(
        lambda communicator: f"nemo_prorl-{job}{name(communicator).lstrip('/')}"
    )
    try:
        yield
    finally:
        _CPUSHMDistributed.make_group_name = staticmethod(name)
        for file in Path("/dev/shm").glob(f"nemo_prorl-{job}*"):
            file.unlink(missing_ok=True)
