"""The process of one reward function, seen from the trainer: started, called, and ended when a call takes too long."""

from __future__ import annotations

import json
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
from pathlib import Path
from typing import Any

from nemo_prorl.config import RewardConfig

LENGTH = struct.Struct("!I")
_GRACE_S = 5.0
"""The process ends itself at its time limit; one that does not is killed so much later."""
_MAX_LOG_BYTES = 64 << 20


class FunctionUnusable(RuntimeError):
    """The function cannot be called at all: the end of a sentence that begins with its name."""


class CallFailed(RuntimeError):
    """A call has no result: the end of a sentence that begins with the function's name. `again`: fewer responses might
    fare better."""

    def __init__(self, sentence: str, *, again: bool) -> None:
        super().__init__(sentence)
        self.again = again


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the function's process says of it; see `child.describe`."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool
    hash: str

    def wants(self, name: str) -> bool:
        """Whether an argument of this name can be given to it."""
        return self.takes_any or name in self.names


class FunctionProcess:
    """At most one process at a time: started by `start`, or by the first call after one has ended."""

    def __init__(self, text: str, config: RewardConfig, log: Path | None) -> None:
        """text: FILE.py:NAME. log: where the function's prints and tracebacks go; None: to standard error."""
        self.name = config.function_name(text)
        self.file = Path(text.removesuffix(f":{self.name}"))
        self._python = config.function_python or sys.executable
        self._start_limit_s, self._call_limit_s = config.ready_timeout_s, config.function_timeout_s
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._description: Description | None = None
        self._asked = 0.0
        """time.monotonic when the process was last given something to do."""

    def start(self) -> Description:
        """Returns when the function is imported. Raises FunctionUnusable."""
        if self._process is not None and self._description is not None:
            return self._description
        ours, theirs = socket.socketpair()
        ours.settimeout(self._start_limit_s + _GRACE_S)
        command = [self._python, "-u", str(Path(__file__).with_name("child.py")), str(theirs.fileno())]
        command += [str(self.file), self.name, str(self._start_limit_s)]
        with theirs:
            try:
                self._process = self._launch(command, theirs.fileno())
            except OSError as error:
                ours.close()
                raise FunctionUnusable(
                    f"its interpreter {self._python} cannot be started: {error.strerror}"
                ) from error
        self._channel, self._asked = ours, time.monotonic()
        try:
            said = self._receive()
        except (OSError, EOFError, ValueError):
            raise FunctionUnusable(
                f"the process that imports it {self._ended(self._start_limit_s)}"
            ) from None
        if "error" in said:
            self.end()
            raise FunctionUnusable(said["error"])
        description = Description(
            names=tuple(said["names"]),
            required=tuple(said["required"]),
            takes_any=bool(said["takes_any"]),
            hash=str(said["hash"]),
        )
        if self._description is not None and self._description.hash != description.hash:
            self.end()
            raise FunctionUnusable(
                "the file has changed since the run began, and one run must have one reward: start the run again"
            )
        self._description = description
        return description

    def call(self, arguments: Mapping[str, Sequence[Any]], count: int) -> list[float | str]:
        """For each of `count` responses its value, or a text that says why it has none. Raises CallFailed, and
        FunctionUnusable when the process has ended and cannot be started again."""
        self.start()
        assert self._channel is not None
        self._channel.settimeout(self._call_limit_s + _GRACE_S)
        self._asked = time.monotonic()
        self._bound_log()
        request = {"arguments": dict(arguments), "count": count, "limit_s": self._call_limit_s}
        try:
            body = pickle.dumps(request, protocol=4)
            self._channel.sendall(LENGTH.pack(len(body)) + body)
            answer = self._receive()
        except (OSError, EOFError, ValueError):
            raise CallFailed(self._ended(self._call_limit_s), again=True) from None
        if "values" in answer:
            return list(answer["values"])
        if "raised" in answer:
            raise CallFailed(f"raised {answer['raised']}", again=True)
        raise CallFailed(str(answer["broken"]), again=False)

    def interrupt(self) -> None:
        """From another thread: the call that is under way fails now."""
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kills the process and all that it has started; its exit code, negative for a signal."""
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
        """In a session of its own: a signal to the trainer's group is not for it."""
        dropped = {"LD_PRELOAD", "LD_LIBRARY_PATH"}  # what vLLM and torchrun leave in ours
        environment = {key: value for key, value in os.environ.items() if key not in dropped}
        output: Any = sys.stderr
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            output = self._log.open("ab")
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[fd],
                env=environment,
                start_new_session=True,
            )
        finally:
            if self._log is not None:
                output.close()

    def _bound_log(self) -> None:
        """A function that prints at every call must not fill the disk: its log begins anew when it has grown long."""
        if self._log is not None and self._log.stat().st_size > _MAX_LOG_BYTES:
            os.truncate(self._log, 0)

    def _receive(self) -> dict[str, Any]:
        """Raises OSError, EOFError, or ValueError on what is no message."""
        size = LENGTH.unpack(self._exactly(LENGTH.size))[0]
        message = json.loads(self._exactly(size))
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message

    def _exactly(self, size: int) -> bytes:
        assert self._channel is not None
        data = bytearray()
        while len(data) < size:
            chunk = self._channel.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    def _ended(self, limit_s: float) -> str:
        """Ends the process after a call without an answer; how that came, as the end of a sentence."""
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
