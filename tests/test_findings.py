"""`make findings`: every arm is a configuration, and the tables say what the runs' records say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nemo_prorl.commands.parsing import composed

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def findings() -> Iterator[ModuleType]:
    """The script's folder is on the path while it runs."""
    sys.path.insert(0, str(BENCHMARKS))
    import findings

    yield findings
    sys.path.remove(str(BENCHMARKS))


def records(findings: ModuleType, rewards: list[float], num_rollouts: float) -> Any:
    """A validation every two steps; `num_rollouts` a step, half of them of each domain."""
    from training_runs import with_rollouts

    found: list[dict[str, Any]] = []
    for step in range(2 * len(rewards) - 1):
        found.append({"step": step})
        if step:
            found[-1] |= {
                "reward/mean": 0.5,
                "objective/entropy": 0.1 * step,
                "objective/kl_to_reference": 0.2,
            }
            found[-1] |= {f"reward/{domain}/num_rollouts": num_rollouts / 2 for domain in ("math", "logic")}
        if step % 2 == 0:
            found[-1]["validation/reward"] = rewards[step // 2]
    return with_rollouts(found)


def test_every_arm_is_a_configuration_that_changes_something(findings: ModuleType) -> None:
    configs = {
        arm: str([composed("laptop", [*findings.SETTING, *options]) for options in findings.stages_of(arm)])
        for arm in (*findings.ARMS, *findings.SECOND_STAGES)
    }
    assert len(set(configs.values())) == len(configs)
    assert {arm for one in findings.COMPARISONS.values() for arm in one.arms.values()} == set(configs)


def test_a_second_stage_goes_on_from_the_baseline(
    findings: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[str, list[str]]] = []

    def train(folder: Path, url: str, overrides: list[str], *, stage: str) -> Any:
        calls.append((stage, overrides))
        return [{"folder": folder.name, "stage": stage}]

    monkeypatch.setattr(findings, "train", train)
    assert findings.run(tmp_path, "url", "second_stage_no_reset", 7, 5) == [
        {"folder": "second_stage_no_reset-7", "stage": "second"}
    ]
    (first, of_first), (second, of_second) = calls
    assert (first, second) == ("first", "second")
    baseline, early, late = (
        composed("laptop", options)
        for options in ([*findings.SETTING, "seed=7", "trainer.num_steps=5"], of_first, of_second)
    )
    assert (early.stage.name, late.stage.name, late.stage.parent) == ("first", "second", "first")
    assert early.algorithm == late.algorithm == baseline.algorithm
    assert early.exp_manager.create_checkpoint_callback, "the second stage begins at its checkpoint"
    assert (late.stage.reset_reference, late.stage.reset_optimizer) == (False, False)
    findings.run(tmp_path, "url", "low_clip", 7, 5)
    assert calls[2][0] == ""
    assert composed("laptop", calls[2][1]).algorithm.clip_low == 0.1


def test_arms_are_compared_after_as_many_rollouts_as_the_cheapest_of_their_seed(findings: ModuleType) -> None:
    dear, cheap = ([0.0, 0.4, 0.8], 100.0), ([0.0, 0.3, 0.5], 60.0)
    numbers = findings.summaries({"dear": [records(findings, *dear)], "cheap": [records(findings, *cheap)]})
    (of_dear,), (of_cheap,) = numbers["dear"], numbers["cheap"]
    assert (of_dear["last"], of_dear[findings.ROLLOUTS]) == (0.8, 400)
    assert of_dear["at_equal_rollouts"] == pytest.approx(
        0.48
    )  # 240 of 400: a fifth of the way from 0.4 to 0.8
    assert of_cheap["at_equal_rollouts"] == of_cheap["last"] == 0.5
    assert of_cheap["mean"] == pytest.approx(0.4)
    assert of_cheap["entropy"] == pytest.approx(0.25)  # steps 1 to 4


def test_an_arm_with_fewer_seeds_is_not_compared(findings: ModuleType) -> None:
    run = records(findings, [0.1, 0.2], 10.0)
    with pytest.raises(ValueError, match="shorter"):
        findings.summaries({"a": [run, run], "b": [run]})


def test_the_table_has_the_spread_and_each_seeds_difference(findings: ModuleType) -> None:
    runs = {
        "a": [records(findings, [0.1, 0.5], 10.0), records(findings, [0.1, 0.7], 10.0)],
        "b": [records(findings, [0.1, 0.6], 10.0), records(findings, [0.1, 0.65], 10.0)],
    }
    head, _, first, second = findings.table(findings.summaries(runs)).splitlines()
    assert head.endswith("| end against a, by seed |")
    assert first.startswith("| a | 0.600 (0.500 to 0.700) |")
    assert second.endswith("| +0.100, -0.050 |")
