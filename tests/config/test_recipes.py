"""Tests of what each recipe changes, against a table of its source, of what no recipe may change, and of the
documentation."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from nemo_prorl.cluster.plan.chain import flattened
from nemo_prorl.config import RunConfig
from nemo_prorl.config.compose import compose
from nemo_prorl.config.help import conf_names

ROOT = Path(__file__).resolve().parents[2]
CONF_DIR = ROOT / "conf"
RECIPES = conf_names(CONF_DIR, "recipe")
CONFIGURATIONS = conf_names(CONF_DIR)

ICEPOP = {
    "algorithm.correction_level": "token",
    "algorithm.correction_mode": "mask",
    "algorithm.correction_low": "0.5",
    "algorithm.correction_high": "5",
}
NO_RESETS = {"controller.mode": "manual"}
NO_KL = {"algorithm.kl_beta": "0"}
NO_DUAL_CLIP = {"algorithm.dual_clip": "0"}
DAPO_RAMP = {"shaping.overlong_buffer_share": "0.2", "shaping.overlong_penalty": "0.5"}
PRORL_V2 = {
    "algorithm.advantage": "batch_std",  # Notion page, section 1
    "algorithm.clip_high": "0.28",  # section 2
    **NO_DUAL_CLIP,  # prorlv2.v2.yaml: ratio_clip_c is null
    "algorithm.kl_estimator": "k2",  # section 4
    "algorithm.kl_clamp_log_ratio": "10",  # section 4: clamp(., -10, 10)
    "algorithm.kl_clamp_value": "0",
    **ICEPOP,  # prorlv2.v2.yaml of NeMo RL
    "shaping.termination_factor": "0",  # prorlv2.v2.yaml: stop_properly_penalty_coef
    "shaping.length_penalty.weight": "0.1",
    "controller.interval": "300",  # section 4: 200 to 500
    "controller.reset_optimizer": "false",  # section 4
    "controller.reset_to": "best",  # NVIDIA's blog
    "stage.start_from": "best",
    "stage.reset_optimizer": "false",
}

# What a recipe changes in conf/train.yaml, option by option, from its sources.
EXPECTED: dict[str, dict[str, str]] = {
    "prorl": {},
    "prorl_v2": PRORL_V2,
    "brorl": PRORL_V2,
    "dapo": {
        "algorithm.clip_high": "0.28",  # arXiv 2503.14476 section 4.1
        "algorithm.dual_clip": "10",  # run_dapo_qwen2.5_32b.sh: clip_ratio_c
        **NO_KL,
        **DAPO_RAMP,
        **NO_RESETS,
        "sampler.temperature": "1",  # run_dapo_qwen2.5_32b.sh
    },
    "dr_grpo": {
        "algorithm.advantage": "group_mean",  # arXiv 2503.20783 section 3.2
        "algorithm.aggregation": "sequence_mean_token_sum",
        "algorithm.aggregation_constant": "8192",  # sampler.max_response_tokens
        "algorithm.clip_high": "0.2",
        **NO_DUAL_CLIP,  # PPOArgs of Oat has no such option
        **NO_KL,
        "dynamic_sampling.enabled": "false",
        "sampler.temperature": "1",
        **NO_RESETS,
    },
    "gspo": {
        "algorithm.ratio_level": "sequence",  # arXiv 2507.18071 eq. 7
        "algorithm.clip_low": "0.0003",  # section 5.1
        "algorithm.clip_high": "0.0004",  # section 5.1
        **NO_DUAL_CLIP,  # eq. 5
        "algorithm.aggregation": "sequence_mean_token_mean",
        **NO_KL,
        "dynamic_sampling.enabled": "false",
        **NO_RESETS,
    },
    "cispo": {
        "algorithm.objective": "cispo",  # arXiv 2506.13585 eq. 4
        "algorithm.clip_low": "1",
        "algorithm.clip_high": "5",  # NeMo RL: ratio_clip_max
        **NO_DUAL_CLIP,  # NeMo RL: ratio_clip_c is null
        **NO_KL,
        **DAPO_RAMP,
        "sampler.temperature": "1",
        **NO_RESETS,
    },
    "reinforce_pp": {
        "algorithm.advantage": "batch_std",  # train_reinforce_baseline_hybrid_engine.sh
        "algorithm.clip_high": "0.2",
        **NO_DUAL_CLIP,  # OpenRLHF: --dual_clip is none by default
        "algorithm.kl_beta": "1e-05",
        "algorithm.kl_estimator": "k2",
        **ICEPOP,
        "sampler.temperature": "1",
        **NO_RESETS,
    },
    "rloo": {
        "algorithm.advantage": "leave_one_out",  # arXiv 2402.14740 section 3.2
        "algorithm.clip_high": "0.2",  # RLOOConfig of TRL 1.16: epsilon
        **NO_DUAL_CLIP,  # section 3.1: REINFORCE
        "algorithm.aggregation": "sequence_mean_token_sum",
        "algorithm.kl_beta": "0.05",  # RLOOConfig: beta
        "algorithm.kl_estimator": "k1",
        "algorithm.kl_in": "reward",
        "algorithm.kl_clamp_log_ratio": "0",
        "algorithm.kl_clamp_value": "0",
        "dynamic_sampling.enabled": "false",
        "sampler.temperature": "1",
        "trainer.updates_per_step": "1",
        **NO_RESETS,
    },
    "maxrl": {
        "algorithm.advantage": "maxrl",  # arXiv 2602.02710
        "algorithm.clip_high": "0.2",  # run_qwen3_training.sh: clip_ratio_high
        **NO_KL,
        "dynamic_sampling.enabled": "false",
        "sampler.temperature": "1",
        "trainer.clip_grad": "0.3",  # run_qwen3_training.sh: GRAD_CLIP
        "trainer.updates_per_step": "1",  # ppo_mini_batch_size=train_batch_size
        **NO_RESETS,
    },
    "justrl": {
        "algorithm.clip_high": "0.28",  # arXiv 2512.16649 table 2
        **NO_KL,
        "dynamic_sampling.enabled": "false",
        "sampler.temperature": "1",
        **NO_RESETS,
    },
}

# Sections and options that depend on the machine and the model, which no recipe may change.
SCALE = (
    "model.", "data.", "reward.", "validation.", "seed", "exp_manager.explicit_log_dir", "trainer.num_steps",
    "trainer.prompts_per_step", "trainer.learning_rate", "trainer.warmup_updates", "trainer.micro_batch_tokens",
    "trainer.tensor_parallel", "trainer.pipeline_parallel", "sampler.num_rollouts", "sampler.max_prompt_tokens",
    "sampler.max_response_tokens", "sampler.max_sequences", "sampler.memory_fraction",
)  # fmt: skip


@cache
def composed(*overrides: str, name: str = "train") -> RunConfig:
    return compose(name, overrides, conf_dir=CONF_DIR)


def changes(recipe: str, name: str = "train") -> dict[str, str]:
    """Returns every option that the recipe changes in a configuration, with its value. Some recipes need held-out
    prompts, which `small` leaves to the user."""
    held_out = "data.validation=[held_out.parquet]"
    before = flattened(composed(held_out, name=name))
    after = flattened(composed(f"recipe={recipe}", held_out, name=name))
    return {key: value for key, value in after.items() if value != before.get(key)}


def test_every_recipe_is_expected_and_documented() -> None:
    assert sorted(EXPECTED) == sorted(documented()) == RECIPES


@pytest.mark.medium
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_changes_what_its_source_says_and_nothing_else(recipe: str) -> None:
    assert changes(recipe) == EXPECTED[recipe]


@pytest.mark.medium
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_recipe_touches_the_scale(recipe: str, name: str) -> None:
    assert [key for key in changes(recipe, name) if key.startswith(SCALE)] == []


def test_lengths_and_intervals_follow_the_configuration() -> None:
    laptop = composed("recipe=dr_grpo", name="laptop")
    assert laptop.algorithm.aggregation_constant == laptop.sampler.max_response_tokens
    assert composed("recipe=dr_grpo", "sampler.max_response_tokens=77").algorithm.aggregation_constant == 77
    laptop = composed("recipe=prorl_v2", name="laptop")
    assert laptop.exp_manager.checkpoint_callback_params.every_n_train_steps == laptop.validation.interval


def test_the_command_line_and_the_stage_come_after_the_recipe() -> None:
    assert composed("algorithm.clip_high=0.3", "recipe=dapo").algorithm.clip_high == 0.3
    stage = composed("stage=run4", "recipe=prorl_v2")
    assert stage.stage.reset_optimizer is True
    assert stage.shaping.termination_factor == composed("stage=run4").shaping.termination_factor
    assert stage.algorithm.advantage is composed("recipe=prorl_v2").algorithm.advantage


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_value_says_where_it_is_from(recipe: str) -> None:
    lines = (CONF_DIR / "recipe" / f"{recipe}.yaml").read_text().splitlines()
    values = [line for line in lines if re.match(r"\s*\w+: \S", line)]
    assert [line for line in values if "  # " not in line] == []


# docs/recipes.md


def documented() -> dict[str, dict[str, str]]:
    """Returns the rows of the table of recipes by name, as column -> cell."""
    lines = (ROOT / "docs" / "recipes.md").read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| recipe |"))
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[start:]
        if line.startswith("|")
    ]
    head, rows = table[0], [row for row in table[2:] if len(row) == len(table[0])]
    return {row[0].strip("`"): dict(zip(head, row, strict=True)) for row in rows}


@pytest.mark.medium
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_documented_scale_is_one_that_can_be_trained(recipe: str) -> None:
    """The options that the table lists for recipe=NAME compose, and change only the scale."""
    overrides = re.findall(r"[\w.]+=[\w.-]+", documented()[recipe]["its source's scale"])
    config = composed(f"recipe={recipe}", *overrides)
    assert {key: flattened(config)[key] for key in EXPECTED[recipe] if "constant" not in key} == {
        key: value for key, value in EXPECTED[recipe].items() if "constant" not in key
    }
    for text in overrides:
        key, _, value = text.partition("=")
        assert key.startswith((*SCALE, "trainer.updates_per_step"))
        assert float(flattened(config)[key]) == float(value)


@pytest.mark.parametrize(
    ("recipe", "scale"),
    [
        ("brorl", "sampler.num_rollouts=512 trainer.prompts_per_step=128"),
        (
            "justrl",
            "sampler.num_rollouts=8 sampler.max_response_tokens=15360",
        ),  # arXiv 2512.16649, tables 2 and 4
    ],
)
def test_the_documented_scale_is_the_papers(recipe: str, scale: str) -> None:
    assert {*scale.split()} <= {*re.findall(r"[\w.]+=[\w.-]+", documented()[recipe]["its source's scale"])}
