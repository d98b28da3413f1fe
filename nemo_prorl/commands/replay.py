"""Shows where the reset controller would have acted on a recorded run, as text and as a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser, composed, parse_overrides
from nemo_prorl.config import ConfigError, ControllerMode
from nemo_prorl.run_folder.storage import check_writable_file


def main(arguments: Sequence[str]) -> int:
    """Replays the controller on recorded metrics, prints its decisions, and returns exit code 0."""
    parser = Parser(
        "replay",
        __doc__,
        "KEY=VALUE   an option of the controller, such as controller.kl_spike.ratio=3 (`train --help` lists them), or "
        "stage=NAME for the options of a stage. The controller is replayed even if it is switched off.",
    )
    parser.path("metrics", "METRICS.jsonl", "metrics of a run, or its folder")
    parser.path("--plot", "FILE.png", "draws signals, events and decisions")
    given = parse_overrides(parser, arguments)
    path: Path = given.metrics / "metrics.jsonl" if given.metrics.is_dir() else given.metrics
    from nemo_prorl.run_folder.metrics_file import is_record, read_metrics

    if not path.is_file():
        raise ConfigError(
            f"METRICS={path} does not exist: write the metrics.jsonl of a run, or the folder of a run."
        )
    records = read_metrics(path)
    for number, record in enumerate(records, start=1):
        if not is_record(record):
            raise ConfigError(
                f"line {number} of METRICS={path} is no record of a run: it must have a step and a stage, as in "
                f"{json.dumps({'step': 1, 'stage': 'main'})}."
            )
    if not records:
        raise ConfigError(f"METRICS={path} holds no record: write the metrics.jsonl of a run that has begun.")
    if given.plot is not None:
        if given.plot.suffix != ".png":
            raise ConfigError(f"--plot {given.plot} must end in .png: write a file such as replay.png.")
        if not given.plot.absolute().parent.is_dir():
            raise ConfigError(f"--plot {given.plot} is in a folder that does not exist: make it first.")
        check_writable_file(f"--plot {given.plot}", given.plot)
    config = composed(given.config_name, given.overrides).controller
    if config.mode is ControllerMode.manual:
        config.mode = ControllerMode.automatic
    from nemo_prorl.training.control.replay import describe, replay

    result = replay(records, config)
    show([f"{path}: {describe(result, config)}"])
    if given.plot is not None:
        from nemo_prorl.report.replay_figure import draw_replay

        draw_replay(result, given.plot, title=f"replay of {path} (open loop)")
        show(["", f"wrote {given.plot}"])
    return 0
