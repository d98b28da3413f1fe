"""Shows where the reset controller would have acted on a recorded run, as text and as a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_prorl.commands.parsing import Parser, composed, parse_overrides
from nemo_prorl.config import ConfigError, ControllerMode


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    parser = Parser(
        "replay",
        __doc__,
        "KEY=VALUE   an option of the controller, such as controller.kl_spike.ratio=3 (`train --help` lists them), or\n"
        "            stage=NAME for the options of a stage. controller.mode=manual is read as automatic.",
    )
    parser.add_argument("metrics", type=Path, metavar="METRICS.jsonl", help="metrics of a run, or its folder")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draws signals, events and decisions")
    given = parse_overrides(parser, arguments)
    path: Path = given.metrics / "metrics.jsonl" if given.metrics.is_dir() else given.metrics
    records = _read(path)
    if given.plot is not None and given.plot.suffix != ".png":
        raise ConfigError(f"--plot {given.plot} must end in .png: write a file such as replay.png.")
    if given.plot is not None and not given.plot.absolute().parent.is_dir():
        raise ConfigError(f"--plot {given.plot} is in a folder that does not exist: make it first.")
    config = composed(given.config_name, given.overrides).controller
    if config.mode is ControllerMode.manual:
        config.mode = ControllerMode.automatic
    from nemo_prorl.replay import describe, replay

    result = replay(records, config)
    print(f"{path}: {describe(result, config)}")
    if given.plot is not None:
        from nemo_prorl.replay.figure import draw_replay

        draw_replay(result, given.plot, title=f"replay of {path} (open loop)")
        print(f"\nwrote {given.plot}")
    return 0


def _read(path: Path) -> list[dict[str, Any]]:
    """Reads a run's records. Raises ConfigError unless there are some and each has a step and a stage."""
    from nemo_prorl.training.telemetry import read_metrics

    if not path.is_file():
        raise ConfigError(
            f"METRICS={path} does not exist: write the metrics.jsonl of a run, or the run's folder."
        )
    try:
        records = read_metrics(path)
    except UnicodeDecodeError:
        records = []
    for number, record in enumerate(records, start=1):
        if not (isinstance(record, dict) and isinstance(record.get("step"), int) and "stage" in record):
            raise ConfigError(
                f"line {number} of METRICS={path} is no record of a run: it must have a step and a stage, as in "
                f"{json.dumps({'step': 1, 'stage': 'main'})}."
            )
    if not records:
        raise ConfigError(f"METRICS={path} holds no record: write the metrics.jsonl of a run that has begun.")
    return records
