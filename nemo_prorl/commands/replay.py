"""Shows when the reset controller, with these options, would have acted on a recorded run.

The run went on without these decisions, so after the first one they show where watches fire, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser, composed, parse_overrides
from nemo_prorl.config import ConfigError, ControllerAction, ControllerConfig, ControllerMode


def main(arguments: Sequence[str]) -> int:
    """Passes recorded metrics to a controller, prints its decisions, and returns exit code 0."""
    parser = Parser(
        "replay",
        __doc__,
        "KEY=VALUE   an option of the controller, such as controller.limits.kl_spike=3 (`train --help` lists them), or "
        "stage=NAME for the options of a stage. The controller is replayed even if it is switched off.",
    )
    parser.path("metrics", "METRICS.jsonl", "metrics of a run, or its folder")
    given = parse_overrides(parser, arguments)
    path: Path = given.metrics / "metrics.jsonl" if given.metrics.is_dir() else given.metrics
    from nemo_prorl.run_folder.metrics_file import read_records

    records, num_damaged = read_records(path) if path.is_file() else ([], 0)
    if not records:
        raise ConfigError(
            f"METRICS={path} holds no line with a step and a stage: write the metrics.jsonl, or the folder, of a run."
        )
    config = composed(given.config_name, given.overrides).controller
    if config.mode is ControllerMode.manual:
        config.mode = ControllerMode.automatic
    damaged = f", and {num_damaged} damaged line(s), which are left out" if num_damaged else ""
    show([f"{path}: {len(records)} records{damaged}", *_decisions(records, config)])
    return 0


def _decisions(records: Sequence[Mapping[str, Any]], config: ControllerConfig) -> list[str]:
    """Returns lines with the decisions, and with the watches that could not be judged."""
    from nemo_prorl.training.control.controller import WatchingController
    from nemo_prorl.training.control.watches import WATCHES

    controller = WatchingController(config)
    made = [decision for record in records if (decision := controller.observe(record))]
    lines = [f"step {one.step:>5}  {one.action.name:<9}  {one.signal}: {one.reason}" for one in made]
    metrics = tuple({key for record in records for key in record})
    unjudged = [
        f"{watch.name} ({watch.metric.rstrip('/')})"
        for watch in WATCHES
        if getattr(config, watch.name) is not ControllerAction.ignore
        and not any(key.startswith(watch.metric) for key in metrics)
    ]
    said = [f"never measured, so never judged: {', '.join(unjudged)}"] if unjudged else []
    return [*(lines or ["no decision"]), *said]
