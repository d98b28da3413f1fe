"""Warnings of the report in the training log: when they come, once, and never against the run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import RunConfig, StageConfig, ValidationConfig
from nemo_prorl.report.health import checks_of
from nemo_prorl.run_folder.run import read_run
from nemo_prorl.training.control.alarms import CALM, PATIENCE, Alarms
from tests.report.made_up_runs import made_up_records, write_run
from tests.training.conftest import MIXED, WRONG, make_prompt
from tests.training.scripted_run import Run

CLIPS = {"objective/clip_high_fraction": 0.3}
Records = list[dict[str, Any]]


def config(stage: str = "run1") -> RunConfig:
    return RunConfig(stage=StageConfig(name=stage), validation=ValidationConfig(interval=20))


def records(num_steps: int = 120, **bad: tuple[int, int]) -> Records:
    """A healthy run of one stage; `bad`: (first, last) step in which it clips too much."""
    made = made_up_records(["run1"], num_steps, 0, 20)
    first, last = bad.get("clips", (0, -1))
    return [record | CLIPS if first <= record["step"] <= last else record for record in made]


def said(alarms: Alarms, given: Iterable[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(int(record["step"]), line) for record in given for line in alarms.observe(record)]


def test_a_healthy_run_says_nothing() -> None:
    assert said(Alarms(config()), records(300)) == []


def test_an_alarm_is_said_once_and_its_end_once() -> None:
    (begin, alarm), (end, passed) = said(Alarms(config()), records(clips=(31, 60)))
    assert 31 < begin < 50
    assert alarm.startswith(f"alarm after step {begin}: Clipping: 1")
    assert "of the recent tokens are clipped: the updates of a step are too large" in alarm
    assert 60 < end < 60 + 2 * CALM
    assert passed.startswith(f"passed after step {end}: Clipping: ")


def test_a_first_step_that_is_an_exception_is_no_alarm() -> None:
    first, *others = [record for record in records(40) if "reward/mean" in record]
    spike = first | {"objective/clip_high_fraction": 0.15}
    alarms = Alarms(config())
    assert said(alarms, [records()[0], spike]) == []
    assert alarms._num_bad["Clipping"] == 1 < PATIENCE
    assert said(alarms, others) == []


def test_noise_is_said_after_the_first_step() -> None:
    noise = [record | {"objective/entropy": 5.5, "reward/pass_rate": 0.04} for record in records(10)]
    ((step, line),) = said(Alarms(config()), noise)
    assert step == 1
    assert line.startswith(
        "alarm after step 1: Temperature: Rollouts at temperature 1.2 have 5.5 nats of entropy"
    )
    assert "4% are right" in line
    assert line.endswith("Lower sampler.temperature, such as to 0.8.")


def test_a_value_that_wavers_about_its_threshold_is_one_alarm() -> None:
    made = [
        record | {"dynamic_sampling/informative_share": 0.2 if record["step"] % 8 < 5 else 0.33}
        for record in records(400)
    ]
    lines = said(Alarms(config()), made)
    assert [line.split(":")[1] for _, line in lines] == [" Yield of dynamic sampling"]


@pytest.mark.medium
@pytest.mark.parametrize("resumed_at", [1, 20, 33, 34, 35, 45, 61, 75, 99, 119])
def test_a_resumed_run_says_what_an_uninterrupted_one_says(resumed_at: int) -> None:
    made = records(clips=(31, 60))
    whole = said(Alarms(config()), made)
    alarms = Alarms(config())
    before = said(alarms, made[:resumed_at])
    alarms = Alarms(config())
    said(alarms, made[:resumed_at])  # what Telemetry reads from the file when a run goes on
    assert before + said(alarms, made[resumed_at:]) == whole


def test_the_report_agrees_with_what_was_said(tmp_path: Path) -> None:
    """The same functions judge the same records: what stands in the log stands on the page."""
    write_run(tmp_path / "run", num_stages=1, is_done=False)
    path = tmp_path / "run" / "metrics.jsonl"
    import json

    made = [json.loads(line) | CLIPS for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in made))
    warned = [check for check in checks_of(read_run(tmp_path / "run")) if not check.is_fine]
    alarms = Alarms(config())
    lines = [line for _, line in said(alarms, made)]
    assert [line.split(": ")[1] for line in lines] == [check.title for check in warned] == ["Clipping"]


def test_a_record_that_cannot_be_judged_stops_nothing() -> None:
    alarms = Alarms(config())
    (line,) = alarms.observe({"step": 3, "reward/mean": 0.5})
    assert line.startswith("the checks cannot judge the record of step 3 (KeyError: 'stage')")
    assert said(alarms, records(clips=(1, 60))) == []


@pytest.mark.medium
def test_in_a_run_it_is_in_the_log_and_stays_said_through_a_resume(tmp_path: Path) -> None:
    """The loop, scripted engines, real checkpoints: most prompts are all wrong, so most of the sampling is wasted."""
    prompts = [make_prompt(f"p{index}", MIXED if index % 8 == 0 else WRONG) for index in range(2000)]
    run = Run(tmp_path, prompts=prompts, num_steps=8, every=4, max_rounds=100)
    run.fit()
    assert alarms_in(tmp_path) == ["Yield of dynamic sampling"]
    resumed = run.resume(num_steps=14)
    assert resumed.state.step == 8
    resumed.fit()
    assert [record["step"] for record in run.records if "reward/mean" in record] == [*range(1, 15)]
    assert alarms_in(tmp_path) == ["Yield of dynamic sampling"], "once, not again by the next process"


def alarms_in(folder: Path) -> list[str]:
    lines = (folder / "run.log").read_text().splitlines()
    return [line.split(": ")[1] for line in lines if " alarm after step " in line]
