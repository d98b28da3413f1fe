"""Grades a response with a program: chooses the program, runs it in the sandbox, and compares its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reward.graders.code import code_tests, program_choice
from reward.graders.code.code_tests import Tests
from reward.graders.grade import Grade, gate
from reward.sandbox.execution import DEFAULT_LIMITS, Execution, Sandbox
from reward.sandbox.limits import ProgramLimits


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    code_tests.limits_of(task)
    code_tests.tests_of(task)


def grade(sandbox: Sandbox, response: str, task: Mapping[str, Any], *, in_thought: bool = False) -> Grade:
    """Grades a response: passed / all within the task's time limits. `in_thought`: the response begins inside a
    thought. Raises InvalidTask, and ZygoteError if the sandbox failed."""
    limits, tests = code_tests.limits_of(task), code_tests.tests_of(task)
    text = gate(response, task, in_thought=in_thought)
    if isinstance(text, Grade):
        return text
    found = program_choice.candidates(text)
    if not found:
        return Grade(score=0.0, verdict="no_code")
    chosen = 0
    if len(found) > 1:
        question = program_choice.question(found, tests.fn_name)
        execution = sandbox.run(program_choice.CHOOSER, [question], fn_name="__choose__")
        if execution.ends == ["exit"]:
            chosen = program_choice.choice(execution.outputs[0], len(found))
    index, block = found[chosen]
    grade = grade_outputs(run_tests(sandbox, block.body, tests, limits), tests)
    return replace(grade, details={**grade.details, "block": index + 1}) if len(found) > 1 else grade


def run_tests(
    sandbox: Sandbox, source: str, tests: Tests, limits: ProgramLimits = DEFAULT_LIMITS
) -> Execution:
    """Runs a program on the inputs of tests. Raises ZygoteError."""
    return sandbox.run(
        source, tests.inputs, fn_name=tests.fn_name, output_limits=tests.output_limits(), limits=limits
    )


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
