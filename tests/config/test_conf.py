"""Tests that every file of conf/ composes, says why it exists, and repeats no default."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_prorl.config import RunConfig
from nemo_prorl.config.compose import SCHEMA, compose, to_dict
from nemo_prorl.config.help import conf_groups, conf_names

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"
FILES = sorted(CONF_DIR.rglob("*.yaml"))
CHOICES = [
    f"{group}={name}"
    for group in conf_groups(CONF_DIR)
    if group != "recipe"  # test_recipes.py composes every recipe on every configuration
    for name in conf_names(CONF_DIR, group)
]


@pytest.mark.parametrize("name", conf_names(CONF_DIR))
def test_every_configuration_composes(name: str) -> None:
    compose(name, [], conf_dir=CONF_DIR)


@pytest.mark.medium
@pytest.mark.parametrize("name", conf_names(CONF_DIR))
@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_on_every_configuration(name: str, choice: str) -> None:
    """Stages that begin with the best checkpoint need held-out prompts, which `small` leaves to the user."""
    compose(name, [choice, "data.validation=[held_out.parquet]"], conf_dir=CONF_DIR)


@pytest.mark.parametrize("name", conf_names(CONF_DIR))
def test_configurations_say_only_what_differs(name: str) -> None:
    """What a configuration builds on comes first: the schema with its defaults, or another configuration."""
    written = yaml.safe_load((CONF_DIR / f"{name}.yaml").read_text())
    base = written.pop("defaults")[0]
    below = RunConfig() if base == SCHEMA else compose(base, [], conf_dir=CONF_DIR)
    assert _repeated(written, to_dict(below)) == []


@pytest.mark.parametrize("name", conf_names(CONF_DIR, "stage"))
def test_stages_are_named_after_their_file_and_continue_an_existing_one(name: str) -> None:
    stage = compose("train", [f"stage={name}"], conf_dir=CONF_DIR).stage
    assert stage.name == name
    assert stage.parent in ("", *conf_names(CONF_DIR, "stage"))


@pytest.mark.parametrize(
    ("name", "choices", "bounds"),
    [
        ("train", [], (4_096, 8_192)),
        ("train", ["stage=run8"], (4_096, 16_384)),
        ("train", ["suite=validation"], (4_096, 8_192)),
        ("train", ["suite=paper"], (4_096, 32_768)),
        ("train", ["suite=reasoning_boundary"], (4_096, 32_768)),
        ("train", ["suite=smoke"], (80, 128)),
        ("laptop", [], (80, 128)),
        ("small", [], (0, 0)),
        ("small_cpu", [], (0, 0)),
        ("stories", ["model.path=x"], (32, 96)),
    ],
)
def test_how_long_prompts_and_responses_may_be(
    name: str, choices: list[str], bounds: tuple[int, int]
) -> None:
    """Recorded results hold for these values; the limit of responses does not depend on the prompt's length."""
    sampler = compose(name, choices, conf_dir=CONF_DIR).sampler
    assert (sampler.max_prompt_tokens, sampler.max_response_tokens) == bounds
    assert sampler.context_tokens == sum(bounds)


def _repeated(written: dict[str, Any], defaults: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in written.items():
        if isinstance(value, dict) and defaults[key]:
            found += _repeated(value, defaults[key], f"{prefix}{key}.")
        elif value == defaults[key]:
            found.append(prefix + key)
    return found
