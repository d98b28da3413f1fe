"""Tests that right answers in another notation are read, and which ones are not."""

import json
from pathlib import Path

import pytest

pytest.importorskip("math_verify")

from reward.graders import grade

_DATA = Path(__file__).parent / "data" / "math_notations.jsonl"
CASES = [json.loads(line) for line in _DATA.read_text(encoding="utf-8").splitlines()]


@pytest.mark.medium
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['gold']}={case['answer']}")
def test_case(case: dict[str, str]) -> None:
    found = grade("math", f"\\boxed{{{case['answer']}}}", {"answer": case["gold"]})
    assert ("right" if found.score == 1 else found.verdict) == case["verdict"]
