"""Costs: the papers' chain costs what it did, and everything else in proportion."""

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_prorl.config import RunConfig, SamplerConfig, TrainerConfig
from nemo_prorl.planning.chain import load_chain, recipe_names
from nemo_prorl.planning.estimate import PAPER_RUNS, Estimate, estimate

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"


def cost(steps: int = 100, num_rollouts: int = 16, longest: int = 8192, prompts: int = 256) -> Estimate:
    trainer = TrainerConfig(num_steps=steps, prompts_per_step=prompts)
    sampler = SamplerConfig(num_rollouts=num_rollouts, max_response_tokens=longest)
    return estimate(RunConfig(trainer=trainer, sampler=sampler), None)


def test_tokens_by_hand() -> None:
    """2 steps x 256 prompts x 16 rollouts x half of 8192 tokens."""
    assert cost(steps=2).response_tokens == 2 * 256 * 16 * 4096


def test_the_recipe_costs_what_the_paper_says() -> None:
    """16,000 GPU hours; the calibration's own table and conf/stage/ tell the same story."""
    chain = load_chain(recipe_names(CONF_DIR), [], config_name="train", conf_dir=CONF_DIR)
    total = Estimate()
    for config in chain:
        total += estimate(config, None)
    assert total.gpu_hours == pytest.approx(16_000)
    assert total.num_steps == sum(steps for steps, _, _ in PAPER_RUNS)


def test_the_speed_is_a_plausible_one() -> None:
    """A step of 32 GPUs takes about a quarter of an hour: 16,000 GPU hours over more than 2,000 steps."""
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
    both = cost(steps=30) + cost(steps=70)
    assert both == replace(cost(steps=100), gpu_hours=both.gpu_hours)
    assert both.gpu_hours == pytest.approx(cost(steps=100).gpu_hours)
