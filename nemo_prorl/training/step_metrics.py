"""Metrics of a step's rollouts, by the names that they have in metrics.jsonl. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nemo_prorl.algorithm.metrics import UpdateStatistics, kl_at_sampling, sampler_agreement
from nemo_prorl.algorithm.selection import Informativeness
from nemo_prorl.algorithm.shaping import SHAPINGS, length_penalty_is_on
from nemo_prorl.config import RunConfig, ShapingConfig
from nemo_prorl.training.evaluation import part_means
from nemo_prorl.training.sampling.rounds import Collection
from nemo_prorl.types import CORRECT, Finish, PreparedRollout, ScoredRollout


def collection_metrics(
    collection: Collection, shaping: ShapingConfig, num_updates: int, sources: Mapping[str, str]
) -> dict[str, float]:
    """Returns all metrics of this module but `sampling_statistics`. num_updates: optimizer updates of the run before
    this step. sources: as in StepContext."""
    # By how many updates the weights that sampled the kept groups are older than those that the step begins with, mean
    # over rollouts: 0 unless they were sampled ahead.
    versions = [m.rollout.policy_version for group in collection.groups for m in group.members]
    updates_behind = num_updates - float(np.mean(versions))
    shaped = Counter(rule for group in collection.sampled for m in group.members for rule in m.shaped_by)
    busy, exposed = collection.grading_busy_s, collection.grading_exposed_s
    return {
        **rollout_metrics(collection, sources),
        "sampler/updates_behind": updates_behind,
        **selection_metrics(collection),
        **{f"shaping/{rule}/num_rollouts": float(shaped[rule]) for rule in SHAPINGS},
        "shaping/length_penalty/on": float(length_penalty_is_on(num_updates, shaping.length_penalty)),
        "grading/busy_s": busy,
        "grading/exposed_s": exposed,
        # The share that overlapped with sampling and log-probability passes.
        "grading/overlap_share": max(0.0, 1.0 - exposed / busy) if busy > 0 else 1.0,
    }


def rollout_metrics(collection: Collection, sources: Mapping[str, str]) -> dict[str, float]:
    """Returns rewards and lengths over everything that was sampled, because the mean over kept groups alone would
    depend on the selection."""
    members = [member for group in collection.sampled for member in group.members]
    lengths = [float(member.rollout.num_tokens) for member in members]
    metrics = {
        "reward/mean": float(np.mean([member.reward for member in members])),
        "reward/pass_rate": _pass_rate(members),
        "reward/trained_mean": float(
            np.mean([reward for group in collection.groups for reward in group.rewards])
        ),
        "response/tokens_mean": float(np.mean(lengths)),
        "response/tokens_p50": float(np.quantile(lengths, 0.5)),
        "response/tokens_p99": float(np.quantile(lengths, 0.99)),
        "response/no_eos_share": float(np.mean([m.rollout.finish is Finish.length for m in members])),
    }
    parts: dict[str, list[ScoredRollout]] = defaultdict(list)
    for member in members:
        prompt = member.rollout.prompt
        parts[f"reward/{prompt.domain}"].append(member)
        if prompt.source in sources:
            parts[f"source/{sources[prompt.source]}"].append(member)
    for name, part in sorted(parts.items()):
        metrics[f"{name}/mean"] = float(np.mean([member.reward for member in part]))
        metrics[f"{name}/pass_rate"] = _pass_rate(part)
        metrics[f"{name}/num_rollouts"] = float(len(part))
    for name, value in part_means(members).items():
        metrics[f"reward/part_{name}"] = value
    domains = Counter(group.prompt.domain for group in collection.sampled)
    return metrics | {f"data/{domain}/num_prompts": float(count) for domain, count in sorted(domains.items())}


def sampling_statistics(prepared: Iterable[PreparedRollout], config: RunConfig) -> list[UpdateStatistics]:
    """Returns how far apart sampler, trainer and reference are on the rollouts that this replica has prepared, before
    the step's updates. `merge_statistics` merges those of all replicas. The KL is exactly 0 in the step after a reset,
    and absent unless `config.measures_kl`."""
    rows = list(prepared)
    old, reference = [row.logprobs[0] for row in rows], [row.logprobs[1] for row in rows]
    statistics = [sampler_agreement([row.sampler_logprobs for row in rows], old)]
    if config.measures_kl:
        statistics.append(kl_at_sampling(old, reference, config.algorithm))
    return statistics


def selection_metrics(collection: Collection) -> dict[str, float]:
    """Returns how many of the sampled prompts were kept, and why the others were not."""
    counts = {f"dynamic_sampling/num_{kind.value}": float(collection.kinds[kind]) for kind in Informativeness}
    num_prompts, num_informative = len(collection.sampled), collection.kinds[Informativeness.informative]
    not_needed = sum(group.num_tokens for group in collection.sampled[collection.num_needed :])
    return counts | {
        "dynamic_sampling/num_prompts": float(num_prompts),
        "dynamic_sampling/informative_share": num_informative / num_prompts,
        "dynamic_sampling/num_kept": float(len(collection.groups)),
        "dynamic_sampling/kept_share": len(collection.groups) / num_prompts,
        "dynamic_sampling/num_surplus": float(len(collection.surplus)),
        "dynamic_sampling/surplus_share": not_needed / max(1, collection.num_tokens),
        "dynamic_sampling/num_rounds": float(len(collection.rounds)),
        "dynamic_sampling/num_failed_rollouts": float(sum(group.num_failed for group in collection.sampled)),
    }


def _pass_rate(members: Sequence[ScoredRollout]) -> float:
    return float(
        np.mean([member.verdict.score is not None and member.verdict.score >= CORRECT for member in members])
    )
