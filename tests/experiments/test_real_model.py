"""Tests of experiments/real_model: its page has the table of the recorded runs, and every arm's options are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from experiments.real_model.__main__ import ARMS, FORK_ARMS, FORKED, SETTING, on_topic, summary, table  # noqa: E402
from nemo_prorl.config.compose import compose  # noqa: E402
from nemo_prorl.run_folder.storage import replace_text  # noqa: E402

FOLDER = ROOT / "experiments"


def test_the_page_has_the_table_of_the_recorded_runs() -> None:
    page = (FOLDER / "real_model.md").read_text(encoding="utf-8").splitlines()
    results = json.loads((FOLDER / "real_model" / "results.json").read_text(encoding="utf-8"))
    assert results.keys() <= ARMS.keys() | {f"{FORKED}, {name}" for name in FORK_ARMS}
    assert [line for line in table(results) if line not in page] == []


def test_a_run_is_summed_up(tmp_path: Path) -> None:
    def step(number: int, **more: float) -> dict[str, Any]:
        values = {"objective/entropy": 1.0 * number, "response/tokens_mean": 10.0, "time/step_s": 4.0}
        return {"step": number, "reward/mean": 0.5, "objective/kl_to_reference": 0.5, **values, **more}

    records = [
        {"step": 0, "validation/score": 0.1},
        *map(step, range(1, 6)),
        step(6, **{"validation/score": 0.25}),
    ]
    samples = [
        {
            "prompt": "Write two short sentences about snow. Use fewer than 12 words.",
            "response": "Snow fell.",
        },
        {
            "prompt": "Write two short sentences about mountains. End with exactly: The end.",
            "response": "The end.",
        },
        {"prompt": "9 - 8 =", "response": "\\boxed{1}"},
    ]
    assert on_topic(samples) == 0.5
    for number in (0, 6):
        kept = samples if number else samples[:1]
        text = "".join(json.dumps(sample) + "\n" for sample in kept)
        replace_text(tmp_path / f"samples/step-{number:08d}-main.jsonl", text)
    assert summary(records, tmp_path) == {
        "held_out": {0: 0.1, 6: 0.25},
        "kl": [0.5],
        "entropy": [2.0, 5.0],
        "length": [10.0, 10.0],
        "on_topic": [1.0, 0.5],
        "step_s": 4.0,
    }


def test_the_options_of_every_arm_are_valid() -> None:
    for overrides in ARMS.values():
        config = compose("smollm2", [*SETTING, *overrides], conf_dir=ROOT / "conf")
        assert config.trainer.num_steps == 24
