"""Inside the cell: runs one submission on its test inputs, one forked process per test.

It knows the inputs but never an expected output, and grades nothing. What it sends through its pipe is data: each
message is four bytes of length, a JSON object, four bytes of length, the program's raw output (`frame`).

    {"compiled": null | "SyntaxError"}            first, and nothing more if it did not compile
    {"test": i, "end": how, "cpu_s": seconds}
        how: exit, error, output_limit, or timeout, which ends the series

Every test sees a file as standard input, whose size contest code asks for, a pipe as standard output, /dev/null as
standard error, no other descriptor, no environment and `sys.argv == ["solution.py"]`. In function form the arguments
come as JSON lines through the same standard input, the result leaves as JSON through descriptor 3, and printed output
is dropped.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import json
import os
import resource
import select
import signal
import struct
import sys
import threading  # here, so that tests need not import it
import time
import types
from _sitebuiltins import Quitter
from dataclasses import dataclass
from time import clock_gettime, monotonic  # the true clocks: the module's are replaced, see _own_clock
from typing import Any

from reward.sandbox import kernel, recursion
from reward.sandbox.cell import CellLimits, PreparedLevel

_LENGTH = struct.Struct("!I")
_PRELUDE_MODULES = """
string re datetime collections heapq bisect copy math random statistics itertools functools operator io
typing sys json time cmath fractions decimal
"""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.016
"""Between looks at a program that has closed its output and goes on."""
_RECURSION = 50_000
"""The limit of LiveCodeBench's judge (PRIME's: 600,000); the interpreter's 1,000 would stop many correct searches."""
_THIRD_PARTY = ("sortedcontainers",)  # as on LeetCode, where fn-form problems come from
_STAR_MODULES = """
typing string re datetime collections heapq bisect copy math random statistics itertools functools operator io json
"""


def preload(packages: str) -> None:
    """Prepares here, once, what every test needs: a forked process that only uses it costs half as much as one that
    creates it. Imports what solutions may use beside the standard library from a directory that is unreachable inside
    the cell: loaded modules need no file."""
    sys.path.insert(0, packages)
    for name in _THIRD_PARTY:
        # without it, the few programs that use it fail
        with contextlib.suppress(ModuleNotFoundError):
            module = __import__(name)
            _BUILTINS.update((exported, getattr(module, exported)) for exported in module.__all__)
    # Keeps the standard library. Drops packages and the folder that this file was imported from; without a virtual
    # environment both are below the same prefix.
    standard = os.path.realpath(sys.base_prefix)
    ours = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    sys.path[:] = [path for path in sys.path if path.startswith(standard) and path not in (packages, ours)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "reward"]:
        del sys.modules[name]  # a submission cannot import anything of ours
    __import__("random").seed(0)  # every test starts from the same state, so no result depends on luck
    sys.argv = ["solution.py"]
    recursion.unite_limits()
    _open_streams()


def _open_streams() -> None:
    """Opens the tests' standard streams over their descriptors, which may be replaced later. A stream checks on
    creation whether it can seek, so it is created over a file and pipes, as a test will have them."""
    own = [os.dup(fd) for fd in range(3)]
    read, write = os.pipe()
    file = os.memfd_create("stdin")
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(write if fd else file, fd)
        stream = open(fd, "w" if fd else "r", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for fd, kept in enumerate(own):
        os.dup2(kept, fd)
    for fd in (read, write, file, *own):
        os.close(fd)


def _open(file: Any, *arguments: Any, **options: Any) -> Any:
    """Opens a file; a cell without /proc lacks those of the standard streams."""
    fd = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}.get(str(file))
    return open(file if fd is None else os.dup(fd), *arguments, **options)


def _prelude() -> dict[str, Any]:
    """Returns the names that solutions of the PRIME and LiveCodeBench data expect (`from math import *`, ...), as their
    judges provide them, except those that would hide a builtin, such as math.pow."""
    names: dict[str, Any] = {}
    for module_name in _STAR_MODULES.split():
        module = __import__(module_name)
        exported = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
        names |= {name: getattr(module, name) for name in exported if not hasattr(builtins, name)}
    return names | {name: __import__(name) for name in _PRELUDE_MODULES.split()}


def _own_clock() -> None:
    """Makes the clocks of the `time` module run as on an idle machine: they count what the program computes and sleeps.

    A program that searches "for 1.8 seconds", or only burns time, then behaves the same at any load. By the wall clock
    it would compute less the busier the machine is, and the CPU limit would not count what it wasted. CPU time is that
    of the calling process: each test begins at 0.
    """
    computed, sleep, began, slept = time.process_time, time.sleep, time.time(), 0.0

    def elapsed() -> float:
        return computed() + slept

    def since_the_epoch() -> float:
        return began + elapsed()

    def counted_sleep(seconds: float) -> None:
        nonlocal slept
        sleep(seconds)
        slept += seconds

    def nanoseconds() -> int:
        return int(elapsed() * 1e9)

    vars(time).update(time=since_the_epoch, monotonic=elapsed, perf_counter=elapsed, sleep=counted_sleep)
    vars(time).update(
        time_ns=lambda: int(since_the_epoch() * 1e9), monotonic_ns=nanoseconds, perf_counter_ns=nanoseconds
    )


_BUILTINS = _prelude() | vars(builtins) | {"open": _open}
_BUILTINS |= {name: Quitter(name, "Ctrl-D") for name in ("exit", "quit")}
"""The builtins of a submission: they include the prelude, which then needs no copy per test and hides none of the
submission's names. Elsewhere `exit` and `quit` come from the site module, which is not loaded here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of a whole submission: seconds of CPU time and, as a backstop, of wall time; bytes of address space.
    `test_cpu_s`: seconds of CPU time for each test."""

    cpu_s: float
    test_cpu_s: float
    wall_s: float
    memory: int


def main(prepared: PreparedLevel, fds: list[int]) -> None:
    """Body of the cell's first process. fds: [the request as JSON, the pipe for the frames]."""
    request_fd, frames_fd = fds
    with open(request_fd, "rb") as stream:
        request = json.loads(stream.read())
    budget = Budget(**request["budget"])
    # Each test's process inherits the limits. A character of an input is up to four bytes.
    file_size = (16 << 20) + 4 * max(map(len, request["inputs"]), default=0)
    CellLimits(memory=budget.memory, file_size=file_size).apply()
    try:
        code = compile(request["source"], "solution.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        _send(frames_fd, json.dumps({"compiled": type(error).__name__}).encode(), b"")
        return
    _send(frames_fd, b'{"compiled": null}', b"")
    _own_clock()
    sys.setrecursionlimit(_RECURSION)
    # Each test runs in a fork of this process, and so gets a fresh copy of the module.
    module = types.ModuleType("__main__" if request["fn_name"] is None else "solution")
    module.__dict__["__builtins__"] = _BUILTINS
    sys.modules["__main__"] = module
    series = _Series(prepared, code, request["fn_name"], budget)
    for index, (text, output_limit) in enumerate(
        zip(request["inputs"], request["output_limits"], strict=True)
    ):
        end = series.run(text.encode("utf-8", "replace"), output_limit)
        # Formatted by hand: the encoder of `json` would touch 30 more pages, which each test would have to copy.
        header = b'{"test": %d, "end": "%s", "cpu_s": %.4f}'
        _send(frames_fd, header % (index, end.how.encode(), end.cpu_s), end.output)
        if end.how == "timeout":
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How a test ended; see the top of this file. `cpu_s`: CPU seconds."""

    how: str
    cpu_s: float
    output: bytes | bytearray


def _send(fd: int, header: bytes, output: bytes | bytearray) -> None:
    for part in (_LENGTH.pack(len(header)) + header + _LENGTH.pack(len(output)), output):
        data = memoryview(part)
        while data:
            data = data[os.write(fd, data) :]


class _Series:
    """Runs a compiled program on one input after the other, within one budget."""

    def __init__(
        self, prepared: PreparedLevel, code: types.CodeType, fn_name: str | None, budget: Budget
    ) -> None:
        self._prepared, self._code, self._fn_name, self._budget = prepared, code, fn_name, budget
        self._started, self._spent_s = monotonic(), 0.0

    def run(self, data: bytes, output_limit: int) -> _End:
        limit_s = min(self._budget.cpu_s, self._spent_s + self._budget.test_cpu_s)
        input_fd = os.memfd_create("stdin")
        os.write(input_fd, data)
        os.lseek(input_fd, 0, os.SEEK_SET)
        output_read, output_write = os.pipe()
        pid = kernel.fork_into(0)
        if pid == 0:
            try:
                self._become_solution(input_fd, output_write)
            finally:
                os._exit(1)
        os.close(input_fd)
        os.close(output_write)
        output, how = self._collect(pid, output_read, output_limit, limit_s)
        os.close(output_read)
        if how != "exit":
            os.kill(pid, signal.SIGKILL)
        used_s = clock_gettime(_cpu_clock(pid))  # the clock exists until the process is waited for
        _, status = os.waitpid(pid, 0)
        self._spent_s += used_s
        out_of_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
        if out_of_time or self._spent_s > limit_s:
            how = "timeout"
        elif how == "exit" and os.waitstatus_to_exitcode(status) != 0:
            how = "error"
        return _End(how=how, cpu_s=used_s, output=output if how == "exit" else b"")

    def _collect(
        self, pid: int, output_fd: int, output_limit: int, limit_s: float
    ) -> tuple[bytes | bytearray, str]:
        """Collects the output until the process has ended. Returns the output and how it ended: exit, output_limit or
        timeout. `limit_s`: CPU seconds, including those of earlier tests."""
        clock = _cpu_clock(pid)
        poll, output, is_open, pause_s = select.poll(), bytearray(), True, _FIRST_PAUSE_S
        poll.register(output_fd, select.POLLIN)
        # Not by a pidfd, which Linux has since 5.3 only: the end of the output is nearly always the process's.
        while is_open or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            cpu_left_s = limit_s - self._spent_s - clock_gettime(clock)
            wall_left_s = self._budget.wall_s - (monotonic() - self._started)
            if cpu_left_s <= 0 or wall_left_s <= 0:
                return output, "timeout"
            wait_s = max(0.01, min(cpu_left_s, wall_left_s))
            if not is_open:
                wait_s, pause_s = pause_s, min(2 * pause_s, _LONGEST_PAUSE_S)
            if not poll.poll(wait_s * 1000):
                continue
            if chunk := os.read(output_fd, 1 << 16):
                output += chunk
                if len(output) > output_limit:
                    return output[:output_limit], "output_limit"
            else:
                poll.unregister(output_fd)
                is_open = False
        return output, "exit"

    def _become_solution(self, input_fd: int, output_fd: int) -> None:
        """Sets up descriptors, limits and filter in the forked process, then runs the submission. Does not return."""
        os.dup2(input_fd, 0)
        os.dup2(1, 2)  # the fork server's standard output is /dev/null
        result_fd = 1 if self._fn_name is None else 3
        os.dup2(output_fd, result_fd)
        os.closerange(max(3, result_fd + 1), 64)
        cpu_limit_s = int(self._budget.cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s))
        self._prepared.confine()
        names = sys.modules["__main__"].__dict__
        exit_code = 0
        try:
            if self._fn_name is None:
                exec(self._code, names)
            else:
                _call(self._code, names, self._fn_name)
        except SystemExit as request:
            exit_code = request.code if isinstance(request.code, int) else 0 if request.code is None else 1
        except BaseException:
            exit_code = 1
        try:  # the interpreter's own shutdown; a program may hang here, and the clock is still running
            if len(threading._active) > 1:  # type: ignore[attr-defined]
                threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            exit_code = exit_code or 1
        os._exit(exit_code & 0xFF)


def _cpu_clock(pid: int) -> int:
    """Returns the number of a process's CPU clock: what clock_getcpuclockid(3) computes."""
    return (~pid << 3) | 2


def _call(code: types.CodeType, names: dict[str, Any], fn_name: str) -> None:
    lines = sys.stdin.read().split("\n")
    arguments = [json.loads(line) for line in lines if line.strip()]
    # JSON's keys are always text: {"1": x} becomes {1: x} again, as in PRIME's judge.
    for number, argument in enumerate(arguments):
        if isinstance(argument, dict) and argument and all(key.lstrip("-").isdigit() for key in argument):
            arguments[number] = {int(key): value for key, value in argument.items()}
    exec(code, names)
    function = names[fn_name] if fn_name in names else getattr(names["Solution"](), fn_name)
    encoded = memoryview(json.dumps(function(*arguments), allow_nan=False).encode())
    while encoded:
        encoded = encoded[os.write(3, encoded) :]
