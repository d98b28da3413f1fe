"""What a stage will probably reach, from its records: for `forecast`, `status` and the report. No part of a run reads
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from nemo_prorl.algorithm.forecast import WINDOW, Forecast, forecast
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN, MEASUREMENT
from nemo_prorl.training.control.health import RECENT

METRIC = "reward/pass_rate"
"""Has a value at every step. A held-out reward has one in twenty, too few for a curve."""
NUM_VALIDATIONS = 3
"""Newest validations whose mean difference to the pass rate moves a forecast to the held-out reward."""
CALIBRATION = (
    "How far to trust it: on 27 recorded stages of 80 steps, from their first 30, 40 and 60 %, the 80 % interval held "
    "74 % of the ends. The forecast was off by 0.036 on average, the newest steps by 0.047."
)
"""tests/report/test_forecast.py computes these numbers from experiments/boundary/results.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Forecasts of the newest stage's pass rate."""

    stage: str
    step: int
    """Newest step of the run."""
    since: int
    """Step of the stage's last reset, or of its start."""
    end: int | None
    """Step after which the stage ends, if it takes all of its steps; None where it has, or that is not recorded."""
    held_out: float | None
    """The newest held-out reward, mean over domains."""
    shift: float
    """How far the held-out reward is above the pass rate, in the newest validations since `since`."""
    step_hours: float
    """Wall time times ranks of a step, with its share of validations and saves; 0 if it is not recorded."""
    on_gpus: bool
    values: Sequence[tuple[int, float]]
    """Pairs (steps since `since`, pass rate)."""

    def at(self, steps: Sequence[int]) -> list[Forecast]:
        return forecast(self.values, [step - self.since for step in steps])

    def hours(self, num_steps: int) -> str:
        """Returns the cost of that many steps, such as `12 GPU h`."""
        return f"{num_steps * self.step_hours:,.3g} {'GPU h' if self.on_gpus else 'CPU rank h'}"


def outlook_of(run: RunFolder) -> Outlook:
    """Returns what the records of the newest stage since its last reset say."""
    stage, step = str(run.last["stage"]), int(run.last["step"])
    start = next((int(record["step"]) - 1 for record in run.steps if record["stage"] == stage), step)
    since = max([start, *(event.step for event in run.resets if event.stage == stage)])
    points = [
        (int(record["step"]), float(record[METRIC]))
        for record in run.steps
        if record["step"] > since and isfinite(record.get(METRIC, float("nan")))
    ]
    gaps, held_out = [], None
    for record in run.validations:
        before = [value for at, value in points if at <= record["step"]][-WINDOW:]
        is_comparable = record.get(MEASUREMENT) == run.validations[-1].get(MEASUREMENT)
        if before and DOMAIN_MEAN in record and is_comparable:
            held_out = float(record[DOMAIN_MEAN])
            gaps.append(held_out - fmean(before))
    end = start + int(run.options.get("trainer.num_steps", 0))
    return Outlook(
        stage=stage,
        step=step,
        since=since,
        end=end if end > step else None,
        held_out=held_out,
        shift=fmean(gaps[-NUM_VALIDATIONS:] or [0.0]),
        step_hours=run.recent_step_s(RECENT) * run.num_ranks / 3600,
        on_gpus=run.on_gpus,
        values=[(at - since, value) for at, value in points],
    )


def forecast_lines(outlook: Outlook, ahead: int) -> list[str]:
    """Returns lines for the terminal: the end of the stage, the next `ahead` steps and their cost, and how far to trust
    it; or why it cannot be told."""
    one, since = outlook, outlook.step - outlook.since
    of = f" of {one.end}" if one.end else ""
    lines = [f"{one.stage} after step {one.step}{of}, {since} steps after its last reset or its start."]
    steps = [*([one.end] if one.end else []), one.step + ahead]
    found = one.at(steps)
    if found[0].reason:
        return [*lines, f"  Cannot tell: {found[0].reason}."]
    recent = fmean(value for _, value in one.values[-WINDOW:])
    lines.append(f"  pass rate in training: {recent:.3f} in the newest {WINDOW} steps")
    in_order = sorted(zip(steps, found, strict=True), key=lambda pair: pair[0])
    lines += [f"    at step {step}: {_interval(each)}" for step, each in in_order]
    if one.held_out is not None:
        lines.append(f"  held out: {one.held_out:.3f} at the last validation")
        lines.append(
            f"    at step {steps[0]}: {_interval(found[0], one.shift)}, if it stays {one.shift:+.3f} from the pass rate"
        )
    low, middle, high = found[-1].gain
    lines.append(
        f"  the next {ahead} steps: {middle:+.3f} ({low:+.3f} to {high:+.3f}, 80 %) for {one.hours(ahead)}"
    )
    return [*lines, f"  {CALIBRATION}"]


def forecast_sentence(outlook: Outlook) -> str:
    """Returns the forecast of the stage's end in one line; empty if there is none."""
    if not outlook.end:
        return ""
    (found,) = outlook.at([outlook.end])
    cost = outlook.hours(outlook.end - outlook.step)
    told = f"forecast: pass rate {_interval(found)} at step {outlook.end}, {found.gain[1]:+.3f} for {cost}"
    return "" if found.reason else told


def _interval(found: Forecast, shift: float = 0.0) -> str:
    """Returns median and interval, moved by `shift` but kept within 0 and 1."""
    low, middle, high = (min(1.0, max(0.0, each + shift)) for each in (found.low, found.middle, found.high))
    return f"{middle:.3f} ({low:.3f} to {high:.3f}, 80 %)"
