"""Tests of experiments/kl_weighted: its page has the tables of the recorded runs, and its score the six rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from experiments.kl_weighted.__main__ import score, table  # noqa: E402

FOLDER = ROOT / "experiments" / "kl_weighted"


def test_the_page_has_the_tables_of_the_recorded_runs() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    runs = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    assert [line for line in table(runs) if line not in page] == []


def test_the_score_is_the_share_of_the_rules() -> None:
    assert score("She was sad, and alone.") == 0.0
    happy = "The happy dog took a good look at a happy friend. "
    assert score(happy + "Oh no! Go on. So too. To do. Oh so. No. Go.") == 1.0
