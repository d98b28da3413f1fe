"""Checks whether a run is healthy, from its records; each gives a sentence with numbers. Thresholds are our choice.

The reset controller itself judges what a hard reset could cure (stalled validation, KL, entropy, length), with the
run's own thresholds, so that report and controller never disagree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, median
from typing import Any, TypeVar

from nemo_prorl.config import ControllerConfig, ControllerMode, RatioLevel
from nemo_prorl.replay import replay
from nemo_prorl.report.events import Kind, events_of
from nemo_prorl.report.panels import names_in
from nemo_prorl.report.runs import OUTSIDE_STEP, Run
from nemo_prorl.training.controller import Decision
from nemo_prorl.training.held_out import DOMAIN_MEAN, PROMPT_MEAN
from nemo_prorl.training.signals import FAULTS, WRONG_TENSORS

RECENT = 20
"""Steps that the means of recent values cover."""
LOW_YIELD = 0.25
"""A yield at which a step samples four times what it trains on."""
FAILED_SHARE = 0.001
"""Share of recent rollouts that were not graded; a healthy service has none."""
CLIPPED_SHARE = 0.1
"""Share of recent tokens on which the clip is active."""
EXPOSED_SHARE = 0.2
"""Share of step time spent waiting for grading."""
OVERDUE = 2.0
"""How many validation intervals may pass without a validation before the check warns."""
GRAD_SPIKE = 10.0
"""Times the run's median gradient norm."""

_Config = TypeVar("_Config", bound=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check. `is_fine` false is a warning."""

    title: str
    is_fine: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Held-out reward of a domain, or one of the two means: at the first validation, now, and at its best."""

    domain: str
    first: float
    last: float
    best: float
    best_step: int


def findings_of(run: Run) -> list[Finding]:
    """Returns the findings of all checks that apply, warnings first."""
    findings = [finding for check in CHECKS if (finding := check(run)) is not None]
    return sorted(findings, key=lambda finding: finding.is_fine)


def bests_of(run: Run) -> list[Best]:
    """Returns the values for the mean over domains, the mean over prompts, and the domains by name; empty without
    validation."""
    domains = names_in("validation/{}/reward", run.metrics)
    keys = {"mean over domains": DOMAIN_MEAN, "mean over prompts": PROMPT_MEAN} | {
        domain: f"validation/{domain}/reward" for domain in domains
    }
    bests = []
    for domain, key in keys.items():
        points = [(float(record[key]), int(record["step"])) for record in run.validations if key in record]
        if points:
            best, best_step = max(points, key=lambda point: point[0])
            bests.append(
                Best(domain=domain, first=points[0][0], last=points[-1][0], best=best, best_step=best_step)
            )
    return bests


def wall_s(run: Run) -> float:
    """Seconds of the recorded steps, validations and saves; without startup and repeated steps."""
    return sum(
        float(record.get(key, 0.0)) for record in run.records for key in ("time/step_s", *OUTSIDE_STEP)
    )


def num_tokens(run: Run) -> float:
    """Tokens sampled in training."""
    return sum(float(record.get("throughput/num_tokens", 0.0)) for record in run.records)


def last_decision(run: Run) -> tuple[int, Mapping[str, Any]] | None:
    """Returns (step, decision) of the run's own reset controller."""
    for record in reversed(run.records):
        if isinstance(record.get("controller"), Mapping):
            return int(record["step"]), record["controller"]
    return None


def _recent(run: Run, key: str) -> list[float]:
    return [float(record[key]) for record in run.steps[-RECENT:] if key in record]


def _is_alive(run: Run) -> Finding | None:
    stage, age = str(run.last["stage"]), duration(run.sign_of_life_s)
    text = {
        "failed": f"Stage {stage} failed: {run.failures.get(stage)}",
        "finished": f"Stage {stage} is done ({run.outcomes.get(stage)}).",
        "running": f"The last sign of life is {age} old.",
        "stopped": f"Stage {stage} is not done, and the last sign of life is {age} old. The same command continues it.",
    }[run.status]
    return Finding(title="Progress", is_fine=run.status in ("finished", "running"), text=text)


def _is_whole(run: Run) -> Finding | None:
    if run.num_unread_lines <= 1:  # a line that is still being written
        return None
    return Finding(
        title="Metrics file",
        is_fine=False,
        text=f"{run.num_unread_lines} lines behind step {run.last['step']} cannot be read and are left out: "
        f"a line of {run.folder / 'metrics.jsonl'} is broken.",
    )


def _validates(run: Run) -> Finding | None:
    if not run.validations:
        return Finding(
            title="Validation",
            is_fine=False,
            text="No held-out prompts were ever sampled: set data.validation, or nothing shows whether training helps.",
        )
    since = int(run.last["step"]) - int(run.validations[-1]["step"])
    interval = run.configs.get(str(run.last["stage"]), {}).get("validation.interval", 0)
    is_overdue = bool(interval) and since > OVERDUE * interval
    return Finding(
        title="Validation",
        is_fine=not is_overdue,
        text=f"{len(run.validations)} validations, the last at step {run.validations[-1]['step']:,}"
        + (f": {since} steps ago, where one is due every {interval}." if is_overdue else "."),
    )


def _controller_is_content(run: Run) -> Finding | None:
    decision = _standing_decision(run)
    if decision is None:
        return Finding(
            title="Reset controller",
            is_fine=True,
            text="No signal fires: validation, KL, entropy and length are within its thresholds.",
        )
    return Finding(
        title="Reset controller",
        is_fine=False,
        text=f"In mode automatic it would ask for {decision.action.name.replace('_', ' ')} "
        f"({decision.signal}) at step {decision.step:,}: {decision.reason}",
    )


def _standing_decision(run: Run) -> Decision | None:
    """Returns what the controller in mode automatic decides on the last stage since its last reset; None for nothing.
    Its fault signals have a check of their own."""
    decisions = [decision for decision in _decisions(run) if decision.signal not in FAULTS]
    resets = [event.step for event in events_of(run) if event.kind is Kind.reset]
    is_standing = bool(decisions) and (not resets or decisions[-1].step > resets[-1])
    return decisions[-1] if is_standing else None


def _decisions(run: Run) -> list[Decision]:
    """Returns the decisions of a controller in mode automatic, with the last stage's options, on its records."""
    stage = str(run.last["stage"])
    config = _with_options(ControllerConfig(), run.configs.get(stage, {}), "controller")
    return replay(
        [record for record in run.records if record["stage"] == stage],
        dataclasses.replace(config, mode=ControllerMode.automatic),
    ).decisions


def _with_options(config: _Config, options: Mapping[str, Any], prefix: str) -> _Config:
    """Returns `config` with the values that the run recorded. Ignores options of another version of the trainer."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        default, name = getattr(config, field.name), f"{prefix}.{field.name}"
        if dataclasses.is_dataclass(default):
            values[field.name] = _with_options(default, options, name)
        elif name in options:
            recorded = options[name]
            values[field.name] = type(default)[recorded] if isinstance(default, Enum) else recorded
    return dataclasses.replace(config, **values)


def _samples_usefully(run: Run) -> Finding | None:
    shares = _recent(run, "dynamic_sampling/informative_share")
    if not shares:
        return None
    return Finding(
        title="Yield of dynamic sampling",
        is_fine=fmean(shares) >= LOW_YIELD,
        text=f"{fmean(shares):.0%} of the recent prompts are informative"
        + (
            "."
            if fmean(shares) >= LOW_YIELD
            else ": most of the sampling is wasted. Change the mix of prompts."
        ),
    )


def _grades_everything(run: Run) -> Finding | None:
    failed = sum(_recent(run, "dynamic_sampling/num_failed_rollouts"))
    counts = [key for key in run.last if key.startswith("reward/") and key.endswith("/num_rollouts")]
    graded = sum(sum(_recent(run, key)) for key in counts)
    if not graded:
        return None
    share = failed / (failed + graded)
    return Finding(
        title="Grading",
        is_fine=share <= FAILED_SHARE,
        text=f"{share:.2%} of the recent rollouts were not graded"
        + ("." if share <= FAILED_SHARE else ": look at the reward service's log."),
    )


def _engines_agree(run: Run) -> Finding | None:
    """Applies the controller's signal to the recent steps."""
    values = _recent(run, "sampler/logprob_abs_diff_mean")
    if not values:
        return None
    difference = f"Log-probabilities differ by {fmean(values):.2g} nats a token"
    since = int(run.last["step"]) - RECENT
    mismatches = [one for one in _decisions(run) if one.signal in FAULTS and one.step > since]
    repeated = sum(value > 0 for value in _recent(run, WRONG_TENSORS))
    if mismatches:
        last = mismatches[-1]
        text = f"At step {last.step:,}: {last.reason} The policy trains on another policy's rollouts."
    elif repeated:
        text = f"{difference}. {repeated} recent refits brought wrong tensors and were repeated: run.log names them."
    elif any(_recent(run, "sampler/updates_behind")):
        text = f"{difference}, from weights that are one step old (sampler.ahead)."
    else:
        text = f"{difference}."
    return Finding(title="Sampler and trainer", is_fine=not mismatches and not repeated, text=text)


def _clips_seldom(run: Run) -> Finding | None:
    """Skips runs with ratios of whole responses: GSPO (arXiv 2507.18071, section 5.2) clips a hundred times as many
    tokens as GRPO by design."""
    options = run.configs.get(str(run.last["stage"]), {})
    if options.get("algorithm.ratio_level") == RatioLevel.sequence.name:
        return None
    low, high = _recent(run, "objective/clip_low_fraction"), _recent(run, "objective/clip_high_fraction")
    if not low or not high:
        return None
    share = fmean(low) + fmean(high)
    return Finding(
        title="Clipping",
        is_fine=share <= CLIPPED_SHARE,
        text=f"{share:.1%} of the recent tokens are clipped"
        + ("." if share <= CLIPPED_SHARE else ": the updates of a step are too large or too many."),
    )


def _gradients_are_steady(run: Run) -> Finding | None:
    values = [float(record["optimizer/grad_norm"]) for record in run.steps if "optimizer/grad_norm" in record]
    recent = _recent(run, "optimizer/grad_norm")
    if len(values) < 2 * RECENT:
        return None
    times = median(recent) / max(median(values), 1e-12)
    return Finding(
        title="Gradients",
        is_fine=times <= GRAD_SPIKE,
        text=f"The recent gradient norm is {times:.2g} times the run's median.",
    )


def _grading_is_hidden(run: Run) -> Finding | None:
    exposed, step = sum(_recent(run, "grading/exposed_s")), sum(_recent(run, "time/step_s"))
    if not step:
        return None
    share = exposed / step
    return Finding(
        title="Grading time",
        is_fine=share <= EXPOSED_SHARE,
        text=f"{share:.0%} of step time is spent waiting for grading"
        + ("." if share <= EXPOSED_SHARE else ": give the reward service more workers or nodes."),
    )


CHECKS: tuple[Callable[[Run], Finding | None], ...] = (
    _is_alive,
    _is_whole,
    _validates,
    _controller_is_content,
    _engines_agree,
    _samples_usefully,
    _grades_everything,
    _clips_seldom,
    _gradients_are_steady,
    _grading_is_hidden,
)
"""To add a check, write a function of a Run that returns a Finding, or None if it does not apply."""


def duration(seconds: float) -> str:
    """Formats seconds for people: "40 s", "12 min", "3.5 h", "19.7 days"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
