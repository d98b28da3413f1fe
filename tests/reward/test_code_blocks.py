"""Tests of which text of a response is code, and which of several blocks is the likeliest program."""

from typing import Any

import pytest

from reward.graders.code.blocks import Block, by_preference, code_blocks
from tests.reward.serving import rows


@pytest.mark.parametrize("row", rows("code_blocks.jsonl"), ids=lambda row: row["text"][:30])
def test_blocks(row: dict[str, Any]) -> None:
    assert [block.body for block in code_blocks(row["text"])] == row["bodies"]


@pytest.mark.parametrize(
    "label",
    ["python", "py", "Python", "python3", "Python 3.11", "py3", "pypy3", "{.python}", "{.python .numberLines}",
     'python title="a.py"', "python:a.py"],
)  # fmt: skip
def test_labels_that_name_python(label: str) -> None:
    assert [block.is_python for block in code_blocks(f"```{label}\na\n```")] == [True]


@pytest.mark.parametrize(
    "label", ["", "text", "python-repl", "pycon", "pytest", "bash", "cpp", "json", "output"]
)
def test_labels_that_do_not(label: str) -> None:
    assert [block.is_python for block in code_blocks(f"```{label}\na\n```")] == [False]


def test_python_before_no_label_before_another_then_closed_then_late() -> None:
    labels = [("text", True), ("py", False), ("", True), ("python", True), ("python", True)]
    assert by_preference([Block(label, "", is_closed) for label, is_closed in labels]) == [4, 3, 1, 2, 0]
