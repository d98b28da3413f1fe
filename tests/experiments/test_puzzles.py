"""Tests of the search for answers to puzzles that ignore the question."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from experiments.puzzles import page
from tests.conftest import REWARD_PYTHON, ROOT

SEARCH = """
import json, sys
from pathlib import Path
from experiments.puzzles.constants import result_of
print(json.dumps(result_of(sys.argv[1], Path(sys.argv[2]), 6)))
"""


def test_the_page_says_what_the_data_say() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page()


@pytest.mark.slow
def test_a_search_finds_what_was_recorded(tmp_path: Path) -> None:
    """The same seeds give the same result."""
    done = subprocess.run(
        [REWARD_PYTHON, "-W", "ignore", "-c", SEARCH, "letter_counting", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    recorded = json.loads(page.DATA.read_text(encoding="utf-8"))["tasks"]["letter_counting"]
    assert json.loads(done.stdout.splitlines()[-1]) == recorded
