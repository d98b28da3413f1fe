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
from nemo_prorl.config import RunConfig, SamplerConfig, TrainerConfig

CONF_DIR = Path(__file__).resolve().parents[3] / "conf"


def cost(steps: int = 100, num_rollouts: int = 16, longest: int = 8192, prompts: int = 256) -> Cost:
    trainer = TrainerConfig(num_steps=steps, prompts_per_step=prompts)
    sampler = SamplerConfig(num_rollouts=num_rollouts, max_response_tokens=longest)
    return estimate(RunConfig(trainer=trainer, sampler=sampler), None)


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


def test_the_speed_is_a_plausible_one() -> None:
    """16,000 GPU hours over more than 2,000 steps: a step of 32 GPUs takes about a quarter of an hour."""
    minutes = cost(steps=1).gpu_hours / 32 * 60
    assert 7 < minutes < 15


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        ({"steps": 200}, 2),
        ({"num_rollouts": 32}, 2),
        ({"prompts": 512}, 2),
        ({"longest": 16384}, 2),
    ],
)
def test_costs_are_in_proportion(change: dict[str, int], factor: float) -> None:
    assert cost(**change).gpu_hours == pytest.approx(factor * cost().gpu_hours)


def test_costs_add_up() -> None:
    assert cost(steps=2).response_tokens == 2 * 256 * 16 * 4096, "of half of 8,192 tokens each"
    both = cost(steps=30) + cost(steps=70)
    assert both == replace(cost(steps=100), gpu_hours=both.gpu_hours)
    assert both.gpu_hours == pytest.approx(cost(steps=100).gpu_hours)
