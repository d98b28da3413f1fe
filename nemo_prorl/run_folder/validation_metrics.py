"""The metrics of a validation in a record of metrics.jsonl: their names, and the two means of the score."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from nemo_prorl.config import ConfigError

VALIDATION = "validation/"
SCORE = "/score"
NUM_ROLLOUTS = "/num_rollouts"
"""A domain's metrics are named validation/DOMAIN/score, validation/DOMAIN/num_rollouts and so on."""
STD = "_std"
"""Follows the name of a mean score: standard deviation of the scores of single rollouts."""

PROMPT_MEAN = "validation/score"
"""Mean score over all held-out prompts: a domain's weight is its number of prompts."""
DOMAIN_MEAN = "validation/domain_mean_score"
"""Mean over domains of each domain's mean score over its prompts: every domain counts the same."""

MEASUREMENT = "measurement"
"""Name of what the validation measured, in the record of each validation: its prompts, settings and graders. Values of
validations with different names do not compare."""

MEASURED_OPTIONS = (
    "validation.num_rollouts", "validation.temperature", "validation.top_p", "sampler.max_response_tokens",
)  # fmt: skip
"""The options that are part of it; held-out prompts and graders are the rest (`training.evaluation.measurement`)."""

EARLY = "is_early_validation"
"""1 in the record of a validation that is due only because of validation.early. The controller ignores it, because it
counts validations and expects them an interval apart."""

WENT_BACK = "went_back_to_step"
"""The step whose weights the policy was given. It is in the record of a step after which a reset went back to an
earlier checkpoint, and in the first record of a stage that begins with one."""


def measurement_name(measured: Mapping[str, str]) -> str:
    """Returns a short name, the same for equal measurements only; empty for an unknown one."""
    return hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()[:12] if measured else ""


def check_monitor(monitor: str, measured: Mapping[str, Any]) -> str:
    """Checks that validations measure the metric by which the best checkpoint is chosen.

    measured: the metrics of a stage's first validation. Returns an empty string, or a warning if the metric may be
    missing only because the reward service did not grade enough of a domain's rollouts: the next one may have it.

    Raises ConfigError for a validation metric that no validation of this run measures, because no checkpoint would ever
    be the best. If no rollout was graded, it cannot tell and accepts any metric.
    """
    if not monitor.startswith(VALIDATION) or PROMPT_MEAN not in measured or monitor in measured:
        return ""
    names = [name for name in measured if name.startswith(VALIDATION)]
    if any(f"{name.rpartition('/')[0]}{SCORE}" not in measured for name in names):
        return (
            f"this validation has no {monitor}, because the reward service did not grade enough of a domain's "
            "rollouts, or because there is no such metric: this step cannot be the best"
        )
    raise ConfigError(
        f"exp_manager.checkpoint_callback_params.monitor={monitor} is not measured: write one of {', '.join(names)}."
    )


def domain_mean(summary: Mapping[str, Any]) -> float | None:
    """Returns the mean over domains of DOMAIN/score. summary: metrics of a validation, without the prefix
    "validation/".

    Returns None if there is no domain, or if a domain has no score because none of its rollouts was graded: a mean of
    the others could not be compared with other validations.

    Example: domain_mean({"score": 0.8, "math/score": 0.5, "instruction/score": 0.9}) == 0.7
    """
    domains = sorted({name.split("/")[0] for name in summary if "/" in name})
    scores = [summary.get(domain + SCORE) for domain in domains]
    return fmean(scores) if scores and None not in scores else None  # type: ignore[arg-type]
