"""Tests of costs: the papers' chain costs what they report, and everything else is in proportion."""

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_prorl.cluster.plan.chain import load_chain, paper_stages
from nemo_prorl.cluster.plan.estimate import (
    PAPER_RUNS,
    TOKENS_PER_GPU_S,
    Cost,
    estimate,
)
from nemo_prorl.cluster.scale.known import PAPER_MODEL, shape_of
from nemo_prorl.config import RunConfig, SamplerConfig, TrainerConfig

CONF_DIR = Path(__file__).resolve().parents[3] / "conf"


@pytest.mark.medium
def test_the_recipe_costs_what_the_paper_says() -> None:
    """16,000 GPU hours; the calibration's table agrees with conf/stage/."""
    chain = load_chain(paper_stages(CONF_DIR), [], config_name="train", conf_dir=CONF_DIR)
    total = Cost()
    for config in chain:
        total += estimate(config, None)
    assert total.gpu_hours == pytest.approx(16_000)
    assert total.num_steps == sum(steps for steps, _, _ in PAPER_RUNS) == 2_100


def test_the_speeds_by_hand() -> None:
    """If all responses were the longest: ((1,400 x 16 + 500 x 32) x 8,192 + 200 x 16 x 16,384) x 256 prompts = 93.95 B
    tokens."""
    longest = 256 * ((1_400 * 16 + 500 * 32) * 8_192 + 200 * 16 * 16_384)
    assert longest == 93_952_409_600
    assert pytest.approx(longest / 2 / 16_000 / 3_600) == TOKENS_PER_GPU_S
    assert round(TOKENS_PER_GPU_S) == 816


def test_a_stages_cost_by_hand_for_a_model_of_another_size() -> None:
    """100 steps of 256 prompts x 16 rollouts x half of 8,192 tokens."""
    model = replace(shape_of(PAPER_MODEL), num_layers=2 * 28)
    trainer = TrainerConfig(num_steps=100, prompts_per_step=256)
    sampler = SamplerConfig(num_rollouts=16, max_response_tokens=8192)
    found = estimate(RunConfig(trainer=trainer, sampler=sampler), model)
    assert found.response_tokens == 100 * 256 * 16 * 4096
    size = model.num_parameters / 1.777e9
    assert found.gpu_hours == pytest.approx(found.response_tokens / TOKENS_PER_GPU_S / 3600 * size)
