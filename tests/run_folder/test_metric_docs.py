"""Every metric that a run records is documented, and everything that is documented is recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nemo_prorl.config import AlgorithmConfig
from nemo_prorl.report import panels
from nemo_prorl.run_folder.metric_docs import METRICS, metric_doc
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.run import OTHER
from tests.training.conftest import make_prompt
from tests.training.scripted_run import Run

ELSEWHERE = {
    "objective/entropy_target",  # tests/training/test_trainer.py
    OTHER,  # tests/run_folder/test_run.py: the report computes it
    "controller", "went_back_to_step",  # tests/training/control/test_controller.py, test_reset_to_best.py
    # tests/training/test_own_reward.py
    "lora/GROUP/relative_change",  # tests/engines/megatron/test_low_rank.py
    "memory/PHASE_gib",  # tests/training/sampling/test_grading.py: only a GPU has it
    "reward/part_FUNCTION", "validation/part_FUNCTION", "validation/DOMAIN/part_FUNCTION",
}  # fmt: skip
"""Metrics that a run records only in special cases, which these tests cover."""


@pytest.fixture
def recorded(tmp_path: Path) -> set[str]:
    """Returns the names of the metrics of a run that validates, also early, with a KL penalty and a canary."""
    run = Run(tmp_path, interval=2, num_steps=2, algorithm=AlgorithmConfig(kl_beta=0.1))
    run.config.validation.early = True
    run.canary, run.sources = make_prompt("canary"), {"script": "script"}
    run.fit()
    return set().union(*read_metrics(tmp_path / "metrics.jsonl"))


def test_what_a_run_records_is_documented(recorded: set[str]) -> None:
    assert len(recorded) > 80
    assert sorted(name for name in recorded if not metric_doc(name)) == []


def test_what_is_documented_is_recorded(recorded: set[str]) -> None:
    patterns = {name: re.sub("[A-Z]+", "[^/]+", name) for name in METRICS}
    found = {name for name, pattern in patterns.items() if any(re.fullmatch(pattern, r) for r in recorded)}
    assert METRICS.keys() - found == ELSEWHERE


def test_what_the_report_draws_is_documented() -> None:
    drawn = {
        metric.replace("{}", "1")
        for section in panels.sections()
        if section.name not in ("difficulty", "remeasured")  # which have files of their own
        for panel in section.panels
        for metric in panel.series
    }
    assert sorted(name for name in drawn if not metric_doc(name)) == []


def test_metrics_that_a_pattern_stands_for_have_its_meaning() -> None:
    assert metric_doc("validation/pass_at_16") == METRICS["validation/pass_at_K"]
    assert metric_doc("validation/math/score") == METRICS["validation/DOMAIN/score"]
    assert metric_doc("validation/math/rewards") == metric_doc("objective/LOSS") == ""
