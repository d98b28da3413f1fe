"""Tests of `make findings`, `make stories` and `make recipes`: every arm is a configuration, the tables agree with the
records, and a mistake is reported before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.cluster.plan.differences import flattened
from nemo_prorl.commands.parsing import composed
from nemo_prorl.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import experiments.findings.__main__ as findings  # noqa: E402
from experiments.findings.__main__ import (  # noqa: E402
    COMPARISONS,
    RECIPES,
    SECOND_STAGE,
    STALLED,
    STORIES,
    TINY,
    Family,
    stages_of,
    summaries,
    table,
)  # fmt: skip
from experiments.training_runs import COLOURS, ROLLOUTS, draw, with_rollouts  # noqa: E402

FAMILIES = (TINY, SECOND_STAGE, STALLED, STORIES, RECIPES)


def records(rewards: list[float], num_rollouts: float) -> Any:
    """Returns records with a validation every two steps and `num_rollouts` per step, half of them of each domain."""
    found: list[dict[str, Any]] = []
    for step in range(2 * len(rewards) - 1):
        found.append({"step": step})
        if step:
            found[-1] |= {"objective/entropy": 0.1 * step, "objective/kl_to_reference": 0.2}
            found[-1] |= {f"reward/{domain}/num_rollouts": num_rollouts / 2 for domain in ("math", "logic")}
        if step % 2 == 0:
            found[-1]["validation/score"] = rewards[step // 2]
    return with_rollouts(found)


def numbers_of(runs: Mapping[str, Any]) -> Any:
    return summaries(runs, TINY.columns)


def configurations(family: Family, arm: str, num_steps: int | None = None) -> list[RunConfig]:
    """Returns the configuration of each stage of an arm, with seed 7."""
    stages = stages_of(family, arm, 7, num_steps, Path("x"))
    return [composed_once(family.config_name, *overrides) for overrides in stages.values()]


@cache
def composed_once(config_name: str, *overrides: str) -> RunConfig:
    return composed(config_name, overrides)


@pytest.mark.medium
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: next(iter(family.arms)))
def test_every_arm_is_a_configuration_that_changes_something(family: Family) -> None:
    configs = [configurations(family, arm)[-1] for arm in family.arms]
    assert len(set(map(str, configs))) == len(configs)
    assert {(config.seed, config.trainer.num_steps) for config in configs} == {(7, family.num_steps)}
    arm = next(iter(family.arms))
    assert {config.trainer.num_steps for config in configurations(family, arm, 5)} == {5}


ABLATIONS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "5.1, temperature early in training": ("temperature", {"sampler.temperature": ("1.2", "0.6")}),
    "5.1, temperature late in training": ("late_temperature", {"sampler.temperature": ("1.2", "0.6")}),
    "5.2, upper clip": ("clip", {"algorithm.clip_high": ("0.4", "0.2")}),
    "5.2, lower clip": ("low_clip", {"algorithm.clip_low": ("0.2", "0.1")}),
    "5.2, dynamic sampling": ("sampling", {"dynamic_sampling.enabled": ("true", "false")}),
    "5.3, a reset": (
        "reset",
        {"controller.mode": ("manual", "interval"), "controller.interval": ("0", "7")},
    ),
    "5.3, going on without a reset": (
        "going_on",
        {"stage.reset_reference": ("true", "false"), "stage.reset_optimizer": ("true", "false")},
    ),
    "5.4, KL penalty": ("kl", {"algorithm.kl_beta": ("0.0001", "0")}),
    "5.4, against the collapse of entropy": (
        "entropy",
        {
            "algorithm.kl_beta": ("0", "0", "0.0001", "0"),
            "algorithm.entropy_bonus": ("fixed", "fixed", "fixed", "adaptive"),
            "algorithm.entropy_target": ("0.2", "0.2", "0.2", "0.3"),
            "algorithm.clip_high": ("0.4", "0.2", "0.2", "0.2"),
            "algorithm.aggregation": ("token_mean", *["sequence_mean_token_mean"] * 3),
            "dynamic_sampling.enabled": ("true", "false", "false", "false"),
        },
    ),
}
"""Ablation of arXiv 2507.12507 -> (comparison, options in which its arms differ -> their values, arm by arm)."""


@pytest.mark.medium
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_the_papers_ablations_have_their_arms(ablation: str) -> None:
    """The table is the papers', not the benchmark's: an arm that is lost there is missed here."""
    name, expected = ABLATIONS[ablation]
    comparison = COMPARISONS[name]
    arms = [flattened(configurations(comparison.family, arm)[-1]) for arm in comparison.arms.values()]
    assert all(arm.keys() == arms[0].keys() for arm in arms)
    values = {key: tuple(arm[key] for arm in arms) for key in arms[0]}
    assert {key: found for key, found in values.items() if len(set(found)) > 1} == expected


def test_a_second_stage_continues_the_baseline() -> None:
    (baseline,) = configurations(TINY, "baseline")
    for arm in SECOND_STAGE.arms:
        first, second = configurations(SECOND_STAGE, arm)
        assert (first.stage.name, second.stage.name, second.stage.parent) == ("first", "second", "first")
        assert (first.algorithm, first.trainer, first.sampler) == (
            baseline.algorithm, baseline.trainer, baseline.sampler,
        )  # fmt: skip
        assert second.algorithm == baseline.algorithm
        assert first.exp_manager.create_checkpoint_callback, "the second stage begins at its checkpoint"


def test_the_page_names_every_comparison() -> None:
    page = (ROOT / "docs" / "findings.md").read_text()
    assert [name for name in COMPARISONS if f"`{name}`" not in page and f"make {name}" not in page] == []


def test_every_arm_is_compared_and_has_a_folder_and_a_colour_of_its_own() -> None:
    defined = [(family, arm) for family in FAMILIES for arm in family.arms]
    compared = [(one.family, arm) for one in COMPARISONS.values() for arm in one.arms.values()]
    assert all(pair in defined for pair in compared)
    assert all(pair in compared for pair in defined)
    assert len({arm for _, arm in defined}) == len(defined)
    assert max(len(one.arms) for one in COMPARISONS.values()) <= len(set(COLOURS))


def test_arms_are_compared_after_as_many_rollouts_as_the_cheapest_of_their_seed() -> None:
    numbers = numbers_of(
        {"dear": [records([0.0, 0.4, 0.8], 100.0)], "cheap": [records([0.0, 0.3, 0.5], 60.0)]}
    )
    dear, cheap = (numbers[arm][0]["columns"] for arm in ("dear", "cheap"))
    assert (dear["held-out reward at the end"], dear["rollouts sampled"]) == (0.8, 400)
    # 240 of 400: a fifth of the way from 0.4 to 0.8
    assert dear["at equal rollouts"] == pytest.approx(0.48)
    assert cheap["at equal rollouts"] == cheap["held-out reward at the end"] == 0.5
    assert cheap["mean after step 0"] == pytest.approx(0.4)
    assert cheap["entropy, last steps"] == pytest.approx(0.25)  # steps 1 to 4


def test_an_arm_with_fewer_seeds_is_not_compared() -> None:
    run = records([0.1, 0.2], 10.0)
    with pytest.raises(ValueError, match="shorter"):
        numbers_of({"a": [run, run], "b": [run]})


def test_the_table_has_the_spread_and_each_seeds_difference_and_resets() -> None:
    runs = {
        "a": [records([0.1, 0.5], 10.0), records([0.1, 0.7], 10.0)],
        "b": [records([0.1, 0.6], 10.0), records([0.1, 0.65], 10.0)],
    }
    runs["b"][1][1]["controller"] = {"action": "reset"}
    numbers = numbers_of(runs)
    head, _, first, second = table(numbers).splitlines()
    assert head.endswith("| end against a, by seed | resets after step |")
    assert first.startswith("| a | 0.600 (0.500 to 0.700) |")
    assert second.endswith("| +0.100, -0.050 | 1 |")
    assert numbers["b"][1]["decisions"] == [{"step": 1, "action": "reset"}]


@pytest.mark.medium
@pytest.mark.parametrize("name", ["sampling", "stories"])
def test_a_figure_is_drawn_of_runs_that_end_at_different_steps(name: str, tmp_path: Path) -> None:
    runs = {
        arm: [records([0.1, 0.5], 10.0), records([0.1, 0.7, 0.8], 12.0)] for arm in COMPARISONS[name].arms
    }
    draw(tmp_path / "x.png", "title", COMPARISONS[name].panels, runs)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert ROLLOUTS in runs[next(iter(runs))][0][0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "clap"], "invalid choice: 'clap'"),
        (["--only", "recipes"], "recipes needs a pretrained model: write make recipes MODEL=DIR"),
        (
            ["--only", "stories", "--model", "nowhere"],
            "nowhere holds no config.json: write make stories MODEL=DIR",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["findings.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        findings.main()
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
