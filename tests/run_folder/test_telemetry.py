"""Where metrics go: metrics.jsonl, loggers, and the lines of the terminal."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ExpManagerConfig, RunConfig, TrainerConfig
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.storage import STEP_FOLDERS, replace_text, step_files
from nemo_prorl.run_folder.telemetry import COLUMNS, Progress, RunLog, Telemetry
from nemo_prorl.types import RunState


def record(step: int, stage: str = "main", **numbers: float) -> dict[str, Any]:
    return {"step": step, "stage": stage, "num_resets": 0, **numbers}


def telemetry(
    folder: Path, *, num_steps: int = 10, state: RunState | None = None, **options: Any
) -> Telemetry:
    return Telemetry(
        RunConfig(
            exp_manager=ExpManagerConfig(explicit_log_dir=str(folder), **options),
            trainer=TrainerConfig(num_steps=num_steps),
        ),
        log=RunLog(folder, speaks=True),
        state=state or RunState(stage="main"),
    )


def test_what_is_said_is_kept_with_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("one", "two\nthree"):
        RunLog(tmp_path, speaks=True).say(words)
    RunLog(tmp_path, speaks=True).note("four")
    RunLog(tmp_path, speaks=False).say("five")
    assert capsys.readouterr().err == "one\ntwo\nthree\n"
    lines = [line.split(" ", 1) for line in (tmp_path / "run.log").read_text().splitlines()]
    assert [words for _, words in lines] == ["one", "two", "three", "four"]
    for time, _ in lines:
        assert datetime.fromisoformat(time).utcoffset() == timedelta(0)


def test_a_resumed_run_takes_back_every_kind_of_file(tmp_path: Path) -> None:
    for folder in STEP_FOLDERS:
        for step in (2, 4, 6):
            replace_text(step_files(tmp_path, folder).path(step), "")
    with telemetry(tmp_path, state=RunState(stage="main", step=4)):
        assert {step for folder in STEP_FOLDERS for step, _ in step_files(tmp_path, folder).all()} == {2, 4}


NUMBERS = {
    "reward/mean": 0.12345,
    "reward/pass_rate": 0.5,
    "objective/kl_to_reference": 0.00123,
    "objective/entropy": 0.98765,
    "response/tokens_mean": 33.333,
    "dynamic_sampling/informative_share": 0.625,
    "throughput/tokens_per_s": 1234.5,
    "time/step_s": 7.25,
}


def test_a_step_is_one_line_for_the_eye(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = telemetry(tmp_path, num_steps=40)
    log.step(record(7, **NUMBERS), stage_step=7)
    printed = capsys.readouterr()
    assert printed.out == "", "standard output belongs to results"
    title, line = printed.err.splitlines()
    assert line.split() == [
        "7/40", "0.123", "0.500", "0.0012", "0.988", "33.3", "0.62", "1234", "7.2", "4", "min",
    ]  # fmt: skip
    assert title.split() == ["step", *(column.title for column in COLUMNS), "left"]
    for name, value in zip(title.split()[1:-1], line.split()[1:-2], strict=True):
        end = line.index(f" {value}") + len(value)
        assert title.index(f" {name}") + len(name) == end, f"{name} is aligned"


@pytest.mark.parametrize("value", [0.0, -0.123456, 1.0, 98765.4321, -98765.4, 1.5e9, 1e-9, -3e20])
@pytest.mark.parametrize("num_steps", [1, 3000, 20000])
def test_progress_fits_into_80_columns_whatever_the_numbers(value: float, num_steps: int) -> None:
    record = dict.fromkeys((column.metric for column in COLUMNS), value)
    title, line = Progress(num_steps).lines(record, num_steps)
    assert len(title) == len(line) < 80
    cells = line.split()
    assert len(cells) == len(COLUMNS) + 3, "no two columns run into each other"
    assert all(float(cell) == pytest.approx(value, rel=0.5, abs=0.5) for cell in cells[1:-2])


def test_the_title_comes_back_every_twenty_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = telemetry(tmp_path, num_steps=60)
    for step in range(1, 46):
        log.step(record(step, **NUMBERS), stage_step=step)
    lines = capsys.readouterr().err.splitlines()
    assert [index for index, line in enumerate(lines) if "entropy" in line] == [0, 21, 42]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({}, ""),  # before the first step of a run without held-out prompts
        ({"reward/mean": 0.5}, "1/10 0.500 - - - - - - - 0 s"),  # a run without a KL penalty has no KL
        ({"validation/score": 0.5, "validation/pass_at_1": 0.25, "validation/math/score": 0.75,
          "validation/logic/score": 0.25}, "held out at step 1: reward 0.500 (logic 0.250, math 0.750)"),
        ({"validation/score": 0.5, "validation/domain_mean_score": 0.4},
         "held out at step 1: mean over domains 0.400, over prompts 0.500 ()"),
        ({"objective/loss": float("nan")}, "not finite after step 1: objective/loss"),
    ],
)  # fmt: skip
def test_what_a_record_has_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], numbers: dict[str, float], said: str
) -> None:
    telemetry(tmp_path).step(record(1, **numbers), stage_step=1)
    lines = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    assert lines[-1:] == ([said] if said else [])
    (kept,) = read_metrics(tmp_path / "metrics.jsonl")
    assert kept == record(1, **{name: value for name, value in numbers.items() if isfinite(value)})
