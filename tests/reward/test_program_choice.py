"""Tests that the program is chosen from the text, in the sandbox, and that the choice cannot be used for a second
guess."""

import json
from typing import Any

import pytest

from reward.graders.code import program_choice
from reward.graders.code.grader import grade
from reward.sandbox.execution import Sandbox

ECHO: dict[str, Any] = {"inputs": ["1"], "outputs": ["1"]}


def chosen(sandbox: Sandbox, texts: list[str], name: str | None) -> int:
    execution = sandbox.run(program_choice.CHOOSER, [json.dumps([texts, name])], fn_name="__choose__")
    return program_choice.choice(execution.outputs[0], len(texts))


@pytest.mark.parametrize(
    ("text", "defines"),
    [
        ("def f(x): pass", True),
        ("async def f(x): pass", True),
        ("f = lambda x: x", True),
        ("from math import sqrt as f", True),
        ("class Solution:\n    def f(self): pass", True),
        ("if True:\n    def f(x): pass", True),
        ("class f: pass", True),
        ("class Other:\n    def f(self): pass", False),
        ("def g():\n    def f(): pass", False),
        ("f(1)", False),
        ("'def f'", False),
        ("# def f", False),
    ],
)
def test_what_defines_a_function(sandbox: Sandbox, text: str, defines: bool) -> None:
    assert chosen(sandbox, ["x = 1", text], "f") == int(defines)


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("input()", True),
        ("import sys\nfor line in sys.stdin: pass", True),
        ("from sys import stdin", True),
        ("open(0).read()", True),
        ("def main():\n    return [input() for _ in range(2)]", True),
        ("print('input')", False),
        ("# input()", False),
        ("4", False),
    ],
)
def test_what_reads_its_input(sandbox: Sandbox, text: str, reads: bool) -> None:
    assert chosen(sandbox, ["x = 1", text], None) == int(reads)


def test_nothing_runs_before_the_choice(sandbox: Sandbox) -> None:
    """A block that is not chosen has no effect: it cannot influence the chooser or leave a file."""
    takes_over = "import os\nos.write(3, b'1')\nos.write(1, b'1')\nos._exit(0)"
    assert chosen(sandbox, ["input()", takes_over], None) == 0
    writes = f"```python\n{takes_over}\nopen('f', 'w').write('1')\n```"
    response = f"{writes}\n```python\ninput()\nprint(open('f').read())\n```"
    assert grade(sandbox, response, ECHO).verdict == "runtime_error"


@pytest.mark.parametrize(
    "block",
    ["f'" + "{1}" * 15_000 + "'", "(" * 100_000, "-" * 90_000 + "1", "x = [" + "[" * 5_000, "\0", "9" * 5_000],
    ids=["slow", "brackets", "signs", "nested", "null", "digits"],
)  # fmt: skip
def test_text_that_is_hard_to_compile_costs_its_author_alone(sandbox: Sandbox, block: str) -> None:
    right = "```python\nprint(input())\n```"
    assert grade(sandbox, f"{right}\n```text\n{block}\n```", ECHO).score in (0.0, 1.0)
    assert grade(sandbox, f"```python\ninput()\n```\n```python\n{block}\n```", ECHO).score == 0.0
    assert grade(sandbox, right, ECHO).score == 1.0


@pytest.mark.parametrize("output", [b"", b"x", b"-1", b"7", b"9" * 200, b"\xff", b"null", b"[1]"])
def test_a_choice_that_makes_no_sense_is_the_block_liked_best(output: bytes) -> None:
    assert program_choice.choice(output, 3) == 0
    assert program_choice.choice(b"2", 3) == 2
