"""A program run for what it writes: standard input in; standard output, standard error and exit code out.

It has the cell, the zygote and the limits of a graded submission. Time is judged as there: by what the program computes
and by what it sleeps, never by wall time, so that a loaded machine changes nothing. What comes back is text of bounded
length, decoded as UTF-8 with U+FFFD for what is not, and nothing of it is evaluated.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward.graders.code_tests import MAX_CPU_S, Limits, Tests

if TYPE_CHECKING:
    from reward.sandbox.judge import Execution, Sandbox

MIN_MEMORY, MAX_MEMORY = 256 << 20, 1 << 30
"""Bytes of address space that a caller can give a program; an interpreter needs some by itself."""
MAX_ERROR_BYTES = 64 << 10
"""What is kept of standard error: its end, where the exception stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Example: Program(source="print(2 * int(input()))", stdin="21\\n", cpu_s=10.0, memory=512 << 20)"""

    source: str
    stdin: str
    cpu_s: float
    """Seconds that it may compute, and also that it may sleep; up to MAX_CPU_S."""
    memory: int
    """Bytes of address space, from MIN_MEMORY to MAX_MEMORY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """`end`: exit (by itself, with `return_code`), timeout, or output_limit (it wrote more than a mebibyte)."""

    end: str
    return_code: int | None
    """None of a program that was ended; below 0 the signal that killed it."""
    stdout: str
    stderr: str
    cpu_s: float


def run(sandbox: Sandbox, program: Program) -> ProgramRun:
    """Runs it once. Raises ZygoteError if the sandbox failed; it can be tried again."""
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
    return_code: int | None = 1  # of a program that did not compile
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
