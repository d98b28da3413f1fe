"""Tests that the code contains every message that docs/troubleshooting.md explains."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)


@cache
def strings_of_code() -> tuple[str, ...]:
    """Returns every string of the code, with … for replacement fields, and every line of the shell scripts."""
    found = []
    for file in [*(ROOT / "nemo_prorl").rglob("*.py"), *(ROOT / "reward").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(_constant(part) for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    for script in [*(ROOT / "scripts").glob("*.sh"), *(ROOT / "slurm").glob("*.sh")]:
        found += script.read_text(encoding="utf-8").splitlines()
    return tuple(found)


def _constant(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "…"


def is_in_code(message: str) -> bool:
    pattern = re.compile(".+".join(map(re.escape, message.split("…"))), re.DOTALL)
    return any(pattern.search(text) for text in strings_of_code())


@pytest.mark.medium
@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_can_give_the_message(message: str) -> None:
    assert is_in_code(message)
    assert not is_in_code(f"{message}, or nothing of the kind")
