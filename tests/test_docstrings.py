"""Tests of scripts/docstrings.py, which `make check` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("text", "is_hanging"),
    [
        ("Of several, the first.", True),
        ("The first. Of others, none counts.", True),
        ("(rows, columns) of the table.", True),
        ("Returns (rows, columns).", False),
        ("Number of rows, of which some count.", False),
        ("Office hours.", False),
    ],
)
def test_a_docstring_stands_alone(text: str, is_hanging: bool, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(f'ROWS = 3\n"""{text}"""\n')
    command = [sys.executable, str(ROOT / "scripts/docstrings.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "module.py:2" in done.stdout) == (int(is_hanging), is_hanging), done.stderr
