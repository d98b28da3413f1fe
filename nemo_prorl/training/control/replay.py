"""Shows what the reset controller would have decided on a recorded run. Open loop: the recorded run does not change.

Pure functions of the records in metrics.jsonl, and the text of `python -m nemo_prorl replay`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_prorl.config import ControllerAction, ControllerConfig
from nemo_prorl.run_folder.events import Event, events_in
from nemo_prorl.run_folder.validation_metrics import VALIDATION
from nemo_prorl.training.control.controller import Decision, WatchingController
from nemo_prorl.training.control.signals import EFFECTIVE, ENTROPY, HELD_OUT, KL, LENGTH, NO_EOS, ROLLOUTS

OPEN_LOOP = (
    "Open loop: the recorded run went on without these decisions, so from the first one on this shows where the "
    "signals fire, not what training would have become."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A recorded run with the controller's decisions on it."""

    records: Sequence[Mapping[str, Any]]
    events: list[Event]
    """Events that really happened, without the beginning of the first stage."""
    decisions: list[Decision]


def replay(records: Sequence[Mapping[str, Any]], config: ControllerConfig) -> Replay:
    """Passes the records to a controller one by one, including the resets that the run really made."""
    controller = WatchingController(config)
    decisions = [decision for record in records if (decision := controller.observe(record))]
    return Replay(records=records, events=events_in(records)[1:], decisions=decisions)


def describe(result: Replay, config: ControllerConfig) -> str:
    """Describes for the terminal what happened, what the controller would have done, and what it could not judge."""
    first, last = result.records[0]["step"], result.records[-1]["step"]
    lines = [f"{len(result.records)} records, steps {first} to {last}", "", "What happened:"]
    lines += [f"  step {event.step:>5}  {event.text}" for event in result.events] or ["  no reset, one stage"]
    lines += ["", "What the controller would have done:"]
    for decision in result.decisions:
        lines.append(f"  step {decision.step:>5}  {decision.action.name:<9}  {decision.signal}")
        lines.append(f"              {decision.reason}")
    if not result.decisions:
        lines.append("  nothing")
    metrics = {key for record in result.records for key in record}
    metrics |= {VALIDATION for key in metrics if key.startswith(VALIDATION)}
    unjudged = [
        f"{signal} ({metric.rstrip('/')})"
        for signal, metric in judged_metrics(config).items()
        if getattr(config, signal).action is not ControllerAction.ignore and metric not in metrics
    ]
    if unjudged:
        lines += ["", f"Never measured in this run, so never judged: {', '.join(unjudged)}."]
    return "\n".join([*lines, "", OPEN_LOOP])


def judged_metrics(config: ControllerConfig) -> dict[str, str]:
    """Returns the metric that each signal uses, or the beginning of its name."""
    held_out = HELD_OUT[config.validation_mean]
    return {
        "sampler_mismatch": ROLLOUTS,
        "entropy_collapse": ENTROPY,
        "entropy_runaway": ENTROPY,
        "no_eos": NO_EOS,
        "response_length": LENGTH,
        "futile_resets": held_out,
        "validation_drop": VALIDATION,
        "kl_spike": KL,
        "validation_plateau": held_out,
        "effective_sample": EFFECTIVE,
    }
