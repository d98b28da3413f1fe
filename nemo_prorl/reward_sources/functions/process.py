"""The process of one reward function, seen from the trainer: starts it, calls it, and ends it when a call takes too
long. One connection of multiprocessing serves the trainer's interpreter and any other (reward.function_python)."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nemo_prorl.config import FUNCTION_END_S, RewardConfig, one_line
from nemo_prorl.engines import environment

_GRACE_S = FUNCTION_END_S / 2
"""Seconds after its time limit, at which the process should end itself, until the trainer stops waiting for an answer;
after as many again it kills the process."""
_MAX_LOG_BYTES = 64 << 20

_OF_THE_JOB = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "LD_PRELOAD", "LD_LIBRARY_PATH"),
)
"""Variables that tell a process its rank in the job, or make it load libraries that are meant for torch and vLLM."""
_OF_THE_JOB_PREFIXES = ("GROUP_RANK", "GROUP_WORLD", "ROLE_", "TORCHELASTIC_", "PMI_", "PMIX_", "OMPI_")
"""Prefixes of further variables by which torchrun, Slurm and MPI tell a process its place in the job."""


class FunctionUnusable(RuntimeError):
    """The function cannot be called at all; the message is why, for the end of "FUNCTION cannot be used: ..."."""


class CallFailed(RuntimeError):
    """A call has no result; the message ends a sentence whose subject is the function. again: whether a call with fewer
    responses might succeed. is_network: whether a server that the function asks did not answer."""

    def __init__(self, sentence: str, *, again: bool, is_network: bool = False) -> None:
        super().__init__(sentence)
        self.again, self.is_network = again, is_network


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The function's parameters, as reported by its process; see `child.describe`."""

    names: list[str]
    required: list[str]
    takes_any: bool

    def wants(self, name: str) -> bool:
        return self.takes_any or name in self.names


class FunctionProcess:
    """Runs a function in at most one process at a time, which `start` or the next call starts anew if it has ended."""

    def __init__(self, text: str, config: RewardConfig, log: Path | None, digest: str = "") -> None:
        """text: FILE.py:NAME. log: the file for the function's output and tracebacks; None: standard error. digest: the
        SHA-256 that the file must have whenever a process is started; empty: any."""
        self.name = config.function_name(text)
        self.file = Path(text.removesuffix(f":{self.name}"))
        self._python = config.function_python or sys.executable
        self._start_limit_s, self._call_limit_s = config.ready_timeout_s, config.function_timeout_s
        self._log, self._digest = log, digest
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Connection | None = None
        self._description: Description | None = None
        self._asked = 0.0
        """When the process last got something to do, by time.monotonic."""

    def start(self) -> Description:
        """Starts the process, if none runs, and returns once it has imported the function. Raises FunctionUnusable."""
        if self._process is not None and self._description is not None:
            return self._description
        ours, theirs = socket.socketpair()
        # A process that does not read must not hold up the trainer for longer than one that does not answer.
        limit = struct.pack("ll", int(self._call_limit_s + _GRACE_S) + 1, 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._channel = Connection(ours.detach())
        command = [self._python, "-u", str(Path(__file__).with_name("child.py")), str(theirs.fileno())]
        command += [str(self.file), self.name, str(self._start_limit_s), self._digest]
        with theirs:
            self._process = self._launch(command, theirs.fileno())
        self._asked = time.monotonic()
        try:
            said = self._answer(self._start_limit_s)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise FunctionUnusable(
                f"the process that imports it {self._ended(self._start_limit_s)}"
            ) from None
        if "error" in said:
            self.end()
            raise FunctionUnusable(said["error"])
        self._description = description = Description(**said)
        return description

    def call(self, arguments: Mapping[str, Sequence[Any]], count: int) -> list[float | str]:
        """Returns for each of `count` responses its value, or a text that says why it has none. Raises CallFailed, and
        FunctionUnusable if the process has ended and cannot be started again."""
        self.start()
        assert self._channel is not None
        # A function that prints at every call must not fill the disk.
        with suppress(OSError):  # somebody may have removed the log
            if self._log is not None and self._log.stat().st_size > _MAX_LOG_BYTES:
                os.truncate(self._log, 0)
        self._asked = time.monotonic()
        try:
            self._channel.send({"arguments": dict(arguments), "count": count, "limit_s": self._call_limit_s})
            answer = self._answer(self._call_limit_s)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise CallFailed(self._ended(self._call_limit_s), again=True) from None
        except Exception as error:  # pickling a column's values can raise anything, or run out of memory
            sentence = f"cannot be given the columns of its rows: {type(error).__name__}: {error}"
            raise CallFailed(one_line(sentence), again=True) from None
        if "values" in answer:
            return list(answer["values"])
        if "raised" in answer:
            is_network = bool(answer.get("is_network"))
            raise CallFailed(f"raised {answer['raised']}", again=True, is_network=is_network)
        raise CallFailed(str(answer["broken"]), again=False)

    def interrupt(self) -> None:
        """Makes the call in progress fail now; called from another thread."""
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kills the process and all that it has started. Returns its exit code, negative for a signal."""
        code = 0
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            code = self._process.poll() or 0
            self.interrupt()
            self._process.wait()
        self._process = self._channel = None
        return code

    def _launch(self, command: list[str], fd: int) -> subprocess.Popen[bytes]:
        """Starts the process in a session of its own, so that signals to the trainer's group do not reach it. Raises
        FunctionUnusable."""
        output: Any = sys.stderr
        if self._log is not None:
            try:
                self._log.parent.mkdir(parents=True, exist_ok=True)
                output = self._log.open("ab")
            except OSError as error:
                raise FunctionUnusable(f"its log {self._log} cannot be written: {error.strerror}") from error
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[fd],
                env=environment_of_functions(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            raise FunctionUnusable(
                f"its interpreter {self._python} cannot be started: {error.strerror or error}"
            ) from error
        finally:
            if self._log is not None:
                output.close()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        """Returns the next message. Raises TimeoutError, OSError, or EOFError if the process is gone."""
        assert self._channel is not None
        if not self._channel.poll(limit_s + _GRACE_S):
            raise TimeoutError
        return self._channel.recv()

    def _ended(self, limit_s: float) -> str:
        """Ends the process after a call without an answer. Returns the cause, worded as the end of a sentence."""
        assert self._process is not None
        try:
            self._process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            self.end()
            return f"took longer than {limit_s:g} s"
        late = time.monotonic() - self._asked >= limit_s
        code = self.end()
        if late:
            return f"took longer than {limit_s:g} s"
        if code == -signal.SIGKILL:
            return "was killed, as the kernel does when memory runs out"
        return f"died of signal {-code}" if code < 0 else f"ended by itself, with exit code {code}"


def environment_of_functions(ours: Mapping[str, str]) -> dict[str, str]:
    """Returns the trainer's environment variables without those that make a process a rank of the job, and without our
    own settings for torch and vLLM: a function that loads accelerate or vLLM must not join the job."""
    engines = {
        name: value
        for name, value in {**environment.ALWAYS, **environment.CPU_ONLY}.items()
        if name.startswith(("TORCH", "VLLM"))
    }
    return {
        name: value
        for name, value in ours.items()
        if name not in _OF_THE_JOB
        and not name.startswith(_OF_THE_JOB_PREFIXES)
        and engines.get(name) != value
    }
