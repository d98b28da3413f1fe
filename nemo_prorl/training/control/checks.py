"""Checks of a run's health, from its records. Each gives a sentence with numbers.

The report shows the results, and the training log repeats warnings (alarms.py). What a hard reset could cure (stalled
validation, KL, entropy, length) is judged by the reset controller with the run's own thresholds, so that report and
controller never disagree.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, median
from typing import Any, TypeVar

from nemo_prorl.config import ControllerAction, ControllerConfig, ControllerMode, Objective, RatioLevel
from nemo_prorl.run_folder.validation_metrics import EARLY, MEASUREMENT, PROMPT_MEAN, VALIDATION
from nemo_prorl.training.control.controller import Decision, WatchingController
from nemo_prorl.training.control.gains import HeldOut, best_is_recent, keeps_solving, steady_growth
from nemo_prorl.training.control.signals import FAULTS, HELD_OUT, WRONG_TENSORS, History, validations_of

RECENT = 20
"""Number of newest training steps that count as recent."""
LOW_YIELD = 0.25
"""Least share of informative groups. At this share a step samples four times what it trains on."""
FAILED_SHARE = 0.001
"""Largest share of rollouts that were not graded; a healthy service has none."""
CLIPPED_SHARE = 0.1
"""Largest share of tokens on which the clip is active."""
LARGE_RATIO = 10.0
"""Largest ratio of current to old probability: beyond it a token became ten times likelier within a step."""
EXPOSED_SHARE = 0.2
"""Largest share of step time spent waiting for grading."""
OVERDUE = 2.0
"""Largest number of validation intervals without a validation."""
FIRST = 5
"""Number of steps at the beginning and at the end of a run whose mean entropies are compared."""
PASS_AT = f"{VALIDATION}pass_at_"
NOISE = 3.5
"""Entropy in nats a token above which rollouts are mostly noise. Reasoning models sample at 0.2 to 2; SmolLM2-135M has
5 at temperature 1.2, and solves less than half of what it solves at 0.8 (experiments/real_model.md)."""
GRAD_SPIKE = 10.0
"""Largest ratio of the recent gradient norm to the whole run's, both as medians."""

_Config = TypeVar("_Config", bound=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of a check; a warning if `is_fine` is false."""

    title: str
    is_fine: bool
    text: str


Result = tuple[bool, str] | None
"""A check's result: whether the run is fine, and a sentence about it. None if the check does not apply."""


class Followed:
    """A run up to its newest record, as the checks see it. Keeps only what they need, so it hardly grows."""

    def __init__(self, stage: str, options: Mapping[str, Any]) -> None:
        """stage: the one that began last. options: all of its options by their full names."""
        self.stage, self.options = stage, options
        config = _with_options(ControllerConfig(), options, "controller")
        self._controller = WatchingController(dataclasses.replace(config, mode=ControllerMode.automatic))
        self.decisions: list[Decision] = []
        """Decisions that a controller in mode automatic, with the stage's options, would have made in this stage."""
        self.last: Mapping[str, Any] = {}
        """The newest record."""
        self.steps: deque[Mapping[str, Any]] = deque(maxlen=RECENT)
        """Records of the newest training steps, oldest first."""
        self.grad_norms: list[float] = []
        """Gradient norms of all training steps, oldest first."""
        self.num_validations, self.last_validation = 0, 0
        """Number of validations so far, and the step after which the last one was."""
        self.held_out: list[HeldOut] = []
        """The validations that measured the same as the newest, oldest first."""
        self._measurement = ""
        self._mean = HELD_OUT[config.validation_mean]
        self.entropies: list[float] = []
        """Entropies of the run's first steps."""
        self.last_reset = -1
        """Step after which the policy last became the reference; -1: it never did."""

    def observe(self, record: Mapping[str, Any]) -> None:
        """Adds a record of metrics.jsonl."""
        before, self.last = self.last, record
        if before and int(record.get("num_resets", 0)) > int(before.get("num_resets", 0)):
            # A stage's reset happens before its first step, a controller's at the end of the step that records it.
            is_of_start = record["stage"] != before["stage"]
            self.last_reset = int(before["step"] if is_of_start else record["step"])
        if record["stage"] == self.stage and (decision := self._controller.observe(record)):
            self.decisions.append(decision)
        if PROMPT_MEAN in record:
            self.num_validations, self.last_validation = self.num_validations + 1, int(record["step"])
            self._add_validation(record)
        if "reward/mean" in record:
            self.steps.append(record)
            if len(self.entropies) < FIRST and "objective/entropy" in record:
                self.entropies.append(float(record["objective/entropy"]))
            if "optimizer/grad_norm" in record:
                self.grad_norms.append(float(record["optimizer/grad_norm"]))

    def _add_validation(self, record: Mapping[str, Any]) -> None:
        measured = str(record.get(MEASUREMENT, ""))
        if measured != self._measurement:
            self.held_out, self._measurement = [], measured
        if self._mean not in record:
            return
        counted = {key: value for key, value in record.items() if key != EARLY}
        history = History(stage=self.stage, since=0, step=0).extended(counted, ControllerConfig())
        k = max((int(key.removeprefix(PASS_AT)) for key in record if key.startswith(PASS_AT)), default=1)
        self.held_out.append(
            HeldOut(
                step=int(record["step"]),
                mean=float(record[self._mean]),
                variance=validations_of(history, self._mean)[-1].variance,
                pass_at_k=float(record.get(f"{PASS_AT}{k}", 0.0)),
                k=k,
                num_prompts=float(record.get(f"{VALIDATION}num_prompts", 0.0)),
                is_early=EARLY in record,
            )
        )

    def checks(self) -> list[Check]:
        """Returns the results of all checks that apply."""
        results = {title: check(self) for title, check in CHECKS.items()}
        return [
            Check(title=title, is_fine=result[0], text=result[1])
            for title, result in results.items()
            if result is not None
        ]

    def recent(self, key: str) -> list[float]:
        """Returns the values of a metric in the recent training steps, oldest first."""
        return [float(record[key]) for record in self.steps if key in record]


def _validates(run: Followed) -> Result:
    if not run.num_validations:
        return False, (
            "No held-out prompts were ever sampled: set data.validation, or nothing shows whether training helps."
        )
    since = int(run.last["step"]) - run.last_validation
    interval = run.options.get("validation.interval", 0)
    is_overdue = bool(interval) and since > OVERDUE * interval
    late = f": {since} steps ago, where one is due every {interval}" if is_overdue else ""
    return not is_overdue, (
        f"{run.num_validations} validations, the last at step {run.last_validation:,}{late}."
    )


def _controller_is_content(run: Followed) -> Result:
    """Judges by the newest decision since the last reset, or a recent warning. Signals of faults have a check of their
    own."""
    since = {ControllerAction.warn: int(run.last["step"]) - RECENT}
    decisions = [
        decision
        for decision in run.decisions
        if decision.signal not in FAULTS and decision.step > since.get(decision.action, run.last_reset)
    ]
    if not decisions:
        return True, "No signal fires: validation, KL, entropy and length are within its thresholds."
    last = max(decisions, key=lambda one: (one.action is not ControllerAction.warn, one.step))
    if last.action is ControllerAction.warn:
        return False, f"It warns ({last.signal}) at step {last.step:,}: {last.reason}"
    return False, (
        f"In mode automatic it would ask for {last.action.name.replace('_', ' ')} ({last.signal}) at step "
        f"{last.step:,}: {last.reason}"
    )


def _keeps_solving(run: Followed) -> Result:
    """Adds by how much the entropy has changed since the run's first steps."""
    if not run.held_out:
        return None
    recent = run.recent("objective/entropy")[-FIRST:]
    level = fmean(run.entropies) if run.entropies else 0.0
    return keeps_solving(run.held_out, fmean(recent) / level - 1 if recent and level > 0 else None)


def _with_options(config: _Config, options: Mapping[str, Any], prefix: str) -> _Config:
    """Returns `config` with the values among the run's options."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        default, name = getattr(config, field.name), f"{prefix}.{field.name}"
        if dataclasses.is_dataclass(default):
            values[field.name] = _with_options(default, options, name)
        elif name in options:
            recorded = options[name]
            values[field.name] = type(default)[recorded] if isinstance(default, Enum) else recorded
    return dataclasses.replace(config, **values)


def _rollouts_are_no_noise(run: Followed) -> Result:
    """Judges by the newest steps, since a policy that learns becomes more certain."""
    recent, solved = run.recent("objective/entropy")[-FIRST:], run.recent("reward/pass_rate")[-FIRST:]
    if not recent:
        return None
    temperature = run.options.get("sampler.temperature", 1.0)
    text = f"Rollouts at temperature {temperature:g} have {fmean(recent):.2g} nats of entropy a token"
    if fmean(recent) <= NOISE:
        return True, f"{text}."
    return False, (
        f"{text} and {fmean(solved):.0%} are right: most of what is sampled is noise, where a model that samples well "
        f"has 0.2 to 2. Lower sampler.temperature, such as to {temperature * 2 / 3:.1g}."
    )


def _samples_usefully(run: Followed) -> Result:
    shares = run.recent("dynamic_sampling/informative_share")
    if not shares:
        return None
    is_fine = fmean(shares) >= LOW_YIELD
    advice = "" if is_fine else ": most of the sampling is wasted. Change the mix of prompts"
    return is_fine, f"{fmean(shares):.0%} of the recent prompts are informative{advice}."


def _grades_everything(run: Followed) -> Result:
    failed = sum(run.recent("dynamic_sampling/num_failed_rollouts"))
    # Of all recent steps, because the last one may lack a domain.
    counts = {key for step in run.steps for key in step if key.startswith("reward/")}
    graded = sum(sum(run.recent(key)) for key in counts if key.endswith("/num_rollouts"))
    if not graded:
        return None
    share = failed / (failed + graded)
    advice = "" if share <= FAILED_SHARE else ": look at the reward service's log"
    return share <= FAILED_SHARE, f"{share:.2%} of the recent rollouts were not graded{advice}."


def _engines_agree(run: Followed) -> Result:
    """Applies the controller's signal to the recent steps."""
    values = run.recent("sampler/logprob_abs_diff_mean")
    if not values:
        return None
    difference = f"Log-probabilities differ by {fmean(values):.2g} nats a token"
    since = int(run.last["step"]) - RECENT
    mismatches = [one for one in run.decisions if one.signal in FAULTS and one.step > since]
    repeated = sum(value > 0 for value in run.recent(WRONG_TENSORS))
    if mismatches:
        last = mismatches[-1]
        text = f"At step {last.step:,}: {last.reason} The policy trains on another policy's rollouts."
    elif repeated:
        text = f"{difference}. {repeated} recent refits brought wrong tensors and were repeated: run.log names them."
    elif any(run.recent("sampler/updates_behind")):
        text = f"{difference}, from weights that are one step old (sampler.ahead)."
    else:
        text = f"{difference}."
    return not mismatches and not repeated, text


def _clips_seldom(run: Followed) -> Result:
    """Skips runs with ratios of whole responses: GSPO (arXiv 2507.18071, section 5.2) clips a hundred times as many
    tokens as GRPO by design."""
    if run.options.get("algorithm.ratio_level") == RatioLevel.sequence.name:
        return None
    shares = [run.recent(f"objective/{which}_fraction") for which in ("clip_low", "clip_high", "dual_clip")]
    if not all(shares):
        return None
    share = sum(map(fmean, shares))
    advice = "" if share <= CLIPPED_SHARE else ": the updates of a step are too large or too many"
    return share <= CLIPPED_SHARE, f"{share:.1%} of the recent tokens are clipped{advice}."


def _ratios_are_bounded(run: Followed) -> Result:
    """Judges the policy's largest move on one token, which no mean shows."""
    ratios = run.recent("objective/ratio_max")
    if not ratios:
        return None
    largest, advice = max(ratios), ""
    if largest > LARGE_RATIO:
        advice = ": the updates of a step are too large or too many"
        options = run.options
        if options.get("algorithm.objective") == Objective.clip.name and not options.get(
            "algorithm.dual_clip"
        ):
            advice += ", and such a token can outweigh all others. Set algorithm.dual_clip=3"
    return (
        largest <= LARGE_RATIO,
        f"The largest recent ratio of current to old probability is {largest:.3g}{advice}.",
    )


def _gradients_are_steady(run: Followed) -> Result:
    recent = run.recent("optimizer/grad_norm")
    if len(run.grad_norms) < 2 * RECENT:
        return None
    times = median(recent) / max(median(run.grad_norms), 1e-12)
    text = f"The recent gradient norm is {times:.2g} times the run's median."
    growth = steady_growth(run.grad_norms)
    if growth is None:
        return times <= GRAD_SPIKE, text
    num_steps, before, now = growth
    return False, (
        f"{text} It has grown steadily for {num_steps:,} steps, from {before:.2g} to {now:.2g}, which often precedes "
        "instability: look at the clip, the ratios and the learning rate."
    )


def _grading_is_hidden(run: Followed) -> Result:
    exposed, step = sum(run.recent("grading/exposed_s")), sum(run.recent("time/step_s"))
    if not step:
        return None
    share = exposed / step
    advice = "" if share <= EXPOSED_SHARE else ": give the reward service more workers or nodes"
    return share <= EXPOSED_SHARE, f"{share:.0%} of step time is spent waiting for grading{advice}."


CHECKS: dict[str, Callable[[Followed], Result]] = {
    "Validation": _validates,
    "Best validation": lambda run: best_is_recent(run.held_out) if run.held_out else None,
    "Pass@k": _keeps_solving,
    "Reset controller": _controller_is_content,
    "Temperature": _rollouts_are_no_noise,
    "Sampler and trainer": _engines_agree,
    "Yield of dynamic sampling": _samples_usefully,
    "Grading": _grades_everything,
    "Clipping": _clips_seldom,
    "Largest ratio": _ratios_are_bounded,
    "Gradients": _gradients_are_steady,
    "Grading time": _grading_is_hidden,
}
"""Title -> check. To add one, write a function and its line here."""
