"""The watches of the reset controller: one table, WATCHES, of what is compared with what, and the sentence about it.

A watch is judged at the steps that measure its metric. What it causes, after how many measurements and with which
number it compares are the options controller.NAME, controller.patience.NAME and controller.limits.NAME.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from nemo_prorl.config import ControllerAction, ControllerConfig
from nemo_prorl.run_folder.validation_metrics import VALIDATION
from nemo_prorl.training.control.series import (
    CANARY,
    EFFECTIVE,
    ENTROPY,
    HELD_OUT,
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


Reference = Callable[[list[float], History, ControllerConfig, int, float], dict[str, float] | None]
"""Compares a metric's values, of which the last is the newest: (values, history, config, patience, limit of the watch)
-> the numbers if it fires."""


def _of_steps(name: str, metric: str, reference: Reference, sentence: str) -> Watch:
    """Returns a watch of a metric of steps. sentence: a format with what `reference` returns, `times` (value over
    median), `bound` (controller.limits.NAME), `patience` and `window`."""

    def judge(history: History, config: ControllerConfig) -> Fired | None:
        patience, bound = getattr(config.patience, name), getattr(config.limits, name)
        numbers = reference(history.measured(metric), history, config, patience, bound)
        if numbers is None:
            return None
        told: dict[str, Any] = {"patience": patience, "bound": bound, "window": config.limits.window}
        if numbers.get("median"):
            told["times"] = numbers["value"] / numbers["median"]
        return Fired(reason=sentence.format(**numbers, **told), numbers=numbers)

    return Watch(name, metric, judge)


def _trend(
    values: list[float], history: History, config: ControllerConfig, patience: int, limit: float
) -> dict[str, float] | None:
    return above_trend(values, patience, limit, config.limits)


def _log_trend(
    values: list[float], history: History, config: ControllerConfig, patience: int, limit: float
) -> dict[str, float] | None:
    return above_log_trend(values, patience, limit, config.limits)


def _level(
    values: list[float], history: History, config: ControllerConfig, patience: int, limit: float
) -> dict[str, float] | None:
    """Compares with a multiple of the entropy's level: above it if the multiple is more than 1, else below."""
    first = history.entropy_level[: config.limits.level_steps]
    level = median(first) if len(first) == config.limits.level_steps else 0.0
    if level <= 0 or not beyond(values, patience, limit * level, above=limit > 1):
        return None
    return {"value": values[-1], "level": level, "limit": limit * level}


def _share(
    values: list[float], history: History, config: ControllerConfig, patience: int, limit: float
) -> dict[str, float] | None:
    recent = values[-patience:]
    is_below = len(recent) == patience and max(recent) < limit
    return {"value": recent[-1], "limit": limit} if is_below else None


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
    """Fires if, at each of the last `patience` validations of a domain, reward < best - max(limit * best,
    validation_drop_errors * standard error of the difference), where best is the highest reward of the validations
    before those. HELD_OUT's mean counts as a domain. If several fell, names the one that lost the largest share."""
    patience, limits = config.patience.validation_drop, config.limits
    found: list[tuple[float, Fired]] = []
    for key in [*history.domain_keys(), HELD_OUT[config.validation_mean]]:
        if len(history.measured(key)) <= patience:
            continue
        points = history.validations(key)
        best, recent = max(points[:-patience], key=lambda point: point.reward), points[-patience:]
        least = [
            best.reward
            - max(
                limits.validation_drop * best.reward,
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
        found.append((lost / best.reward if best.reward > 0 else lost, fired))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _validation_plateau(history: History, config: ControllerConfig) -> Fired | None:
    """Fires if none of the last `patience` validations exceeds the best before it by the limit."""
    patience, rise = config.patience.validation_plateau, config.limits.validation_plateau
    held_out = HELD_OUT[config.validation_mean]
    if len(history.measured(held_out)) <= patience:
        return None
    steps, rewards = zip(*history.series[held_out], strict=True)
    best, num_since = last_rise(rewards, rise)
    if num_since < patience:
        return None
    return Fired(
        reason=f"{held_out} {rewards[-1]:.3f} has not exceeded its best, {rewards[best]:.3f} at step {steps[best]}, "
        f"by {rise:g} in {num_since} validations",
        numbers={
            "value": rewards[-1],
            "best": rewards[best],
            "best_step": float(steps[best]),
            "num_validations": float(num_since),
        },
    )


def _futile_resets(history: History, config: ControllerConfig) -> Fired | None:
    """Fires at a plateau or a drop if the periods after the stage's last `patience` resets brought no new best by the
    plateau's limit. A drop counts because resets to the best checkpoint could otherwise go on forever."""
    held_out, rise = HELD_OUT[config.validation_mean], config.limits.validation_plateau
    rewards = history.measured(held_out)
    is_plateau = _validation_plateau(history, config) is not None
    is_drop_judged = config.validation_drop is not ControllerAction.ignore
    drop = _validation_drop(history, config) if is_drop_judged else None
    if not rewards or not (is_plateau or drop):
        return None
    peaks = [*history.peaks.get(held_out, ()), max(rewards)]
    best, num_resets = last_rise(peaks, rise)
    if num_resets < config.patience.futile_resets:
        return None
    what = f"{held_out} {rewards[-1]:.3f} is on a plateau again" if is_plateau or not drop else drop.reason
    return Fired(
        reason=f"{what}, and the last {num_resets} resets have not brought {'it' if is_plateau else held_out} above "
        f"{peaks[best]:.3f} by {rise:g}",
        numbers={"value": rewards[-1], "best": peaks[best], "num_resets": float(num_resets)},
    )


WATCHES = (
    Watch("sampler_mismatch", ROLLOUTS, _sampler_mismatch, is_fault=True),
    _of_steps(
        "entropy_collapse", ENTROPY, _level,
        "entropy {value:.3g} nats a token has been at most {bound:g} of the stage's level, {level:.3g}, for {patience} "
        "steps",
    ),
    _of_steps(
        "entropy_runaway", ENTROPY, _level,
        "entropy {value:.3g} nats a token has been at least {bound:g} times the stage's level, {level:.3g}, for "
        "{patience} steps",
    ),
    _of_steps(
        "no_eos", NO_EOS, _trend,
        "{value:.1%} of the rollouts do not end, against {median:.1%} in the {window} steps before; more than "
        "{limit:.1%} for {patience} steps",
    ),
    _of_steps(
        "response_length", LENGTH, _log_trend,
        "responses of {value:,.1f} tokens are {times:.2f} times as long as in the {window} steps before, "
        "{median:,.1f}; more than {limit:,.1f} for {patience} steps",
    ),
    Watch("futile_resets", VALIDATION, _futile_resets),
    Watch("validation_drop", VALIDATION, _validation_drop),
    _of_steps(
        "kl_spike", KL, _log_trend,
        "KL to the reference {value:.3g} nats a token is {times:.2f} times that of the {window} steps before, "
        "{median:.3g}; more than {limit:.3g} for {patience} steps",
    ),
    Watch("validation_plateau", VALIDATION, _validation_plateau),
    _of_steps(
        "effective_sample", EFFECTIVE, _share,
        "the effective sample size is {value:.1%} of the tokens, below {limit:.0%} for {patience} steps: fewer updates "
        "a step, a smaller learning rate or no sampler.ahead keep the policy nearer to the one that sampled",
    ),
)  # fmt: skip
"""The more specific ones come first."""
FAULTS = frozenset(watch.name for watch in WATCHES if watch.is_fault)
