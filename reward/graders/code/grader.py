"""Grades a response with a program: chooses the program, runs it in the sandbox, and compares its outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reward.graders.code import check_program, code_tests, program_choice
from reward.graders.code.code_tests import Tests
from reward.graders.grade import Grade, gate, require
from reward.sandbox.execution import DEFAULT_LIMITS, SLEEP_S, Allowance, Execution, Sandbox
from reward.sandbox.limits import CPU_S, ProgramLimits

TEST_PROGRAM_CPU_S = 30.0
"""CPU seconds of a test program over all its rounds; each round is limited to CPU_S. Together with the
submission's limit it stays below the time after which the pool kills a judge (service.py), so that a result is
reached."""
TEST_PROGRAM_SLEEP_S = 10.0
"""Seconds that a test program may sleep, over all its rounds."""


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    _read(task)


def _read(task: Mapping[str, Any]) -> tuple[ProgramLimits, Tests | None]:
    """Returns the task's limits and tests; None for the tests of a task with a test program. Raises InvalidTask."""
    limits = code_tests.limits_of(task)
    if "test_program" not in task:
        return limits, code_tests.tests_of(task)
    check_program.check(task)
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
    chosen = 0
    if len(found) > 1:
        question = program_choice.question(found, task)
        execution = sandbox.run(program_choice.CHOOSER, [question], fn_name="__choose__")
        if execution.ends == ["exit"]:
            chosen = program_choice.choice(execution.outputs[0], len(found))
    index, block = found[chosen]
    if tests is None:
        grade = _grade_with_test_program(sandbox, block.body, task, limits.cpu_s)
    else:
        grade = grade_outputs(run_tests(sandbox, block.body, tests, limits), tests)
    return replace(grade, details={**grade.details, "block": index + 1}) if len(found) > 1 else grade


def run_tests(
    sandbox: Sandbox, source: str, tests: Tests, limits: ProgramLimits = DEFAULT_LIMITS
) -> Execution:
    """Runs a program on the inputs of tests. Raises ZygoteError."""
    return sandbox.run(
        source, tests.inputs, fn_name=tests.fn_name, output_limits=tests.output_limits(), limits=limits
    )


def _grade_with_test_program(sandbox: Sandbox, source: str, task: Mapping[str, Any], cpu_s: float) -> Grade:
    """Grades a submission against a test program. Values that nest too deep for this process to read or write as JSON
    are the task's fault until the submission has first answered, and the submission's fault afterwards."""
    known: list[tuple[Any, Any]] = []
    try:
        return _take_turns(sandbox, source, task, cpu_s, known)
    except RecursionError:
        require(bool(known), "the test program calls the function with data that nests too deep")
        return Grade(score=0.0, verdict="nested_too_deep", details={"calls": len(known)})


def _take_turns(
    sandbox: Sandbox, source: str, task: Mapping[str, Any], cpu_s: float, known: list[tuple[Any, Any]]
) -> Grade:
    """Runs test program and submission in turns (check_program.py), with one allowance each for all turns. `known`
    collects the calls and their answers. Raises RecursionError for data that nests too deep."""
    tester, program = check_program.tester_of(task), check_program.program_of(source, task)
    testers = Allowance(cpu_s=TEST_PROGRAM_CPU_S, sleep_s=TEST_PROGRAM_SLEEP_S)
    programs = Allowance(cpu_s=cpu_s, sleep_s=SLEEP_S)
    num_operations = 0
    for num_rounds in range(check_program.MAX_ROUNDS):
        if testers.is_spent:
            return Grade(score=0.0, verdict="wrong", details={"failure": "test_program_timeout"})
        tested = testers.run(sandbox, tester, [json.dumps(known)], fn_name="__tell__", run_cpu_s=CPU_S)
        said = _read_message(tested)
        asked = said["asked"]
        _require_calls(said, known)
        num_operations += sum(len(session["ops"]) for session in asked)
        if not asked or num_operations > check_program.MAX_CALLS:
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
        tests = check_program.sessions_as_tests(asked)
        execution = programs.run(
            sandbox, program, tests.inputs, fn_name="__answers__", output_limits=tests.output_limits()
        )
        grade = grade_outputs(execution, tests)
        if grade.score < 1.0:
            verdict = "wrong" if grade.verdict == "partial" else grade.verdict
            return Grade(score=0.0, verdict=verdict, details=grade.details)
        if programs.is_spent:
            return Grade(score=0.0, verdict="timeout", details=grade.details)
        for index, output in enumerate(execution.outputs):
            replies = check_program.replies_of(output, tests.num_operations[index]) or []
            start = index * check_program.CALLS_A_PROCESS
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


def _read_message(execution: Execution) -> dict[str, Any]:
    """Returns the test program's message or, if there is none, how the program ended. Raises RecursionError if the
    message nests too deep."""
    how = execution.compiled or execution.cut or (execution.ends or ["no end"])[0]
    if execution.ends == ["exit"]:
        try:
            return json.loads(execution.outputs[0])
        except ValueError:
            how = "unreadable"
    return {"asked": [], "failure": f"test_program_{how}", "unsupported": ""}


def grade_outputs(execution: Execution, tests: Tests) -> Grade:
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
