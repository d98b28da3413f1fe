"""Runs a program on its inputs in a cell, and collects its outputs as bytes. Trusted code: it never evaluates them."""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from reward.sandbox import clock
from reward.sandbox.cell import Level
from reward.sandbox.clock import SleepMeter
from reward.sandbox.launch import Zygote, ZygoteError
from reward.sandbox.limits import CPU_S, MAX_CPU_S, OUTPUT_BYTES, OutputLimits, ProgramLimits

SLEEP_S = 5.0
"""A program that has slept this long is stopped, with the same result as if it had computed too long."""
WALL_S = 60.0
"""Wall-time backstop for CPU_S. A program that reaches it with CPU time left and without having slept was starved; that
is the machine's fault, and the response is not graded."""
UNMEASURED_WALL_S = 17.0
"""The backstop on kernels that cannot tell sleep from starvation."""
DEFAULT_LIMITS = ProgramLimits()
MAX_WALL_S = WALL_S + 2 * (MAX_CPU_S - CPU_S)
"""Both backstops grow by two seconds for each second of CPU time above CPU_S that a task asks for."""
MEMORY = 512 << 20
_SAMPLE_S = 0.25
_RECYCLE_AFTER = 1_000
_HEADER = struct.Struct("!I")


@dataclass(slots=True)
class Execution:
    """The outputs of one run in a cell."""

    compiled: str | None = None
    """Empty if the program compiled, or else the error's name; None if the cell never reported compilation."""
    ends: list[str] = field(default_factory=list)
    outputs: list[bytes] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    slept_s: float | None = None
    cut: str = ""
    """Why the judge stopped it: compiling, asleep, wall, or flood; empty if it ended by itself."""

    def is_whole(self, num_inputs: int) -> bool:
        """Whether the runner reported everything."""
        return bool(
            self.compiled or self.cut or len(self.ends) == num_inputs or self.ends[-1:] == ["timeout"]
        )


class Sandbox:
    """A fork server for programs, and a method to run one in it. Blocking, one at a time."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._zygote: Zygote | None = None
        self._runs = 0

    def run(
        self,
        source: str,
        inputs: Sequence[str],
        *,
        fn_name: str | None = None,
        output_limits: OutputLimits | None = None,
        limits: ProgramLimits = DEFAULT_LIMITS,
    ) -> Execution:
        """Runs a program once for each input, given as standard input or, with `fn_name`, as lines of JSON with one
        argument each. Raises ZygoteError if the sandbox failed; the run can be repeated."""
        if self._zygote is None or self._runs >= _RECYCLE_AFTER:
            self.close()
            self._zygote, self._runs = Zygote("code", self._level), 0
        self._runs += 1
        more_s = 2 * max(0.0, limits.cpu_s - CPU_S)
        allowed = output_limits or OutputLimits(each=(OUTPUT_BYTES,) * len(inputs))
        request = {
            "source": source,
            "inputs": inputs,
            "output_limits": allowed.each,
            "fn_name": fn_name,
            "budget": {**asdict(limits), "wall_s": 2 * (WALL_S + more_s), "memory": MEMORY},
        }
        request_fd = os.memfd_create("request")
        read_fd, write_fd = os.pipe()
        try:
            with open(request_fd, "wb", closefd=False) as stream:
                stream.write(json.dumps(request).encode())
            os.lseek(request_fd, 0, os.SEEK_SET)
            pid = self._zygote.spawn([request_fd, write_fd])
            os.close(write_fd)
            write_fd = -1
            execution = _collect(read_fd, pid, allowed, limits.cpu_s, more_s)
            ended_by = self._zygote.end(pid)
            if ended_by == signal.SIGKILL and not execution.is_whole(len(inputs)):
                raise ZygoteError("something on this machine killed the process that runs a program")
            if execution.cut == "wall" and execution.slept_s is not None:
                raise ZygoteError(f"the machine is too loaded to run a program within {WALL_S + more_s:g} s")
            return execution
        except ZygoteError:
            self.close()
            raise
        finally:
            for fd in (request_fd, read_fd, *([write_fd] if write_fd >= 0 else [])):
                os.close(fd)

    def close(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


def _collect(fd: int, runner: int, allowed: OutputLimits, cpu_s: float, more_s: float) -> Execution:
    """Reads frames until the cell closes its pipe, sends malformed or too much data, compiles for more than `cpu_s`,
    sleeps for more than SLEEP_S, or runs out of wall time. `more_s`: seconds added to both backstops. The runner
    limits the CPU time of what is compiled."""
    started, meter, wall_s = time.monotonic(), SleepMeter(runner), WALL_S + more_s
    execution, received, total, next_sample_s = Execution(), bytearray(), 0, _SAMPLE_S
    output_limit = max(allowed.each)
    while not execution.cut:
        readable = select.select([fd], [], [], max(0.0, next_sample_s - execution.wall_s))[0]
        execution.wall_s = time.monotonic() - started
        if execution.wall_s >= next_sample_s:  # also while output arrives: many tests may sleep a little each
            next_sample_s = execution.wall_s + _SAMPLE_S
            execution.slept_s = meter.sample()
            if execution.compiled is None and (clock.cpu_s(runner) or 0.0) > cpu_s:
                execution.cut = "compiling"
            elif execution.slept_s is None:
                wall_s = min(wall_s, UNMEASURED_WALL_S + more_s)
            elif execution.slept_s > SLEEP_S:
                execution.cut = "asleep"
            if not execution.cut and execution.wall_s > wall_s:
                execution.cut = "wall"
        if not readable or execution.cut:
            continue
        chunk = os.read(fd, 1 << 18)
        if not chunk:
            break
        received += chunk
        total += len(chunk)
        if total > allowed.in_all or not _parse(received, execution, output_limit):
            execution.cut = "flood"
    return execution


def _parse(received: bytearray, execution: Execution, output_limit: int) -> bool:
    """Moves complete frames from `received` to `execution`. Returns False if a runner would not send such frames."""
    while len(received) >= _HEADER.size:
        header_size = _HEADER.unpack_from(received)[0]
        if header_size > 4096:
            return False
        if len(received) < 2 * _HEADER.size + header_size:
            return True
        output_size = _HEADER.unpack_from(received, _HEADER.size + header_size)[0]
        end = 2 * _HEADER.size + header_size + output_size
        if output_size > output_limit:
            return False
        if len(received) < end:
            return True
        try:
            header = json.loads(bytes(received[_HEADER.size : _HEADER.size + header_size]))
            if "compiled" in header:
                execution.compiled = header["compiled"] or ""
            elif header["test"] != len(execution.ends):
                return False
            else:
                execution.ends.append(str(header["end"]))
                with memoryview(received) as view:
                    execution.outputs.append(bytes(view[end - output_size : end]))
                execution.cpu_s += float(header["cpu_s"])
        except (ValueError, KeyError, TypeError):
            return False
        del received[:end]
    return True
