"""Small runs for the controller: columns of numbers in, its decisions out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nemo_prorl.config import ControllerAction, ControllerConfig, ControllerMode
from nemo_prorl.training.controller import ResetController
from nemo_prorl.training.signals import SIGNALS

Record = dict[str, Any]


def columns(first_step: int = 1, stage: str = "main", **series: Sequence[float | None]) -> list[Record]:
    """One record a step, all series of equal length. A double underscore stands for a slash; None is no entry.

    Example: columns(objective__kl_to_reference=[0.1, None]) == [
        {"step": 1, "stage": "main", "objective/kl_to_reference": 0.1}, {"step": 2, "stage": "main"}]
    """
    (length,) = {len(values) for values in series.values()}
    return [
        {"step": first_step + index, "stage": stage}
        | {
            name.replace("__", "/"): values[index]
            for name, values in series.items()
            if values[index] is not None
        }
        for index in range(length)
    ]


def only(signal: str, *, cooldown: int = 0, interval: int = 0, **thresholds: Any) -> ControllerConfig:
    """Automatic, with all other signals ignored."""
    config = ControllerConfig(mode=ControllerMode.automatic, cooldown=cooldown, interval=interval)
    for name in SIGNALS:
        section = getattr(config, name)
        if name != signal:
            section.action = ControllerAction.ignore
        else:
            setattr(config, name, type(section)(**thresholds))
    return config


def decisions(records: Iterable[Mapping[str, Any]], config: ControllerConfig) -> list[tuple[int, str, str]]:
    """(step, action, signal) of each."""
    controller = ResetController(config)
    made = [controller.observe(record) for record in records]
    return [(one.step, one.action.name, one.signal) for one in made if one is not None]
