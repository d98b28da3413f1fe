"""Tests that each pair of answers on the page about graders is graded as the page says."""

from __future__ import annotations

import re

import pytest

from reward.graders.math import grader
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "graders.md"


def pairs() -> list[tuple[str, str, str]]:
    """Returns gold, answer and verdict of every pair in the page's tables about mathematics."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").partition("\n## Code\n")[0].splitlines():
        cells = line.strip("| ").split(" | ")
        if line.startswith("| `") and len(cells) == 3:
            gold, right, wrong = (re.findall("`([^`]+)`", cell) for cell in cells)
            found += [(gold[0], answer, "correct") for answer in gold + right]
            found += [(gold[0], answer, "wrong") for answer in wrong]
    return found


@pytest.mark.parametrize(("gold", "answer", "verdict"), pairs())
def test_the_page_is_right(gold: str, answer: str, verdict: str) -> None:
    found, details = grader.judge(answer, gold)
    assert (found == "correct") == (verdict == "correct"), details


def test_the_page_has_pairs_of_both_kinds() -> None:
    verdicts = [verdict for *_, verdict in pairs()]
    assert min(verdicts.count("correct"), verdicts.count("wrong")) > 50
