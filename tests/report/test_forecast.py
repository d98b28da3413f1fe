"""Tests of the forecast of a run: its calibration, what it reads, and what command, status and report show of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from nemo_prorl.__main__ import main
from nemo_prorl.algorithm.forecast import WINDOW, forecast
from nemo_prorl.report import pictures
from nemo_prorl.report.charts import plotly_figure
from nemo_prorl.report.drawings import draw
from nemo_prorl.report.forecast import CALIBRATION, METRIC, Outlook, forecast_lines, outlook_of
from nemo_prorl.report.panels import sections
from nemo_prorl.report.status import read_status, status_lines
from nemo_prorl.run_folder.run import read_run
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN, PROMPT_MEAN

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "boundary" / "results.json"
LENGTH = 80
(PASS_RATE,) = (panel for section in sections() for panel in section.panels if panel.has_forecast)


@pytest.mark.medium
def test_the_calibration_that_is_printed_is_that_of_the_recorded_runs() -> None:
    """A forecast sees the first part of a stage, and its end is judged."""
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    curves = [
        one["training"]["curves"][METRIC]
        for seeds in runs.values()
        for one in seeds.values()
        if one["training"]
    ]
    stages = [curve[at : at + LENGTH] for curve in curves for at in range(0, len(curve) - LENGTH + 1, LENGTH)]
    held, errors, of_newest = [], [], []
    for share in (0.3, 0.4, 0.6):
        for stage in stages:
            seen, end = stage[: int(share * LENGTH)], float(np.mean(stage[-WINDOW:]))
            (found,) = forecast(list(enumerate(seen, start=1)), [LENGTH])
            assert not found.reason
            held.append(found.low <= end <= found.high)
            errors.append(abs(found.middle - end))
            of_newest.append(abs(float(np.mean(seen[-WINDOW:])) - end))
    coverage, error, newest = float(np.mean(held)), float(np.mean(errors)), float(np.mean(of_newest))
    assert 0.7 <= coverage <= 0.9
    assert error < 0.85 * newest
    assert f"on {len(stages)} recorded stages of {LENGTH} steps" in CALIBRATION
    assert f"held {coverage:.0%}".replace("%", " %") in CALIBRATION
    assert f"off by {error:.3f} on average, the newest steps by {newest:.3f}." in CALIBRATION


def write_stage(
    folder: Path, num_steps: int, *, end: int = 100, resets: tuple[int, ...] = (), change: Any = None
) -> Path:
    """Writes a run on two GPUs at 90 s a step, whose pass rate rises; it is validated every 10 steps."""
    random, records = np.random.default_rng(1), []
    for step in range(1, num_steps + 1):
        rate = 0.2 + 0.4 / (1 + 30 / step) + float(random.normal(0, 0.02))
        record: dict[str, Any] = {"step": step, "stage": "run1", "reward/mean": rate, METRIC: rate}
        record |= {"num_resets": sum(reset <= step for reset in resets), "time/step_s": 90.0}
        if step % 10 == 0:
            record |= {DOMAIN_MEAN: rate + 0.1, PROMPT_MEAN: rate + 0.1}
        records.append(record | (change(record) if change else {}))
    (folder / "stages").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "stages" / "run1.yaml").write_text(yaml.safe_dump({"trainer": {"num_steps": end}}))
    start = {"stage": "run1", "began": 0.0, "seen": 90.0 * num_steps, "num_ranks": 2, "on_gpus": True}
    (folder / "starts.json").write_text(json.dumps([start]))
    return folder


def outlook(folder: Path) -> Outlook:
    return outlook_of(read_run(folder))


def test_command_and_status_show_the_same_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_stage(tmp_path / "run", 60)
    assert main(["forecast", str(folder), "--steps", "20"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert main(["forecast", str(folder), "--steps", "20", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    later, at_end = known["forecasts"]
    assert (later["step"], at_end["step"]) == (80, 100)
    assert at_end["cost_hours"] == pytest.approx(40 * 90 * 2 / 3600)
    interval = f"{at_end['middle']:.3f} ({at_end['low']:.3f} to {at_end['high']:.3f}, 80 %)"
    assert f"at step 100: {interval}" in said
    low, middle, high = later["gain"]
    assert f"the next 20 steps: {middle:+.3f} ({low:+.3f} to {high:+.3f}, 80 %) for 1 GPU h" in said
    assert " ".join(CALIBRATION.split()) in said
    moved = f"{at_end['middle'] + known['shift']:.3f} ({at_end['low'] + known['shift']:.3f}"
    assert f"at step 100: {moved}" in said
    (line,) = [line for line in status_lines(read_status(folder)) if "forecast" in line]
    assert line == f"  forecast: pass rate {interval} at step 100, {at_end['gain'][1]:+.3f} for 2 GPU h"


def test_the_held_out_reward_is_the_pass_rate_moved(tmp_path: Path) -> None:
    """By the mean difference of the newest three validations to the ten steps before each."""
    one = outlook(write_stage(tmp_path / "run", 60))
    rates = [value for _, value in one.values]
    gaps = [rates[step - 1] + 0.1 - float(np.mean(rates[step - 10 : step])) for step in (40, 50, 60)]
    assert one.shift == pytest.approx(float(np.mean(gaps)), rel=1e-12)
    assert one.held_out == rates[59] + 0.1


def test_nothing_before_the_last_reset_is_read(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> dict[str, Any]:
        return {METRIC: 0.99, DOMAIN_MEAN: 0.0} if record["step"] <= 30 else {}

    clean = outlook(write_stage(tmp_path / "clean", 60, resets=(20, 30)))
    assert (clean.since, clean.values[0][0], len(clean.values)) == (30, 1, 30)
    assert clean == outlook(write_stage(tmp_path / "dirty", 60, resets=(20, 30), change=change))


def test_no_value_after_a_step_is_read(tmp_path: Path) -> None:
    """The forecast after step 40 is that of a run that ended there."""
    long, short = outlook(write_stage(tmp_path / "long", 60)), outlook(write_stage(tmp_path / "short", 40))
    seen = replace(long, step=40, values=long.values[:40])
    assert seen.at([100]) == short.at([100])


@pytest.mark.parametrize(("num_steps", "resets", "since"), [(5, (), 5), (60, (55,), 5), (60, (60,), 0)])
def test_too_little_is_said(
    num_steps: int, resets: tuple[int, ...], since: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_stage(tmp_path / "run", num_steps, resets=resets)
    sentence = (
        f"Cannot tell: {since} steps since the last reset or the stage's start, and a forecast needs 12."
    )
    assert main(["forecast", str(folder)]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert main(["forecast", str(folder), "--json"]) == 0
    assert all(found["reason"] for found in json.loads(capsys.readouterr().out)["forecasts"])
    assert read_status(folder).forecast == ""
    (drawing,) = draw(PASS_RATE, [read_run(folder)])
    assert drawing.band is None


def test_a_stage_that_is_over_has_no_end_to_tell(tmp_path: Path) -> None:
    one = outlook(write_stage(tmp_path / "run", 100))
    assert one.end is None
    assert not any("at step 100:" in line for line in forecast_lines(one, 50))
    assert read_status(tmp_path / "run").forecast == ""


def test_values_that_are_missing_or_nan_are_left_out(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> dict[str, Any]:
        return {METRIC: float("nan")} if record["step"] % 3 == 0 else {}

    one = outlook(write_stage(tmp_path / "run", 60, change=change))
    assert len(one.values) == 40
    assert one.at([100])[0].low < one.at([100])[0].high


def test_the_report_draws_the_band_to_the_end_of_the_stage(tmp_path: Path) -> None:
    folder = write_stage(tmp_path / "run", 60)
    run = read_run(folder)
    (drawing,) = draw(PASS_RATE, [run])
    assert drawing.band is not None
    assert (drawing.band.steps[0], drawing.band.steps[-1]) == (60, 100)
    (end,) = outlook_of(run).at([100])
    assert (drawing.band.low[-1], drawing.band.high[-1]) == (end.low, end.high)
    trace = plotly_figure(drawing)["data"][-1]
    assert trace["fill"] == "toself"
    assert max(trace["x"]) == 100
    assert f"{end.low:.3g} to {end.high:.3g} at step 100" in drawing.description
    pictures.picture([drawing], tmp_path / "rate.png", title="band")
    compared = draw(PASS_RATE, [run, read_run(write_stage(tmp_path / "other", 60))])
    assert all(one.band is None for one in compared)
