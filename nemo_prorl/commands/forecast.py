"""Forecasts what a run's stage will reach, with an interval, and what the steps until then cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser

DESCRIPTION = """\
Fits a sigmoid to the pass rate of the training rollouts since the stage's last reset, and prints the end of the \
stage and the next steps with intervals of 80 %. Where the records do not allow that, it says why. It only reads \
files; the reset controller does not use it. Exit code: 0, also if it cannot tell."""


def main(arguments: Sequence[str]) -> int:
    """Prints the forecast and returns exit code 0."""
    parser = Parser("forecast", __doc__, DESCRIPTION)
    parser.path("run_dir", "RUN_DIR", "folder of a run")
    parser.number("--steps", "N", "steps to look ahead (default: 100)", default=100)
    parser.flag("--json", "prints a JSON object")
    options = parser.parse_args(arguments)
    from nemo_prorl.report.forecast import forecast_lines, outlook_of
    from nemo_prorl.run_folder.run import read_run

    outlook = outlook_of(read_run(options.run_dir))
    if not options.json:
        show(forecast_lines(outlook, options.steps))
        return 0
    steps = [outlook.step + options.steps, *([outlook.end] if outlook.end else [])]
    forecasts = [
        # JSON has no NaN.
        {"step": step, "reason": found.reason}
        if found.reason
        else {"step": step, "cost_hours": (step - outlook.step) * outlook.step_hours, **asdict(found)}
        for step, found in zip(steps, outlook.at(steps), strict=True)
    ]
    known = {key: value for key, value in asdict(outlook).items() if key != "values"}
    show([json.dumps(known | {"forecasts": forecasts}, indent=1)], exact=True)
    return 0
