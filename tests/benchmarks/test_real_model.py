"""Tests of the job that trains a real model on a GPU: its options are known, and its curve is that of the records."""

from __future__ import annotations

import pytest

from benchmarks.real_model import DRY_RUN, ON_GPU, arguments, lines, summarise
from nemo_prorl.config import Precision
from nemo_prorl.config.compose import compose
from tests.conftest import ROOT


@pytest.mark.parametrize("options", [ON_GPU, DRY_RUN])
def test_the_options_are_those_of_the_demo_on_another_machine(options: tuple[str, ...]) -> None:
    config = compose("smollm2", list(options), conf_dir=ROOT / "conf")
    assert (
        config.trainer.learning_rate == compose("smollm2", [], conf_dir=ROOT / "conf").trainer.learning_rate
    )
    assert (config.model.precision is Precision.bf16) is (options is ON_GPU)


def test_options_of_the_run_come_before_and_after_the_jobs_own() -> None:
    given = arguments().parse_intermixed_args(["model", "a=1", "--minutes", "3", "b=2"])
    assert (given.minutes, given.overrides) == (3, ["a=1", "b=2"])


def test_the_curve_has_every_validation_and_the_medians_leave_out_the_first_step() -> None:
    records = [
        {"step": 0, "validation/score": 0.2},
        {"step": 1, "reward/mean": 0.1, "time/step_s": 90.0},
        *({"step": step, "reward/mean": 0.1, "time/step_s": float(step)} for step in (2, 3)),
        {"step": 4, "reward/mean": 0.1, "time/step_s": 4.0, "validation/score": 0.5},
    ]
    summary = summarise(records)
    assert summary["num_steps"] == 4
    assert summary["held_out"] == {0: 0.2, 4: 0.5}
    assert summary["medians"]["time/step_s"] == 3.0
    shown = list(lines(summary))
    assert f"     4  0.500  {'#' * 20}" in shown
    assert max(map(len, shown)) <= 80
