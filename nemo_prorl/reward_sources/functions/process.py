"""The process of one reward function, seen from the trainer: a process pool of one, which is made anew when a call
takes too long or ends the process."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from nemo_prorl.config import FUNCTION_END_S, RewardConfig, one_line
from nemo_prorl.engines import environment
from nemo_prorl.reward_sources.functions import worker
from nemo_prorl.reward_sources.functions.worker import CallFailed, Description, FunctionUnusable

T = TypeVar("T")

_MAX_LOG_BYTES = 64 << 20

_OF_THE_JOB = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
_OF_THE_JOB_PREFIXES = ("GROUP_RANK", "GROUP_WORLD", "ROLE_", "TORCHELASTIC_", "PMI_", "PMIX_", "OMPI_")
"""Variables, and prefixes of more, by which torchrun, Slurm and MPI tell a process its place in the job."""


class FunctionProcess:
    """Runs a function in at most one process at a time, which `start` or the next call starts anew if it has ended."""

    def __init__(self, text: str, config: RewardConfig, log: Path | None, digest: str = "") -> None:
        """text: FILE.py:NAME. log: the file for the function's output and tracebacks; None: standard error. digest: the
        SHA-256 that the file must have whenever a process is started; empty: any."""
        self.name = config.function_name(text)
        self._file = Path(text.removesuffix(f":{self.name}")).absolute()
        self._start_limit_s, self._call_limit_s = config.ready_timeout_s, config.function_timeout_s
        self._log, self._digest = log, digest
        self._pool: ProcessPoolExecutor | None = None
        self._worker: BaseProcess | None = None
        self._description: Description | None = None

    def start(self) -> Description:
        """Starts the process, if none runs, and returns once it has imported the function. Raises FunctionUnusable."""
        if self._pool is not None and self._description is not None:
            return self._description
        begin = (str(self._log or ""), hidden_variables(os.environ))
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=worker.begin, initargs=begin)
        try:
            limit_s = self._start_limit_s
            self._description = self._run(limit_s, worker.load, self._file, self.name, self._digest, limit_s)
        except CallFailed as error:
            raise FunctionUnusable(f"the process that imports it {error}") from None
        except FunctionUnusable:
            self.end()
            raise
        return self._description

    def call(self, arguments: Mapping[str, Sequence[Any]], count: int) -> list[float | str]:
        """Returns for each of `count` responses its value, or a text that says why it has none. Raises CallFailed, and
        FunctionUnusable if the process has ended and cannot be started again."""
        self.start()
        with suppress(OSError):  # somebody may have removed the log
            if self._log is not None and self._log.stat().st_size > _MAX_LOG_BYTES:
                os.truncate(self._log, 0)  # a function that prints at every call must not fill the disk
        try:
            pickled = pickle.dumps(dict(arguments))
        except Exception as error:  # a column's values can raise anything
            sentence = f"cannot be given the columns of its rows: {type(error).__name__}: {error}"
            raise CallFailed(one_line(sentence)) from None
        return self._run(self._call_limit_s, worker.call, pickled, count, self._call_limit_s)

    def interrupt(self) -> None:
        """Kills the process and all that it has started, so that the call in progress fails; also called from another
        thread."""
        process = self._worker
        if process is not None and process.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()  # if it has no group of its own yet

    def end(self) -> int | None:
        """Interrupts, and waits for the end of the process. Returns its exit code, negative for a signal."""
        self.interrupt()
        pool, process = self._pool, self._worker
        self._pool = self._worker = None
        if pool is not None:
            pool.shutdown()
        return process.exitcode if process is not None else None

    def _run(self, limit_s: float, task: Callable[..., T], *arguments: Any) -> T:
        """Returns what a task in the process returns, and raises what it raises. A task that does not end itself at its
        limit is killed; CallFailed then says so, or how the process ended."""
        assert self._pool is not None
        asked = time.monotonic()
        try:
            future = self._pool.submit(task, *arguments)
            (self._worker,) = self._pool._processes.values()  # kill_workers() is public from Python 3.14 on
            return future.result(limit_s + FUNCTION_END_S)
        except (BrokenProcessPool, TimeoutError):
            is_late = time.monotonic() - asked >= limit_s
            code = self.end()
        if is_late:
            raise CallFailed(f"took longer than {limit_s:g} s")
        if code == -signal.SIGKILL:
            raise CallFailed("was killed, as the kernel does when memory runs out")
        raise CallFailed(
            f"died of signal {-code}" if code and code < 0 else f"ended by itself, with exit code {code}"
        )


def hidden_variables(ours: Iterable[str]) -> list[str]:
    """Returns the names of the trainer's environment variables that make a process a rank of the job, and of our own
    settings for torch and vLLM: a function that loads accelerate or vLLM must not join the job."""
    settings = {**environment.ALWAYS, **environment.CPU_ONLY}
    hidden = {*_OF_THE_JOB, *(name for name in settings if name.startswith(("TORCH", "VLLM")))}
    return [name for name in ours if name in hidden or name.startswith(_OF_THE_JOB_PREFIXES)]
