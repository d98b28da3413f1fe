"""Tests conf/stories.yaml on the pretrained model: the prompts and the training of experiments/findings, two steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.findings.stories_prompts import write_prompts
from tests.training.tiny import run_forked

pytestmark = pytest.mark.slow


def test_two_steps_and_a_reset_through_the_normal_train_command(
    real_data: Path, service: str, tmp_path: Path
) -> None:
    write_prompts(tmp_path / "runs" / "stories" / "data")
    arguments = [
        "train", "--config-name", "stories", f"model.path={real_data / 'stories260K'}", f"reward.urls=[{service}]",
        "controller.mode=interval", "controller.interval=1", "trainer.num_steps=2", "trainer.prompts_per_step=4",
        "sampler.num_rollouts=8", "validation.max_prompts=16",
    ]  # fmt: skip
    run_forked(arguments, folder=tmp_path)
    folder = tmp_path / "runs" / "stories" / "run"
    before, first, last = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    # Stories follow some of the six rules by chance: more than none, and fewer than after training.
    assert 0.05 < before["validation/score"] < 0.35
    assert first["dynamic_sampling/num_kept"] == 4
    assert first["num_resets"] == 1
    assert last["objective/kl_at_sampling"] == 0.0
    texts = [json.loads(line) for line in (folder / "samples" / "step-00000000-stories.jsonl").open()]
    assert len({text["uid"] for text in texts}) == 16
    assert sum(len(text["response"].split()) for text in texts) / 16 > 20
