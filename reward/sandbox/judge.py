"""A judge: a trusted process that runs programs in a cell of its own fork server and compares their outputs.

A judge grades one submission at a time. It never evaluates anything from the submission: outputs are bytes, compared
with expected outputs that never leave this process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from reward import frames
from reward.code_blocks import Block
from reward.graders import code_tests, gate, program_choice, test_program
from reward.graders.code_tests import CPU_S, MAX_CPU_S, Limits, Tests
from reward.graders.grade import Grade, InvalidTask, require
from reward.sandbox import clock, programs
from reward.sandbox.cell import Level
from reward.sandbox.clock import SleepMeter
from reward.sandbox.launch import Zygote, ZygoteError

SLEEP_S = 5.0
"""A program that has slept this long is stopped, with the same result as if it had computed too long."""
WALL_S = 60.0
"""Wall-time backstop for CPU_S. A program that reaches it with CPU time left and without having slept was starved; that
is the machine's fault, and the response is not graded."""
UNMEASURED_WALL_S = 17.0
"""The backstop on kernels that cannot tell sleep from starvation."""
DEFAULT_LIMITS = Limits()
MAX_WALL_S = WALL_S + 2 * (MAX_CPU_S - CPU_S)
"""Both backstops grow by two seconds for each second of CPU time above CPU_S that a task asks for."""
TEST_PROGRAM_CPU_S = 30.0
"""CPU seconds of a test program over all its rounds; each round is limited to CPU_S. Our choice: together with the
submission's limit it stays below the time after which the pool kills a judge (service.py), so that a result is
reached."""
TEST_PROGRAM_SLEEP_S = 10.0
"""Seconds that a test program may sleep, over all its rounds."""
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
    codes: list[int] = field(default_factory=list)
    """Exit codes; a negative one is the signal that ended a test."""
    cpu_s: float = 0.0
    compile_s: float = 0.0
    """CPU seconds of the compilation, sampled every 0.25 s."""
    wall_s: float = 0.0
    slept_s: float | None = None
    cut: str = ""
    """Why the judge stopped it: compiling, asleep, wall, or flood; empty if it ended by itself."""

    def is_whole(self, num_tests: int) -> bool:
        """Whether the runner reported everything."""
        return bool(self.compiled or self.cut or len(self.ends) == num_tests or self.ends[-1:] == ["timeout"])


class Sandbox:
    """A fork server for programs, and a method to run one in it. Blocking, one at a time."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._zygote: Zygote | None = None
        self._runs = 0

    def run(
        self,
        source: str,
        tests: Tests,
        limits: Limits = DEFAULT_LIMITS,
        *,
        sleep_s: float = SLEEP_S,
        memory: int = MEMORY,
        error_fd: int | None = None,
    ) -> Execution:
        """Runs a program on its tests. `memory`: bytes of address space. `error_fd`: a file for the standard error of a
        program that is run for its output; its output is then kept even if it fails. Raises ZygoteError if the sandbox
        failed; the run can be repeated."""
        if self._zygote is None or self._runs >= _RECYCLE_AFTER:
            self.close()
            self._zygote, self._runs = Zygote("code", self._level), 0
        self._runs += 1
        more_s = 2 * max(0.0, limits.cpu_s - CPU_S)
        budget = {**asdict(limits), "wall_s": 2 * (WALL_S + more_s), "memory": memory}
        output_limits, most_output = tests.output_limits()
        request = {
            "source": source,
            "inputs": tests.inputs,
            "output_limits": output_limits,
            "fn_name": tests.fn_name,
            "budget": budget,
        }
        request_fd = os.memfd_create("request")
        read_fd, write_fd = os.pipe()
        try:
            with open(request_fd, "wb", closefd=False) as stream:
                stream.write(json.dumps(request).encode())
            os.lseek(request_fd, 0, os.SEEK_SET)
            pid = self._zygote.spawn([request_fd, write_fd, *([] if error_fd is None else [error_fd])])
            os.close(write_fd)
            write_fd = -1
            execution = _collect(read_fd, pid, max(output_limits), most_output, limits.cpu_s, more_s, sleep_s)
            ended_by = self._zygote.end(pid)
            if ended_by == signal.SIGKILL and not execution.is_whole(len(tests)):
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


@dataclass(slots=True, kw_only=True)
class Allowance:
    """The seconds of CPU time (including compilation) and of sleep that a program has left for all further runs."""

    cpu_s: float
    sleep_s: float

    @property
    def is_spent(self) -> bool:
        return self.cpu_s <= 0.0 or self.sleep_s <= 0.0

    def run(self, sandbox: Sandbox, source: str, tests: Tests, *, run_cpu_s: float = MAX_CPU_S) -> Execution:
        """Runs a program within what is left, and within `run_cpu_s` and SLEEP_S. Raises ZygoteError."""
        limits = Limits(cpu_s=min(run_cpu_s, self.cpu_s))
        execution = sandbox.run(source, tests, limits, sleep_s=min(SLEEP_S, self.sleep_s))
        self.cpu_s -= execution.compile_s + execution.cpu_s
        self.sleep_s -= execution.slept_s or 0.0
        return execution


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    _read(task)


def _read(task: Mapping[str, Any]) -> tuple[Limits, Tests | None]:
    """Returns the task's limits and tests; None for the tests of a task with a test program. Raises InvalidTask."""
    limits = code_tests.limits_of(task)
    if "test_program" not in task:
        return limits, code_tests.tests_of(task)
    test_program.check(task)
    return limits, None


def grade(sandbox: Sandbox, response: str, task: Mapping[str, Any], *, in_thought: bool = False) -> Grade:
    """Grades a response: passed / all within the task's time limits, or 1 or 0 with a test program. `in_thought`: the
    response begins inside a thought. Raises InvalidTask, and ZygoteError if the sandbox failed."""
    limits, tests = _read(task)
    text = gate(response, task, in_thought=in_thought)
    if isinstance(text, Grade):
        return text
    found = program_choice.candidates(text)
    if not found:
        return Grade(score=0.0, verdict="no_code")
    index, block = found[_chosen(sandbox, found, task)]
    if tests is None:
        grade = _checked(sandbox, block.body, task, limits.cpu_s)
    else:
        grade = judged(sandbox.run(block.body, tests, limits), tests)
    return replace(grade, details={**grade.details, "block": index + 1}) if len(found) > 1 else grade


def _chosen(sandbox: Sandbox, found: list[tuple[int, Block]], task: Mapping[str, Any]) -> int:
    """Returns which of the candidates is the program. Raises ZygoteError."""
    if len(found) == 1:
        return 0
    execution = sandbox.run(program_choice.CHOOSER, program_choice.question(found, task))
    return program_choice.choice(execution.outputs[0], len(found)) if execution.ends == ["exit"] else 0


def _checked(sandbox: Sandbox, source: str, task: Mapping[str, Any], cpu_s: float) -> Grade:
    """Grades a submission against a test program. Values that nest too deep for this process to read or write as JSON
    are the task's fault until the submission has first answered, and the submission's fault afterwards."""
    known: list[tuple[Any, Any]] = []
    try:
        return _in_turns(sandbox, source, task, cpu_s, known)
    except RecursionError:
        require(bool(known), "the test program calls the function with data that nests too deep")
        return Grade(score=0.0, verdict="nested_too_deep", details={"calls": len(known)})


def _in_turns(
    sandbox: Sandbox, source: str, task: Mapping[str, Any], cpu_s: float, known: list[tuple[Any, Any]]
) -> Grade:
    """Runs test program and submission in turns (reward/graders/test_program.py), with one allowance each for all
    turns. `known` collects the calls and their answers. Raises RecursionError for data that nests too deep."""
    tester, program = test_program.tester_of(task), test_program.program_of(source, task)
    testers = Allowance(cpu_s=TEST_PROGRAM_CPU_S, sleep_s=TEST_PROGRAM_SLEEP_S)
    programs = Allowance(cpu_s=cpu_s, sleep_s=SLEEP_S)
    num_operations = 0
    for num_rounds in range(test_program.MAX_ROUNDS):
        if testers.is_spent:
            return Grade(score=0.0, verdict="wrong", details={"failure": "test_program_timeout"})
        calls = test_program.one_input(known, "__tell__")
        said = _tested(testers.run(sandbox, tester, calls, run_cpu_s=CPU_S))
        asked = said["asked"]
        _require_calls(said, known)
        num_operations += sum(len(session["ops"]) for session in asked)
        if not asked or num_operations > test_program.MAX_CALLS:
            failure = "too_many_calls" if asked else said["failure"]
            if said["unsupported"] and not asked:
                failure = f"cannot_pass_{said['unsupported']}"
            details = {
                "calls": len(known),
                "rounds": num_rounds,
                "cpu_s": round(cpu_s - programs.cpu_s, 3),
                "failure": failure,
            }
            return Grade(score=float(not failure), verdict="wrong" if failure else "correct", details=details)
        tests = test_program.sessions_as_tests(asked)
        execution = programs.run(sandbox, program, tests)
        grade = judged(execution, tests)
        if grade.score < 1.0:
            verdict = "wrong" if grade.verdict == "partial" else grade.verdict
            return Grade(score=0.0, verdict=verdict, details=grade.details)
        if programs.is_spent:
            return Grade(score=0.0, verdict="timeout", details=grade.details)
        for index, output in enumerate(execution.outputs):
            replies = test_program.replies_of(output, tests.num_operations[index]) or []
            start = index * test_program.CALLS_A_PROCESS
            known += zip(asked[start : start + len(replies)], replies, strict=True)
    return Grade(score=0.0, verdict="wrong", details={"failure": "too_many_rounds"})


def _require_calls(said: Mapping[str, Any], known: Sequence[Any]) -> None:
    """Raises InvalidTask if the test program cannot be used for grading. Only its first run decides that, because it
    involves no answer of the submission: otherwise a wrong submission could choose not to be graded."""
    if known:
        return
    require(
        not said["unsupported"],
        f"the test program calls the function with a value of type {said['unsupported']}, which cannot be handed to a "
        "program in another process; data, and classes that the preamble defines, can",
    )
    why = f"it ends with {said['failure']}" if said["failure"] else "it ends"
    require(bool(said["asked"]), f"the test program never calls the function: {why}")


def _tested(execution: Execution) -> dict[str, Any]:
    """Returns the test program's message or, if there is none, how the program ended. Raises RecursionError if the
    message nests too deep."""
    how = execution.compiled or execution.cut or (execution.ends or ["no end"])[0]
    if execution.ends == ["exit"]:
        try:
            said: dict[str, Any] = json.loads(execution.outputs[0])
            return said
        except ValueError:
            how = "unreadable"
    return {"asked": [], "failure": f"test_program_{how}", "unsupported": ""}


def judged(execution: Execution, tests: Tests) -> Grade:
    """Grades the outputs of a program."""
    details: dict[str, Any] = {
        "total": len(tests),
        "cpu_s": round(execution.cpu_s, 3),
        "wall_s": round(execution.wall_s, 3),
    }
    if execution.compiled is None:
        verdict = "timeout" if execution.cut == "compiling" else "crashed_compiling"
        return Grade(score=0.0, verdict=verdict, details={**details, "passed": 0})
    if execution.compiled:
        return Grade(
            score=0.0, verdict="syntax_error", details={**details, "passed": 0, "error": execution.compiled}
        )
    ends = execution.ends[: len(tests)]
    outcomes = [
        end if end != "exit" else "passed" if tests.passes(index, execution.outputs[index]) else "wrong"
        for index, end in enumerate(ends)
    ]
    passed = outcomes.count("passed")
    details |= {"passed": passed, "outcomes": outcomes[:50]}
    if execution.cut == "flood":
        return Grade(score=0.0, verdict="output_limit", details=details)
    if execution.cut or "timeout" in outcomes:
        return Grade(score=0.0, verdict="timeout", details=details)
    if len(outcomes) < len(tests):
        return Grade(score=0.0, verdict="crashed", details=details)
    if passed == len(tests):
        return Grade(score=1.0, verdict="correct", details=details)
    worst = next((name for name in ("error", "output_limit") if name in outcomes), "wrong")
    verdict = "partial" if passed else {"error": "runtime_error"}.get(worst, worst)
    return Grade(score=passed / len(tests), verdict=verdict, details=details)


def _collect(
    fd: int, runner: int, output_limit: int, most_output: int, cpu_s: float, more_s: float, sleep_s: float
) -> Execution:
    """Reads frames until the cell closes its pipe, sends malformed or too much data, compiles for more than `cpu_s`,
    sleeps for more than `sleep_s`, or runs out of wall time. `output_limit`, `most_output`: bytes in one test and in
    all. `more_s`: seconds added to both backstops. The runner limits the tests' own CPU time."""
    started, meter, wall_s = time.monotonic(), SleepMeter(runner), WALL_S + more_s
    execution, received, total, next_sample_s = Execution(), bytearray(), 0, _SAMPLE_S
    while not execution.cut:
        readable = select.select([fd], [], [], max(0.0, next_sample_s - execution.wall_s))[0]
        execution.wall_s = time.monotonic() - started
        if execution.wall_s >= next_sample_s:  # also while output arrives: many tests may sleep a little each
            next_sample_s = execution.wall_s + _SAMPLE_S
            execution.slept_s = meter.sample()
            if execution.compiled is None:
                execution.compile_s = clock.cpu_s(runner) or 0.0
            if execution.compile_s > cpu_s:
                execution.cut = "compiling"
            elif execution.slept_s is None:
                wall_s = min(wall_s, UNMEASURED_WALL_S + more_s)
            elif execution.slept_s > sleep_s:
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
        if total > most_output or not _parse(received, execution, output_limit):
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
                execution.codes.append(int(header["code"]))
                execution.cpu_s += float(header["cpu_s"])
        except (ValueError, KeyError, TypeError):
            return False
        del received[:end]
    return True


def _answer(sandbox: Sandbox, request: Mapping[str, Any]) -> dict[str, Any]:
    """Handles one request. Raises InvalidTask, and ZygoteError if the sandbox failed."""
    if "program" in request:
        return {"ran": asdict(programs.run(sandbox, programs.Program(**request["program"])))}
    in_thought = request.get("in_thought", False)
    return {"grade": asdict(grade(sandbox, request["response"], request["task"], in_thought=in_thought))}


def main(fd: int, level: str) -> None:
    """Serves one socket until it closes. It answers {"response", "task", "in_thought"?} with {"grade"},
    {"invalid": sentence}, {"retry": sentence} or {"failed": sentence}, and {"program": ...} with {"ran"}, {"retry"} or
    {"failed"} (reward.sandbox.programs).

    An unexpected exception is a defect of this service. It is answered with {"failed"}, so the response is not graded:
    if it ended the judge, a trial (reward/trial.py) would blame the response."""
    connection = socket.socket(fileno=fd)
    sandbox = Sandbox(Level(level))
    while (request := frames.read(connection.fileno())) is not None:
        try:
            answer = _answer(sandbox, request)
        except InvalidTask as error:
            answer = {"invalid": str(error)}
        except ZygoteError as error:
            answer = {"retry": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"the judge has a defect: {type(error).__name__}"}
        frames.write(connection.fileno(), answer)
    sandbox.close()
    sys.exit(0)
