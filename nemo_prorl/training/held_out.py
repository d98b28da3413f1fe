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

WENT_BACK = "went_back_to_step"
"""In the record of a step whose reset has put the weights of an earlier step in the policy's place, and in that of a
stage that begins with such weights: which step that was."""


def check_monitor(monitor: str, measured: Mapping[str, Any]) -> None:
    """Raises ConfigError for a metric of validation that this one, if it measured anything, did not measure: its values
    would never be compared, in silence."""
    if monitor.startswith(VALIDATION) and PROMPT_MEAN in measured and monitor not in measured:
        names = ", ".join(name for name in measured if name.startswith(VALIDATION))
        raise ConfigError(
            f"exp_manager.checkpoint_callback_params.monitor={monitor} is not measured: write one of {names}."
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
