"""Tests the verdict of every form in which a model may write a program, and a task its outputs."""

from typing import Any

import pytest

from reward.graders.code.grader import grade
from reward.sandbox.execution import Sandbox
from tests.reward.serving import rows


@pytest.mark.parametrize("row", rows("code_forms.jsonl"), ids=lambda row: row["form"])
def test_form(row: dict[str, Any], sandbox: Sandbox) -> None:
    found = grade(sandbox, row["response"], row["task"])
    assert ("right" if found.score == 1 else found.verdict) == row["verdict"]


@pytest.mark.parametrize(
    ("source", "task", "verdict"),
    [
        ('print("1 " * 600_000)', {"inputs": ["1"], "outputs": ["1 " * 600_000]}, "correct"),
        ('print("1 " * 600_000)', {"inputs": ["1"], "outputs": ["1"]}, "output_limit"),
        ('print("1" * 1_000_000)', {"inputs": ["1"] * 70, "outputs": ["1" * 1_000_000] * 70}, "correct"),
        ('print("1" * 1_000_000)', {"inputs": ["1"] * 70, "outputs": ["1"] * 70}, "output_limit"),
        (
            "def f(n):\n    return [1] * n",
            {"inputs": ["400000"], "outputs": [[1] * 400_000], "fn_name": "f"},
            "correct",
        ),
    ],
    ids=["long", "too long", "long in all", "too long in all", "a long result"],
)
def test_a_program_may_write_what_is_expected_of_it_and_a_mebibyte_more(
    source: str, task: dict[str, Any], verdict: str, sandbox: Sandbox
) -> None:
    assert grade(sandbox, f"```python\n{source}\n```", task).verdict == verdict
