"""Small tables of metrics as input for the reset controller, and its decisions on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

from nemo_prorl.config import (
    ControllerAction,
    ControllerConfig,
    ControllerMode,
    WatchLimitsConfig,
    WatchPatienceConfig,
)
from nemo_prorl.training.control.controller import Decision, ResetController, WatchingController
from nemo_prorl.training.control.watches import WATCHES

Record = dict[str, Any]
NAMES = [watch.name for watch in WATCHES]


def columns(first_step: int = 1, stage: str = "main", **series: Sequence[float | None]) -> list[Record]:
    """Returns one record per step from series of equal length. A double underscore stands for a slash; None leaves the
    metric out. Every mean score gets the standard deviation of scores of 0 and 1, unless it has one.

    Example: columns(objective__kl_to_reference=[0.1, None]) == [ {"step": 1, "stage": "main",
    "objective/kl_to_reference": 0.1}, {"step": 2, "stage": "main"}]
    """
    (length,) = {len(values) for values in series.values()}
    records = [
        {"step": first_step + index, "stage": stage}
        | {
            name.replace("__", "/"): values[index]
            for name, values in series.items()
            if values[index] is not None
        }
        for index in range(length)
    ]
    return [spread_of_zero_and_one(record) | record for record in records]


def spread_of_zero_and_one(record: Record) -> Record:
    means = {
        name.replace("domain_mean_", ""): mean for name, mean in record.items() if name.endswith("score")
    }
    return {f"{name}_std": sqrt(max(0.0, mean * (1 - mean))) for name, mean in means.items()}


def only(
    watch: str,
    *,
    action: ControllerAction | None = None,
    patience: int | None = None,
    limit: float | None = None,
    cooldown: int = 0,
    interval: int = 0,
    **limits: Any,
) -> ControllerConfig:
    """Returns a controller in mode automatic that ignores all other watches. limits: others of controller.limits."""
    config = ControllerConfig(
        mode=ControllerMode.automatic,
        cooldown=cooldown,
        interval=interval,
        patience=WatchPatienceConfig(**({} if patience is None else {watch: patience})),
        limits=WatchLimitsConfig(**limits, **({} if limit is None else {watch: limit})),
        **{name: ControllerAction.ignore for name in NAMES if name != watch},  # type: ignore[arg-type]
    )
    if action is not None:
        setattr(config, watch, action)
    return config


def decisions(records: Iterable[Mapping[str, Any]], config: ControllerConfig) -> list[tuple[int, str, str]]:
    """Returns (step, action, signal) of each decision."""
    controller = ResetController(config)
    made = [controller.observe(record) for record in records]
    return [(one.step, one.action.name, one.signal) for one in made if one is not None]


def watched(records: Iterable[Mapping[str, Any]], config: ControllerConfig) -> list[Decision]:
    """Returns what a controller would have decided on a run, with the resets that the run really made."""
    controller = WatchingController(config)
    return [decision for record in records if (decision := controller.observe(record))]
