"""Tests that docs/data.md is true: its example runs and prints what it claims, and its table is the row type."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from nemo_prorl.data.rows import SCHEMA
from reward.protocol import DOMAINS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_example_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (promised,) = re.findall(r"It prints `(.*?)`", TEXT)
    script = tmp_path / "example.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{program}", encoding="utf-8")
    printed = subprocess.run(
        [sys.executable, script], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120
    )
    assert printed.stdout.strip() == promised
    assert (tmp_path / "sums.parquet").is_file()


def test_the_table_is_the_row_type() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE) == SCHEMA.names


def test_every_domain_is_named() -> None:
    (row,) = re.findall(r"^\| `domain` .*$", TEXT, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row)[1:] == list(DOMAINS)
