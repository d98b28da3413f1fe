"""Tests that every row of docs/math_notations.md gets the verdict given there."""

import re
from pathlib import Path

import pytest

pytest.importorskip("math_verify")

from reward.graders import grade

_TABLE = Path(__file__).resolve().parents[2] / "docs" / "math_notations.md"
_ROW = re.compile(r"\| (`+) ?(?P<gold>.+?) ?\1 \| (`+) ?(?P<answer>.+?) ?\3 \| \w+ \| (?P<now>\w+) \|")
ROWS = [match for line in _TABLE.read_text(encoding="utf-8").splitlines() if (match := _ROW.fullmatch(line))]


def test_the_table_is_found() -> None:
    assert len(ROWS) > 60


@pytest.mark.medium
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['gold']}={row['answer']}")
def test_row(row: re.Match[str]) -> None:
    found = grade("math", f"\\boxed{{{row['answer']}}}", {"answer": row["gold"]})
    assert ("right" if found.score == 1 else found.verdict) == row["now"]
