"""Runs a program for its output: standard input in; standard output, standard error and exit code out.

It uses the cell, the fork server and the limits of a graded submission. Time is measured as there: computing and
sleeping, never wall time, so a loaded machine changes nothing. The outputs are text of bounded length, decoded as UTF-8
with U+FFFD for invalid bytes, and never evaluated.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward.graders.code_tests import MAX_CPU_S, Limits, Tests

if TYPE_CHECKING:
    from reward.sandbox.judge import Execution, Sandbox

MIN_MEMORY, MAX_MEMORY = 256 << 20, 1 << 30
"""Bytes of address space that a caller can give a program; the interpreter itself needs some of it."""
MAX_ERROR_BYTES = 64 << 10
"""How much of standard error is kept: its end, where the exception is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and its limits.

    Example: Program(source="print(2 * int(input()))", stdin="21\\n", cpu_s=10.0, memory=512 << 20)"""

    source: str
    stdin: str
    cpu_s: float
    """Seconds that it may compute, and also seconds that it may sleep; up to MAX_CPU_S."""
    memory: int
    """Bytes of address space, from MIN_MEMORY to MAX_MEMORY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """`end`: exit (it ended by itself, with `return_code`), timeout, or output_limit (it wrote more than a
    mebibyte)."""

    end: str
    return_code: int | None
    """None if the program was stopped; a negative one is the signal that killed it."""
    stdout: str
    stderr: str
    cpu_s: float


def run(sandbox: Sandbox, program: Program) -> ProgramRun:
    """Runs the program once. Raises ZygoteError if the sandbox failed; the run can be repeated."""
    tests = Tests(inputs=(program.stdin,), expected=("",), fn_name=None)
    limits = Limits(cpu_s=min(program.cpu_s, MAX_CPU_S))
    memory = min(max(program.memory, MIN_MEMORY), MAX_MEMORY)
    error_fd = os.memfd_create("stderr")
    try:
        execution = sandbox.run(
            program.source, tests, limits, sleep_s=limits.cpu_s, memory=memory, error_fd=error_fd
        )
        size = os.fstat(error_fd).st_size
        stderr = os.pread(error_fd, MAX_ERROR_BYTES, max(0, size - MAX_ERROR_BYTES))
    finally:
        os.close(error_fd)
    return _told(execution, stderr.decode("utf-8", "replace"))


def _told(execution: Execution, stderr: str) -> ProgramRun:
    stdout = execution.outputs[0].decode("utf-8", "replace") if execution.outputs else ""
    end = "exit"
    return_code: int | None = 1  # if it did not compile
    if execution.cut in ("compiling", "asleep", "wall") or execution.ends == ["timeout"]:
        end, return_code = "timeout", None
    elif execution.cut == "flood" or execution.ends == ["output_limit"]:
        end, return_code = "output_limit", None
    elif execution.codes:
        return_code = execution.codes[0]
    elif not execution.compiled:
        return_code, stderr = -11, stderr + "the interpreter crashed\n"
    return ProgramRun(
        end=end,
        return_code=return_code,
        stdout=stdout,
        stderr=stderr,
        cpu_s=round(execution.compile_s + execution.cpu_s, 4),
    )
