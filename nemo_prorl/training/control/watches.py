"""The watches of the reset controller: one table, WATCHES, of what is compared with what, and the sentence about it.

A watch is judged at the steps that measure its metric. What it causes, after how many measurements and with which
number it compares are the options controller.NAME, controller.patience.NAME and controller.limits.NAME.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from nemo_prorl.config import ControllerAction, ControllerConfig, WatchLimitsConfig
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN, VALIDATION
from nemo_prorl.training.control.series import (
    CANARY,
    EFFECTIVE,
    ENTROPY,
    KL,
    LENGTH,
    NO_EOS,
    ROLLOUTS,
    STILL_WRONG_TENSORS,
    WRONG_TENSORS,
    History,
    above_log_trend,
    above_trend,
    beyond,
    last_rise,
    mismatch_limit,
    standard_error,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """Why a watch fires: a sentence without its full stop, and the numbers in it."""

    reason: str
    numbers: dict[str, float]


class Watch(NamedTuple):
    """A rule about one metric. If several call for the same action, the decision names the first in WATCHES."""

    name: str
    metric: str
    """What it examines; of validations the beginning of the names."""
    judge: Callable[[History, ControllerConfig], Fired | None]
    is_fault: bool = False
    """Whether it counts in every mode and without a cool-down, because the run does not do what it should."""


Reference = Callable[[Sequence[float], int, float, WatchLimitsConfig], dict[str, float] | None]
"""Compares a metric's values, oldest first: (values, patience, its limit, all limits) -> numbers if it fires."""


def _of_steps(name: str, metric: str, reference: Reference, sentence: str) -> Watch:
    """Returns a watch of a metric of steps. sentence: a format with what `reference` returns, `times` (value over
    median), `patience` and `window`."""

    def judge(history: History, config: ControllerConfig) -> Fired | None:
        patience, limits = getattr(config.patience, name), config.limits
        numbers = reference(history.measured(metric), patience, getattr(limits, name), limits)
        if numbers is None:
            return None
        told: dict[str, Any] = {"patience": patience, "window": limits.window}
        if numbers.get("median"):
            told["times"] = numbers["value"] / numbers["median"]
        return Fired(reason=sentence.format(**numbers, **told), numbers=numbers)

    return Watch(name, metric, judge)


def _of_entropy(name: str, how: str) -> Watch:
    """Returns a watch that compares the entropy with a multiple of its level at the stage's start: above it if the
    multiple is more than 1, else below. how: says so, before the level."""

    def judge(history: History, config: ControllerConfig) -> Fired | None:
        patience, limits = getattr(config.patience, name), config.limits
        bound, first = getattr(limits, name), history.entropy_level[: limits.level_steps]
        level = median(first) if len(first) == limits.level_steps else 0.0
        values = history.measured(ENTROPY)
        if level <= 0 or not beyond(values, patience, bound * level, above=bound > 1):
            return None
        return Fired(
            reason=f"entropy {values[-1]:.3g} nats a token has been {how.format(bound)} the stage's level, "
            f"{level:.3g}, for {patience} steps",
            numbers={"value": values[-1], "level": level, "limit": bound * level},
        )

    return Watch(name, ENTROPY, judge)


def _below(
    values: Sequence[float], patience: int, limit: float, limits: WatchLimitsConfig
) -> dict[str, float] | None:
    recent = values[-patience:]
    return {"value": recent[-1], "limit": limit} if len(recent) == patience and max(recent) < limit else None


def _sampler_mismatch(history: History, config: ControllerConfig) -> Fired | None:
    """Fires if tensors of the sampler are wrong even after a second complete refit, or if each of the last `patience`
    steps needed a second one, or had a difference of log-probabilities (of the canary, or of the step's rollouts) above
    `mismatch_limit`."""
    patience = config.patience.sampler_mismatch
    during = "at the last step" if patience == 1 else f"at each of the last {patience} steps"
    remaining, wrong = history.measured(STILL_WRONG_TENSORS), history.measured(WRONG_TENSORS)[-patience:]
    if remaining and remaining[-1]:
        return Fired(
            reason=f"{remaining[-1]:g} tensors of the sampler are not the policy's, even after a second complete refit",
            numbers={"value": remaining[-1]},
        )
    if len(wrong) == patience and min(wrong) > 0:
        return Fired(
            reason=f"{wrong[-1]:g} tensors of the sampler were not the policy's before a second complete refit "
            f"{during}",
            numbers={"value": wrong[-1]},
        )
    for key in (CANARY, ROLLOUTS):
        values = history.measured(key)
        recent, limit = values[-patience:], mismatch_limit(values[:-patience], config.limits)
        if len(recent) == patience and min(recent) > limit:
            return Fired(
                reason=f"{key} is {recent[-1]:.3g}: sampler and trainer disagree about the same tokens by more than "
                f"{limit:.3g} nats {during}",
                numbers={"value": recent[-1], "limit": limit},
            )
    return None


def _validation_drop(history: History, config: ControllerConfig) -> Fired | None:
    """Fires if, at each of the last `patience` validations of a domain, reward < best - max(limit * spread,
    validation_drop_errors * standard error of the difference), where best is the highest reward of the validations
    before those, and spread the larger one of both. The mean over domains counts as one. If several fell, names the one
    that lost the most spreads."""
    patience, limits = config.patience.validation_drop, config.limits
    found: list[tuple[float, Fired]] = []
    for key in [*history.domain_keys(), DOMAIN_MEAN]:
        if len(history.measured(key)) <= patience:
            continue
        points = history.validations(key)
        best = max(points[:-patience], key=lambda point: (point.reward, point.step))
        recent = points[-patience:]
        least = [
            best.reward
            - max(
                limits.validation_drop * max(best.spread, one.spread),
                limits.validation_drop_errors * standard_error(best, one),
            )
            for one in recent
        ]
        if any(point.reward >= limit for point, limit in zip(recent, least, strict=True)):
            continue
        now, lost = recent[-1], best.reward - recent[-1].reward
        fired = Fired(
            reason=f"{key} {now.reward:.3f} is {lost:.3f} below its best, {best.reward:.3f} at step {best.step}; "
            f"below {least[-1]:.3f} for {patience} validations",
            numbers={
                "value": now.reward,
                "best": best.reward,
                "best_step": float(best.step),
                "limit": least[-1],
                "standard_error": standard_error(best, now),
            },
        )
        found.append((lost / (max(best.spread, now.spread) or 1.0), fired))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _validation_plateau(history: History, config: ControllerConfig) -> Fired | None:
    """Fires if none of the last `patience` validations exceeds the best before it by `_least_rise`."""
    patience, rise = config.patience.validation_plateau, _least_rise(history, config)
    if len(history.measured(DOMAIN_MEAN)) <= patience:
        return None
    steps, rewards = zip(*history.series[DOMAIN_MEAN], strict=True)
    best, num_since = last_rise(rewards, rise)
    if num_since < patience:
        return None
    return Fired(
        reason=f"{DOMAIN_MEAN} {rewards[-1]:.3f} has not exceeded its best, {rewards[best]:.3f} at step {steps[best]}, "
        f"by {rise:.2g} in {num_since} validations",
        numbers={
            "value": rewards[-1],
            "best": rewards[best],
            "best_step": float(steps[best]),
            "num_validations": float(num_since),
        },
    )


def _least_rise(history: History, config: ControllerConfig) -> float:
    """Returns by how much a new best mean over domains must exceed the old one: the limit times the newest spread."""
    validations = history.validations(DOMAIN_MEAN)
    return config.limits.validation_plateau * validations[-1].spread if validations else 0.0


def _futile_resets(history: History, config: ControllerConfig) -> Fired | None:
    """Fires at a plateau or a drop if the periods after the stage's last `patience` resets brought no new best by the
    plateau's `_least_rise`. A drop counts because resets to the best checkpoint could otherwise go on forever."""
    rise, rewards = _least_rise(history, config), history.measured(DOMAIN_MEAN)
    is_plateau = _validation_plateau(history, config) is not None
    is_drop_judged = config.validation_drop is not ControllerAction.ignore
    drop = _validation_drop(history, config) if is_drop_judged else None
    if not rewards or not (is_plateau or drop):
        return None
    peaks = [*history.peaks, max(rewards)]
    best, num_resets = last_rise(peaks, rise)
    if num_resets < config.patience.futile_resets:
        return None
    what = f"{DOMAIN_MEAN} {rewards[-1]:.3f} is on a plateau again" if is_plateau or not drop else drop.reason
    return Fired(
        reason=f"{what}, and the last {num_resets} resets have not brought {'it' if is_plateau else DOMAIN_MEAN} above "
        f"{peaks[best]:.3f} by {rise:.2g}",
        numbers={"value": rewards[-1], "best": peaks[best], "num_resets": float(num_resets)},
    )


WATCHES = (
    Watch("sampler_mismatch", ROLLOUTS, _sampler_mismatch, is_fault=True),
    _of_entropy("entropy_collapse", "at most {:g} of"),
    _of_entropy("entropy_runaway", "at least {:g} times"),
    _of_steps(
        "no_eos", NO_EOS, above_trend,
        "{value:.1%} of the rollouts do not end, against {median:.1%} in the {window} steps before; more than "
        "{limit:.1%} for {patience} steps",
    ),
    _of_steps(
        "response_length", LENGTH, above_log_trend,
        "responses of {value:,.1f} tokens are {times:.2f} times as long as in the {window} steps before, "
        "{median:,.1f}; more than {limit:,.1f} for {patience} steps",
    ),
    Watch("futile_resets", VALIDATION, _futile_resets),
    Watch("validation_drop", VALIDATION, _validation_drop),
    _of_steps(
        "kl_spike", KL, above_log_trend,
        "KL to the reference {value:.3g} nats a token is {times:.2f} times that of the {window} steps before, "
        "{median:.3g}; more than {limit:.3g} for {patience} steps",
    ),
    Watch("validation_plateau", VALIDATION, _validation_plateau),
    _of_steps(
        "effective_sample", EFFECTIVE, _below,
        "the effective sample size is {value:.1%} of the tokens, below {limit:.0%} for {patience} steps: fewer updates "
        "a step, a smaller learning rate or no sampler.ahead keep the policy nearer to the one that sampled",
    ),
)  # fmt: skip
"""The more specific ones come first."""
FAULTS = frozenset(watch.name for watch in WATCHES if watch.is_fault)
