"""Tests of programs that are run for their output: every way to end, at both levels, and what is returned."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reward.sandbox.cell import Level
from reward.sandbox.judge import Sandbox
from reward.sandbox.probe import strongest
from reward.sandbox.programs import MAX_ERROR_BYTES, MIN_MEMORY, Program, ProgramRun, run


@pytest.fixture(scope="module", params=[Level.namespaces, Level.landlock], ids=lambda level: level.value)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    best, _ = strongest(allow_none=False)
    if best is None or (request.param is Level.namespaces and best is not Level.namespaces):
        pytest.skip(f"this machine cannot have level {request.param.value}")
    sandbox = Sandbox(request.param)
    yield sandbox
    sandbox.close()


def ran(
    sandbox: Sandbox, source: str, stdin: str = "", cpu_s: float = 5.0, memory: int = 512 << 20
) -> ProgramRun:
    return run(sandbox, Program(source=source, stdin=stdin, cpu_s=cpu_s, memory=memory))


def test_what_a_program_writes_comes_back(sandbox: Sandbox) -> None:
    result = ran(sandbox, "import sys\nprint(2 * int(input()))\nprint('careful', file=sys.stderr)", "21\n")
    assert (result.end, result.return_code) == ("exit", 0)
    assert (result.stdout, result.stderr) == ("42\n", "careful\n")
    assert 0 < result.cpu_s < 2


@pytest.mark.parametrize(
    ("source", "code", "stdout", "stderr"),
    [
        ("print('so far')\n1 / 0", 1, "so far\n", "ZeroDivisionError: division by zero"),
        ("def f():\n    g()\nf()", 1, "", "line 2, in f"),
        ("import sys\nsys.exit(3)", 3, "", ""),
        ("import sys\nsys.exit('no luck')", 1, "", "no luck\n"),
        ("exit()", 0, "", ""),
        ("print(1", 1, "", "SyntaxError"),
        ("import os\nos._exit(7)", 7, "", ""),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", -11, "", ""),
        ("def f(n):\n    return f(n + 1)\nf(0)", 1, "", "RecursionError"),
        ("input()", 1, "", "EOFError"),
    ],
)
def test_how_programs_fail(sandbox: Sandbox, source: str, code: int, stdout: str, stderr: str) -> None:
    result = ran(sandbox, source)
    assert (result.end, result.return_code, result.stdout) == ("exit", code, stdout)
    assert stderr in result.stderr
    assert "runner.py" not in result.stderr


@pytest.mark.parametrize("source", ["while True:\n    pass", "import time\ntime.sleep(60)"])
def test_time_is_what_a_program_computes_and_sleeps(sandbox: Sandbox, source: str) -> None:
    result = ran(sandbox, "print('begun', flush=True)\n" + source, cpu_s=0.5)
    assert (result.end, result.return_code) == ("timeout", None)


def test_what_a_program_wrote_before_its_time_was_over_comes_back(sandbox: Sandbox) -> None:
    result = ran(sandbox, "print('begun', flush=True)\nwhile True:\n    pass", cpu_s=1.0)
    assert (result.end, result.stdout) == ("timeout", "begun\n")


def test_what_comes_back_is_bounded(sandbox: Sandbox) -> None:
    result = ran(sandbox, "print('x' * (3 << 20))")
    assert (result.end, len(result.stdout)) == ("output_limit", 1 << 20)
    result = ran(sandbox, "import sys\nsys.stderr.write('x' * 100_000 + 'end')")
    assert (result.end, len(result.stderr)) == ("exit", MAX_ERROR_BYTES)
    assert result.stderr.endswith("xend")


def test_what_is_no_utf_8_is_replaced(sandbox: Sandbox) -> None:
    result = ran(sandbox, "import sys\nsys.stdout.buffer.write(b'a\\xffb\\x00')")
    assert result.stdout == "a\ufffdb\x00"


def test_memory_is_the_callers_choice_within_bounds(sandbox: Sandbox) -> None:
    source = "print(len(bytearray(600 << 20)))"
    assert "MemoryError" in ran(sandbox, source).stderr
    assert ran(sandbox, source, memory=1 << 30).return_code == 0
    assert "MemoryError" in ran(sandbox, "bytearray(1100 << 20)", memory=1 << 40).stderr
    assert ran(sandbox, "print(1)", memory=1).return_code == 0
    assert "MemoryError" in ran(sandbox, f"bytearray({MIN_MEMORY})", memory=1).stderr


def test_nothing_stays_between_two_programs(sandbox: Sandbox) -> None:
    ran(sandbox, "import sys\nsys.stderr.write('secret')\nopen('/tmp/left', 'w').write('secret')")
    result = ran(sandbox, "import os\nprint(os.path.exists('/tmp/left'))")
    assert (result.stdout, result.stderr) == ("False\n", "")
