"""Tests that the results of an evaluation name their graders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_prorl.config import RewardConfig, RunConfig, ValidationConfig
from nemo_prorl.evaluation.run import _write, graded_by, measured
from tests.evaluation.test_comparison import result
from tests.training.conftest import MIXED, make_prompt


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (RewardConfig(), ""),
        (RewardConfig(function=["a.py:f"]), "Graded by a.py:f with weight 1 (reward.function)"),
        (
            RewardConfig(function=["a.py:f"], weights={"f": 0.5, "service": 2.0}),
            "Graded by a.py:f with weight 0.5, and the reward service with weight 2 (reward.function)",
        ),
    ],
)
def test_scores_of_functions_do_not_pass_for_those_of_the_benchmarks(
    tmp_path: Path, reward: RewardConfig, said: str
) -> None:
    one = result("aime2024", [8, 0])
    _write(tmp_path, {"graded_by": graded_by(reward)}, {one.name: one}, "model")
    table, record = (
        (tmp_path / "results.md").read_text(),
        json.loads((tmp_path / "results.json").read_text()),
    )
    assert record["graded_by"] in table
    assert record["graded_by"] in record["note"]
    assert record["graded_by"].startswith(said)
    assert bool(record["graded_by"]) == ("do not compare with the paper's" in table) == bool(said)


def test_what_is_measured_has_its_prompts_by_benchmark_and_no_number_of_samples() -> None:
    few, many = (RunConfig(validation=ValidationConfig(num_rollouts=number)) for number in (1, 256))
    prompts = [make_prompt("p", MIXED), make_prompt("q", MIXED)]
    assert measured(few, "aime2024", prompts, "1") == (named := measured(many, "aime2024", prompts, "1"))
    assert list(named) == [
        "validation.temperature", "validation.top_p", "sampler.max_response_tokens", "graders",
        "prompts of aime2024",
    ]  # fmt: skip
    assert named["graders"] == "1"
    assert named["prompts of aime2024"] != measured(few, "aime2024", prompts[:1], "1")["prompts of aime2024"]
