"""Tests of experiments/low_rank: its page has the table of the recorded runs, and every arm's options are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nemo_prorl.config.compose import compose  # noqa: E402
from experiments.low_rank.__main__ import ARMS, SETTING, summary, table  # noqa: E402

FOLDER = ROOT / "experiments"


def test_the_page_has_the_table_of_the_recorded_runs() -> None:
    page = (FOLDER / "low_rank.md").read_text(encoding="utf-8").splitlines()
    results = json.loads((FOLDER / "low_rank" / "results.json").read_text(encoding="utf-8"))
    assert results.keys() <= ARMS.keys()
    assert [line for line in table(results) if line not in page] == []


def test_a_run_is_summed_up() -> None:
    records = [
        {"step": 0, "validation/score": 0.1},
        {"step": 1, "objective/kl_to_reference": 0.25, "time/step_s": 3.0},
        {"step": 2, "objective/kl_to_reference": 0.5, "time/step_s": 5.0, "controller": {"action": "reset"}},
        {"step": 3, "validation/score": 0.2, "time/step_s": 4.0},
    ]
    assert summary(records) == {"held_out": [0.1, 0.2], "kl": 0.5, "resets": 1, "step_s": 4.0}


def test_the_options_of_every_arm_are_valid() -> None:
    for overrides in ARMS.values():
        config = compose("stories", [*SETTING, "model.path=m", *overrides], conf_dir=ROOT / "conf")
        assert config.trainer.num_steps == 24
    assert len(set(ARMS.values())) == 16
