"""Checks of a run's health from its records, each a sentence with numbers: one table, CHECKS, for report and log.

The report shows every result. The training log gets a line when a warning lasts, and another when it has passed
(Alarms). What a hard reset could cure (stalled validation, KL, entropy, length) is judged by the watches of the reset
controller with the run's own numbers, so that report and controller never disagree.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, TypeVar

from nemo_prorl.config import (
    ConfigError,
    ControllerAction,
    ControllerConfig,
    ControllerMode,
    Objective,
)
from nemo_prorl.run_folder.difficulty import read_rewards
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN, EARLY, MEASUREMENT, PROMPT_MEAN, VALIDATION
from nemo_prorl.training.control.controller import Decision, WatchingController
from nemo_prorl.training.control.memory import ProcessMemory
from nemo_prorl.training.control.series import (
    ENTROPY,
    KL,
    LENGTH,
    NO_EOS,
    ROLLOUTS,
    UPDATES_BEHIND,
    WRONG_TENSORS,
    History,
    Validation,
    chance_of_loss,
    resting_kl,
    slope_in_errors,
    standard_error,
)
from nemo_prorl.training.control.watches import FAULTS

RECENT = 20
"""Number of newest training steps that count as recent."""
FIRST = 5
"""Number of steps at the beginning and at the end of a run whose mean entropies are compared."""
PATIENCE = 3
"""Consecutive steps with a warning before the log gets it, because one step may be an exception."""
CALM = RECENT
"""Consecutive steps without a warning after which it has passed; until then the log does not repeat it."""
OVERDUE = 2.0
"""Largest number of validation intervals without a validation."""
NUM_SINCE = 3
"""Least number of validations without a new best until the best is long past."""
PAST_SHARE = 0.5
"""Least share of the steps between the first and the newest validation that have passed since the best."""
FALL_ERRORS = 3.0
"""Least number of standard errors by which the slope of pass@k is below 0; the error is an upper bound."""
CHANCE = 0.08
"""Most chance of a loss of prompts, times the number of comparisons so far: one in ten runs that stand still for 20
validations of 64 prompts reaches it."""
MOVING = 10
"""Number of newest steps by which it is judged whether the learning rate moves the policy."""
LEAST_RATIO = 1.05
"""Largest ratio of these steps if it does not. Runs that learned had 1.05 to 2.5 (experiments/learning_rate.md)."""
MOST_ENTROPY = 3.5
"""Nats a token. Reasoning models have 0.2 to 2; SmolLM2-135M has 5 at temperature 1.2, and solves less than half of
what it solves at 0.8 (experiments/real_model.md)."""
PASS_AT = f"{VALIDATION}pass_at_"
WARN = ControllerAction.warn

_Config = TypeVar("_Config", bound=Any)


class Check(NamedTuple):
    """The result of a check; a warning if `is_fine` is false."""

    title: str
    is_fine: bool
    text: str


Result = tuple[bool, str] | None
"""A check's result: whether the run is fine, and a sentence about it. None if the check does not apply."""


class PassAt(NamedTuple):
    """The share of a validation's prompts that some of k rollouts solve."""

    step: int
    k: int
    share: float
    num_prompts: float
    stage: str = ""


class Followed:
    """A run up to its newest record, as the checks see it. Keeps only what they need, so it hardly grows."""

    def __init__(self, stage: str, options: Mapping[str, Any], folder: Path) -> None:
        """stage: the one that began last. options: all of its options by their full names. folder: the run's."""
        self.stage, self.options, self._folder = stage, options, folder
        config = _with_options(ControllerConfig(), options, "controller")
        self._controller = WatchingController(dataclasses.replace(config, mode=ControllerMode.automatic))
        self.decisions: list[Decision] = []
        """Decisions that a controller in mode automatic, with the stage's options, would have made in this stage; those
        that a reset answers only since the last one."""
        self.last: Mapping[str, Any] = {}
        """The newest record."""
        self.steps: deque[Mapping[str, Any]] = deque(maxlen=RECENT)
        """Records of the newest training steps, oldest first."""
        self.grad_norms: list[float] = []
        """Gradient norms of all training steps, oldest first."""
        self.num_validations, self.last_validation, self.last_reset = 0, 0, 0
        """Number of validations so far, and the steps after which the last one and the last reset were."""
        self.whole = History(stage=stage, since=0, step=0)
        """The validations that measured the same as the newest, without early ones."""
        self.pass_at: list[PassAt] = []
        """The same validations, as far as they have more than one rollout of a prompt, oldest first."""
        self._changed: tuple[int, int] | None = None
        self.entropies: list[float] = []
        """Entropies of the run's first steps."""
        self.memory = ProcessMemory()

    def observe(self, record: Mapping[str, Any]) -> None:
        """Adds a record of metrics.jsonl."""
        before, self.last = self.last, record
        if record["stage"] == self.stage and (decision := self._controller.observe(record)):
            self.decisions.append(decision)
        if before and int(record.get("num_resets", 0)) > int(before.get("num_resets", 0)):
            lasting = [one for one in self.decisions if one.action is WARN or one.signal in FAULTS]
            self.decisions, self.last_reset = lasting, int(record["step"])  # the policy is another one
        if PROMPT_MEAN in record:
            self.num_validations, self.last_validation = self.num_validations + 1, int(record["step"])
            self._add_validation(record)
        if "reward/mean" in record:
            self.steps.append(record)
            self.memory.observe(record)
            if len(self.entropies) < FIRST and ENTROPY in record:
                self.entropies.append(float(record[ENTROPY]))
            if "optimizer/grad_norm" in record:
                self.grad_norms.append(float(record["optimizer/grad_norm"]))

    def _add_validation(self, record: Mapping[str, Any]) -> None:
        if record.get(MEASUREMENT, "") != self.whole.measurement:
            self.whole, self.pass_at = History(stage=self.stage, since=0, step=0), []
        self.whole = self.whole.extended(record, ControllerConfig())
        k = max((int(key.removeprefix(PASS_AT)) for key in record if key.startswith(PASS_AT)), default=1)
        num_prompts = float(record.get(f"{VALIDATION}num_prompts", 0.0))
        if k > 1 and num_prompts and EARLY not in record:
            share, self._changed = float(record[f"{PASS_AT}{k}"]), None
            self.pass_at.append(PassAt(int(record["step"]), k, share, num_prompts, str(record["stage"])))

    def changed_prompts(self) -> tuple[int, int]:
        """Returns how many held-out prompts only the first validation solved, and how many only the newest; (0, 0) if
        one of their files cannot be read."""
        if self._changed is None:
            ends = (self.pass_at[0], self.pass_at[-1])
            try:
                first, newest = (read_rewards(self._folder, one.stage, one.step, "pass_rate") for one in ends)
            except ConfigError:
                first = newest = {}
            both = [(first[uid] > 0, newest[uid] > 0) for uid in first.keys() & newest.keys()]
            self._changed = both.count((True, False)), both.count((False, True))
        return self._changed

    def checks(self) -> list[Check]:
        """Returns the results of all checks that apply; of a policy that has hardly moved, none of what it gains."""
        results = {title: check(self) for title, check in CHECKS.items()}
        if results["Movement"] and not results["Movement"][0]:
            results |= dict.fromkeys(("Best validation", "Pass@k"))
        return [Check(title, *result) for title, result in results.items() if result is not None]

    def recent(self, key: str) -> list[float]:
        """Returns the values of a metric in the recent training steps, oldest first."""
        return [float(record[key]) for record in self.steps if key in record]


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


def _within(
    measure: Callable[[Followed], float | None],
    text: str,
    advice: str | Callable[[Followed], str],
    *,
    at_least: float = -inf,
    at_most: float = inf,
) -> Callable[[Followed], Result]:
    """Returns a check of one number. text: a format with the number; advice: what follows it in a warning."""

    def check(run: Followed) -> Result:
        value = measure(run)
        if value is None:
            return None
        is_fine = at_least <= value <= at_most
        more = "" if is_fine else advice if isinstance(advice, str) else advice(run)
        return is_fine, f"{text.format(value)}{more}."

    return check


def _newest(key: str, num_steps: int = FIRST) -> Callable[[Followed], float | None]:
    """Returns the measure of a metric's mean in the newest steps: few, since a policy that learns changes."""

    def mean(run: Followed) -> float | None:
        recent = run.recent(key)[-num_steps:]
        return fmean(recent) if recent else None

    return mean


def _cooler(run: Followed) -> str:
    if run.entropies[0] <= MOST_ENTROPY:
        return f", and had {run.entropies[0]:.2g} at first: the policy turns into noise. Lower trainer.learning_rate"
    solved, temperature = run.recent("reward/pass_rate")[-FIRST:], run.options.get("sampler.temperature", 1.0)
    return (
        f" at temperature {temperature:g}, and {fmean(solved):.0%} are right: most of what is sampled is noise, where "
        f"a model that samples well has 0.2 to 2. Lower sampler.temperature, such as to {temperature * 2 / 3:.1g}"
    )


def _smaller_updates(run: Followed) -> str:
    advice, options = ": the updates of a step are too large or too many", run.options
    if options.get("algorithm.objective") == Objective.clip.name and not options.get("algorithm.dual_clip"):
        advice += ", and such a token can outweigh all others. Set algorithm.dual_clip=3, or lower"
    else:
        advice += ". Lower"
    return f"{advice} trainer.learning_rate"


def _failed_share(run: Followed) -> float | None:
    failed = sum(run.recent("dynamic_sampling/num_failed_rollouts"))
    # Of all recent steps, because the last one may lack a domain.
    counts = {key for step in run.steps for key in step if key.startswith("reward/")}
    graded = sum(sum(run.recent(key)) for key in counts if key.endswith("/num_rollouts"))
    return failed / (failed + graded) if graded else None


def _exposed_share(run: Followed) -> float | None:
    step_s = sum(run.recent("time/step_s"))
    return sum(run.recent("grading/exposed_s")) / step_s if step_s else None


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


def best_is_recent(validations: Sequence[Validation]) -> tuple[bool, str]:
    """Judges whether the best validation is recent; of equal ones the first, since the others gained nothing."""
    first, last = validations[0], validations[-1]
    best = max(validations, key=lambda one: one.reward)
    num_since = len({one.step for one in validations if one.step > best.step})
    share = (last.step - best.step) / max(1, last.step - first.step)
    text = f"The best held-out reward, {best.reward:.3f}, was measured at step {best.step:,}"
    if num_since < NUM_SINCE or share < PAST_SHARE:
        return True, f"{text}."
    error = standard_error(best, last)
    noise = f", {(best.reward - last.reward) / error:.1f} standard errors less" if error else ""
    return False, (
        f"{text} of {last.step:,}. None of the {num_since} validations since was better; the last has "
        f"{last.reward:.3f}{noise}. Steps since then have gained nothing that shows: go back "
        "(controller.reset_to=best), change something, or end the stage."
    )


def keeps_solving(
    validations: Sequence[PassAt], entropies: tuple[float, float], changed: tuple[int, int] = (0, 0)
) -> Result:
    """Judges whether pass@k has not fallen, over the whole run or its newer half, or, if the entropy has halved, since
    the first validation; None if only one measured it. entropies: at first, and now. changed: prompts that only the
    first validation solved, and only the newest."""
    points = [(one.step, one.share) for one in validations if one.k == validations[-1].k]
    if len(points) < 2:
        return None
    k, num_prompts = validations[-1].k, validations[-1].num_prompts
    windows = [points, points[len(points) // 2 :]]
    falls = [window for window in windows if slope_in_errors(window, num_prompts) <= -FALL_ERRORS]
    is_narrower = entropies[1] < entropies[0] / 2
    if is_narrower and chance_of_loss(*changed) * (len(points) - 1) <= CHANCE:
        falls.append(points)
    (then, before), (_, now) = (falls or windows)[0][0], points[-1]
    if not falls:
        return True, f"pass@{k} is {now:.3f}, and was {before:.3f} at step {then:,}."
    if is_narrower:
        return False, (
            f"The policy is collapsing (entropy {entropies[0]:.2g} -> {entropies[1]:.2g}, pass@{k} {before:.3f} -> "
            f"{now:.3f} since step {then:,}): lower trainer.learning_rate or raise algorithm.kl_beta."
        )
    return False, (
        f"pass@{k} has fallen from {before:.3f} at step {then:,} to {now:.3f}: the policy solves fewer different "
        "problems than it could. More exploration (temperature, clip_high, entropy) or a reset may help."
    )


def _keeps_solving(run: Followed) -> Result:
    recent = run.recent(ENTROPY)[-FIRST:]
    if not run.pass_at or not recent:
        return None
    solves_less = run.pass_at[-1].share < run.pass_at[0].share
    changed = run.changed_prompts() if solves_less else (0, 0)
    return keeps_solving(run.pass_at, (fmean(run.entropies), fmean(recent)), changed)


def _moves(run: Followed) -> Result:
    """Judges the newest steps at the full learning rate, without those of warm-up and decay."""
    steps, rate = list(run.steps)[-MOVING:], run.options.get("trainer.learning_rate", 0.0)
    needed = (KL, LENGTH, "objective/ratio_max", "optimizer/learning_rate")
    is_measured = all(key in step for step in steps for key in needed)
    if len(steps) < MOVING or not is_measured or steps[0]["optimizer/learning_rate"] < 0.9 * rate:
        return None
    kl, ratio = (max(run.recent(key)[-MOVING:]) for key in (KL, "objective/ratio_max"))
    num_steps = int(run.last["step"]) - run.last_reset
    seen = f"largest ratio {ratio:.3g}, KL {kl:.1g} after {num_steps:,} steps"
    if ratio > LEAST_RATIO or max(step[KL] * step[LENGTH] for step in steps) > resting_kl(num_steps):
        return True, f"The policy moves: {seen}."
    return False, f"The policy has hardly moved ({seen}): raise trainer.learning_rate."


def _best_is_recent(run: Followed) -> Result:
    validations = run.whole.validations(DOMAIN_MEAN)
    return best_is_recent(validations) if validations else None


def _controller_is_content(run: Followed) -> Result:
    """Judges by the newest decision since the last reset, or a recent warning. Faults have a check of their own."""
    since = int(run.last["step"]) - RECENT
    decisions = [
        one
        for one in run.decisions
        if one.signal not in FAULTS and (one.action is not WARN or one.step > since)
    ]
    if not decisions:
        return True, "No watch fires: validation, KL, entropy and length are within its limits."
    last = max(decisions, key=lambda one: (one.action is not WARN, one.step))
    if last.action is WARN:
        return False, f"It warns ({last.signal}) at step {last.step:,}: {last.reason}"
    return False, (
        f"In mode automatic it would ask for {last.action.name.replace('_', ' ')} ({last.signal}) at step "
        f"{last.step:,}: {last.reason}"
    )


def _engines_agree(run: Followed) -> Result:
    """Applies the watches of faults to the recent steps."""
    values = run.recent(ROLLOUTS)
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
    elif any(run.recent(UPDATES_BEHIND)):
        text = f"{difference}, from weights that are one step old (sampler.ahead)."
    else:
        text = f"{difference}."
    return not mismatches and not repeated, text


def _growth_of_gradients(run: Followed) -> float | None:
    if len(run.grad_norms) < 2 * RECENT:
        return None
    return median(run.recent("optimizer/grad_norm")) / max(median(run.grad_norms), 1e-12)


CHECKS: dict[str, Callable[[Followed], Result]] = {
    "Movement": _moves,
    # PPO ends a step's updates at 0.05 (target_kl of Spinning Up, 2018). Runs that learned had up to 0.031, one that
    # collapsed 0.11 (experiments/learning_rate.md).
    "Step size": _within(
        lambda run: max(run.recent("objective/approx_kl_to_old"), default=None),
        "A step moves the policy by a KL of up to {:.2g} nats a token",
        ": too far. Lower trainer.learning_rate",
        at_most=0.05,
    ),
    "Validation": _validates,
    "Best validation": _best_is_recent,
    "Pass@k": _keeps_solving,
    "Reset controller": _controller_is_content,
    "Temperature": _within(
        _newest(ENTROPY), "Rollouts have {:.2g} nats of entropy a token", _cooler, at_most=MOST_ENTROPY
    ),
    # A tight limit explains less; a score that pays for text without an end teaches to write on.
    "Ends of responses": _within(
        _newest(NO_EOS),
        "{:.0%} of the recent responses do not end by themselves",
        ": pay them less (shaping.termination_factor=0), or raise sampler.max_response_tokens",
        at_most=0.6,
    ),
    "Sampler and trainer": _engines_agree,
    # At a quarter a step samples four times what it trains on.
    "Yield of dynamic sampling": _within(
        _newest("dynamic_sampling/informative_share", RECENT),
        "{:.0%} of the recent prompts are informative",
        ": most of the sampling is wasted. Change the mix of prompts",
        at_least=0.25,
    ),
    # A healthy service grades everything.
    "Grading": _within(
        _failed_share,
        "{:.2%} of the recent rollouts were not graded",
        ": look at the reward service's log",
        at_most=0.001,
    ),
    # The policy's largest move on one token, which no mean shows.
    "Largest ratio": _within(
        lambda run: max(run.recent("objective/ratio_max"), default=None),
        "The largest recent ratio of current to old probability is {:.3g}",
        _smaller_updates,
        at_most=10.0,
    ),
    "Gradients": _within(
        _growth_of_gradients,
        "The recent gradient norm is {:.3g} times the run's median",
        ": look at the clip, the ratios and the learning rate",
        at_most=10.0,
    ),
    "Memory": lambda run: run.memory.lasts(),
    "Grading time": _within(
        _exposed_share,
        "{:.0%} of step time is spent waiting for grading",
        ": give the reward service more workers or nodes",
        at_most=0.2,
    ),
}
"""Title -> check. To add one, write a function and its line here."""
AT_ONCE = frozenset({"Movement", "Step size", "Temperature"})
"""Checks that the log repeats after one step: means of thousands of tokens, or of ten steps, are no exception."""


class Alarms:
    """The lines of the training log about the warnings of one stage, which `observe` follows record by record. They
    follow from the records alone, so a resumed run, which reads the records up to its checkpoint first, does not repeat
    them. An alarm never stops a run."""

    def __init__(self, stage: str, options: Mapping[str, Any], folder: Path) -> None:
        """stage, options, folder: as Followed has them."""
        self._followed = Followed(stage, options, folder)
        self._num_bad: dict[str, int] = {}
        """Title of a check -> number of steps, up to the newest, for which it has warned without a break."""
        self._num_calm: dict[str, int] = {}
        """Title of an alarm that has not passed -> number of steps, up to the newest, without its warning."""
        self._failed = False

    def observe(self, record: Mapping[str, Any]) -> list[str]:
        """Returns the lines to log after `record` of metrics.jsonl, usually none."""
        if self._failed:
            return []
        said = []
        try:
            self._followed.observe(record)
            if "reward/mean" not in record:
                return []
            for check in self._followed.checks():
                title, step = check.title, record["step"]
                self._num_bad[title] = 0 if check.is_fine else self._num_bad.get(title, 0) + 1
                if title in self._num_calm:
                    self._num_calm[title] = self._num_calm[title] + 1 if check.is_fine else 0
                    if self._num_calm[title] == CALM:
                        del self._num_calm[title]
                        said.append(f"passed after step {step}: {title}: {check.text}")
                elif self._num_bad[title] == (1 if title in AT_ONCE else PATIENCE):
                    self._num_calm[title] = 0
                    said.append(f"alarm after step {step}: {title}: {check.text}")
        except Exception as error:  # a defect in a check must not end the run
            self._failed = True
            return [
                f"the checks cannot judge the record of step {record.get('step')} ({type(error).__name__}: {error}): "
                "no more alarms until the run is started again"
            ]
        return said
