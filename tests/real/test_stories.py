"""conf/stories.yaml on the pretrained model: the commands that `make stories` is made of, for two steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_steps_and_a_reset_through_the_normal_train_command(real_data: Path, tmp_path: Path) -> None:
    run(ROOT / "benchmarks" / "stories_prompts.py", "runs/stories/data", cwd=tmp_path)
    run(
        "-m", "nemo_prorl", "train", "--config-name", "stories", f"model.path={real_data / 'stories260K'}",
        f"reward.python={ROOT / '.venv-reward/bin/python'}", "controller.mode=interval", "controller.interval=1",
        "trainer.num_steps=2", "trainer.prompts_per_step=4", "sampler.num_rollouts=8", "validation.max_prompts=16",
        cwd=tmp_path,
    )  # fmt: skip
    folder = tmp_path / "runs" / "stories" / "run"
    before, first, last = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    # Stories keep some of the six rules by chance: neither none, nor what training leads to.
    assert 0.05 < before["validation/reward"] < 0.35
    assert first["dynamic_sampling/num_kept"] == 4
    assert first["num_resets"] == 1
    assert last["objective/kl_at_sampling"] == 0.0
    texts = [json.loads(line) for line in (folder / "samples" / "step-00000000.jsonl").open()]
    assert len({text["uid"] for text in texts}) == 16
    assert sum(len(text["response"].split()) for text in texts) / 16 > 20
