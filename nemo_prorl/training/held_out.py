"""What a validation says in a record of metrics.jsonl: the names of its metrics, and its two means of the reward."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from nemo_prorl.config import ConfigError

VALIDATION = "validation/"
REWARD = "/reward"
NUM_ROLLOUTS = "/num_rollouts"
"""A domain's metrics are named validation/DOMAIN/reward, validation/DOMAIN/num_rollouts and so on."""

PROMPT_MEAN = "validation/reward"
"""Mean reward over all held-out prompts: a domain counts by the number of its prompts."""
DOMAIN_MEAN = "validation/domain_mean_reward"
"""Mean over domains of each domain's mean reward over its prompts: every domain counts the same."""

CORRECT = 1.0
"""The score from which on a rollout counts as solved."""

WENT_BACK = "went_back_to_step"
"""In the record of a step whose reset has put the weights of an earlier step in the policy's place, and in that of a
stage that begins with such weights: which step that was."""


def check_monitor(monitor: str, measured: Mapping[str, Any]) -> str:
    """Looks whether `measured`, the metrics of a stage's first validation, has the metric that is to tell the best
    checkpoint. Returns a sentence for the log where it is missing only because the reward service did not grade enough
    of a domain's rollouts: the next validation may have it. Else an empty string.

    Raises ConfigError for a metric of validation that no validation of this run measures: in silence, no checkpoint
    would ever be the best. Without any reward there is nothing to judge by.
    """
    if not monitor.startswith(VALIDATION) or PROMPT_MEAN not in measured or monitor in measured:
        return ""
    names = [name for name in measured if name.startswith(VALIDATION)]
    folders = {name.rpartition("/")[0] for name in names}  # of each domain, and of all prompts
    metrics = {name.rpartition("/")[2] for name in names if name != DOMAIN_MEAN}
    folder, _, metric = monitor.rpartition("/")
    ungraded = any(f"{name}{REWARD}" not in measured for name in folders)
    if (monitor == DOMAIN_MEAN and ungraded) or (folder in folders and metric in metrics):
        return (
            f"this validation has no {monitor}, because the reward service did not grade enough of a domain's "
            "rollouts: this step cannot be the best"
        )
    raise ConfigError(
        f"exp_manager.checkpoint_callback_params.monitor={monitor} is not measured: write one of {', '.join(names)}."
    )


def domain_mean(summary: Mapping[str, Any]) -> float | None:
    """The mean over domains of `DOMAIN/reward`, of a validation's numbers without the prefix `validation/`.

    None where there is no domain, or where one has no reward because the service graded none of its rollouts: the mean
    of the others could not be compared with that of another validation.

    Example: domain_mean({"reward": 0.8, "math/reward": 0.5, "instruction/reward": 0.9}) == 0.7
    """
    domains = sorted({name.split("/")[0] for name in summary if "/" in name})
    rewards = [summary.get(domain + REWARD) for domain in domains]
    return fmean(rewards) if rewards and None not in rewards else None  # type: ignore[arg-type]


def with_domain_mean(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record itself; that of a validation with DOMAIN_MEAN, which older versions of the trainer did not record."""
    if DOMAIN_MEAN in record or PROMPT_MEAN not in record:
        return dict(record)
    summary = {
        key.removeprefix(VALIDATION): value for key, value in record.items() if key.startswith(VALIDATION)
    }
    mean = domain_mean(summary)
    return dict(record) if mean is None else {**record, DOMAIN_MEAN: mean}
