"""The statistics that the papers plot beside the loss. Every replica computes its own part; a merge joins all parts.

Means are over response tokens unless a name says otherwise, so a replica counts in proportion to its tokens. Means,
standard deviations and extrema of merged parts equal those of all tokens together. So do quantiles as long as no part
has more than 2048 tokens; beyond that their rank is off by at most 1 / 4096 of the tokens. Parts may come from several
replicas, several updates, or both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_prorl.algorithm.kl import kl_estimate, kl_is_clamped, kl_penalty
from nemo_prorl.algorithm.mismatch import ImportanceWeights, importance_ratio, importance_weights
from nemo_prorl.algorithm.ratio import ClipBindings, clip_bindings, probability_change, probability_ratio
from nemo_prorl.config import AlgorithmConfig, CorrectionLevel, KlEstimator
from nemo_prorl.types import FloatArray, TrainBatch, UpdateReport

LARGEST_RATIO = 1e30
"""Larger ratios are reported as this, because JSON, and so the alarm on the largest ratio, knows no infinity."""
MAX_QUANTILE_SAMPLE = 2048
"""Values that a part keeps of a distribution: 16 KiB to send, whatever the batch size."""

EFFECTIVE = "objective/effective_sample_share"

_Values = NDArray[np.float64]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations. Unlike E[x^2] - E[x]^2, they merge without cancellation."""

    count: int
    mean: float
    squared_deviations: float

    @staticmethod
    def of(values: _Values) -> Moments:
        mean = float(values.mean())
        return Moments(len(values), mean, float(np.square(values - mean).sum()))


@dataclass(frozen=True, slots=True)
class QuantileSample:
    """Evenly spaced order statistics of a distribution; all of its values if they are few."""

    values: _Values
    """At most MAX_QUANTILE_SAMPLE values, ascending."""
    weight: float
    """How many values each of them represents."""
    percentiles: tuple[int, ...]
    """The percentiles to report, 1 to 99."""

    @staticmethod
    def of(values: _Values, percentiles: tuple[int, ...]) -> QuantileSample:
        # The middle of each stride of the sorted values: deterministic, and at most half a stride off.
        stride = -(-len(values) // MAX_QUANTILE_SAMPLE)
        picked = np.sort(values)[(stride - 1) // 2 :: stride]
        return QuantileSample(picked, len(values) / len(picked), percentiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStatistics:
    """One part of the statistics, from one replica and one update. Small and picklable; empty without tokens.

    Keys are metric names; `deviations` get the suffix _std, `samples` the suffixes _p01, _p99.
    """

    means: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Metric -> (sum, number of summed values)."""
    minima: Mapping[str, float] = field(default_factory=dict)
    maxima: Mapping[str, float] = field(default_factory=dict)
    deviations: Mapping[str, Moments] = field(default_factory=dict)
    samples: Mapping[str, QuantileSample] = field(default_factory=dict)
    effective: Mapping[str, Moments] = field(default_factory=dict)
    """Metric -> moments of weights whose effective sample size it is, as a share of their number."""


def update_statistics(
    report: UpdateReport,
    batch: TrainBatch,
    config: AlgorithmConfig,
    *,
    is_first: bool = False,
    with_kl: bool = True,
    ages_B: Sequence[int] = (),
) -> UpdateStatistics:
    """Returns statistics of one update over this replica's rows, under the weights before the update. Without
    `with_kl` the KL to the reference is left out. ages_B: how many updates older the weights were that sampled each
    row, if the effective sample size is to be split by that.

    Before a step's first update (`is_first`) these are the weights of old_logprobs; the report's are the old ones where
    the batch has none. The KL is then that of old_logprobs, because another pass, with other rows in its micro-batches,
    differs in the last bits and would hide that a reset makes it exactly 0.

    run_folder/metric_docs.yaml says what each name means. KL and clip fractions are those of the loss
    (`kl_penalty`, `clip_bindings`).

    Raises ValueError on a report whose arrays differ in shape from the batch.
    """
    mask = batch.tokens.response_mask_BT
    if report.current_logprobs_BT.shape != mask.shape or report.entropy_BT.shape != mask.shape:
        raise ValueError(
            f"the report is of {report.current_logprobs_BT.shape} log-probabilities and "
            f"{report.entropy_BT.shape} entropies, the batch of {mask.shape} tokens"
        )
    if not mask.any():
        return UpdateStatistics()
    mask_BT = torch.from_numpy(mask)
    (current, old, sampler, reference, entropy), ratio, bindings, importance = _terms(report, batch, config)
    policy = old if is_first else current
    of_tokens = {
        "objective/entropy": entropy,
        "objective/ratio": ratio,
        "objective/clip_low_fraction": bindings.low,
        "objective/clip_high_fraction": bindings.high,
        "objective/dual_clip_fraction": bindings.dual,
        "objective/approx_kl_to_old": kl_estimate(current - old, KlEstimator.k3),
        "objective/importance_weight_mean": importance.weight_BT,
        "objective/importance_limited_fraction": importance.limited_BT,
    }
    if with_kl:
        of_tokens["objective/kl_to_reference"] = kl_penalty(policy, reference, config)
    if config.kl_beta:
        of_tokens["objective/kl_clamped_fraction"] = kl_is_clamped(policy, reference, config)
    values = {name: tensor.numpy()[mask].astype(np.float64) for name, tensor in of_tokens.items()}
    ratios = values.pop("objective/ratio").clip(max=LARGEST_RATIO)
    kl = values.get("objective/kl_to_reference")
    is_rollout = np.asarray(mask.any(axis=1))
    rows = batch.advantages_B[is_rollout].astype(np.float64)
    is_limited = (importance.limited_BT & mask_BT).any(dim=1).numpy()
    values["objective/importance_limited_rollout_fraction"] = is_limited[is_rollout].astype(np.float64)
    return UpdateStatistics(
        means={name: _sum(array) for name, array in values.items()} | {"objective/ratio_mean": _sum(ratios)},
        minima={"objective/ratio_min": float(ratios.min()), "objective/advantage_min": float(rows.min())},
        maxima={
            "objective/ratio_max": float(ratios.max()),
            "objective/advantage_max": float(rows.max()),
            **({} if kl is None else {"objective/kl_to_reference_max": float(kl.max())}),
        },
        deviations={"objective/advantage": Moments.of(rows)},
        samples={"objective/ratio": QuantileSample.of(ratios, (1, 99))},
        effective=_effective_samples(current - sampler, mask_BT, ages_B),
    )


def token_limits(report: UpdateReport, batch: TrainBatch, config: AlgorithmConfig) -> NDArray[np.uint8]:
    """Returns the [B, T] bits of TOKEN_LIMITS of an update; 0 outside the responses. See `update_statistics`."""
    _, _, clip, importance = _terms(report, batch, config)
    is_masked = importance.limited_BT & (importance.weight_BT == 0)
    bounds = (clip.low, clip.high, clip.dual, importance.limited_BT & ~is_masked, is_masked)
    found = sum(where.numpy().astype(np.uint8) << bit for bit, where in enumerate(bounds))
    return np.where(batch.tokens.response_mask_BT, found, 0).astype(np.uint8)


def _terms(
    report: UpdateReport, batch: TrainBatch, config: AlgorithmConfig
) -> tuple[list[torch.Tensor], torch.Tensor, ClipBindings, ImportanceWeights]:
    """Returns current, old, sampler's and reference's log-probabilities and the entropy, 0 outside the responses, and
    by the loss's own functions, so that a report cannot drift from what is optimised, ratio, clip and weights."""
    mask, own_BT = batch.tokens.response_mask_BT, report.current_logprobs_BT
    of_batch = (batch.old_logprobs_BT, batch.sampler_logprobs_BT, batch.reference_logprobs_BT)
    tensors = [
        torch.from_numpy(np.where(mask, own_BT if array is None else array, 0.0).astype(np.float64))
        for array in (own_BT, *of_batch, report.entropy_BT)
    ]
    current, old, sampler, *_ = tensors
    mask_BT, advantages = torch.from_numpy(mask), torch.from_numpy(batch.advantages_B.astype(np.float64))
    ratio = probability_ratio(current, old, mask_BT, config.ratio_level)
    clip = clip_bindings(ratio, probability_change(current, sampler), advantages.unsqueeze(1), config)
    return tensors, ratio, clip, importance_weights(old - sampler, mask_BT, config)


def _effective_samples(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, ages_B: Sequence[int]
) -> dict[str, Moments]:
    """Returns the moments of the tokens' ratios of current to sampler probability, and those by age."""
    ratio_BT = importance_ratio(log_ratio_BT, mask_BT, CorrectionLevel.token).numpy()
    weights_BT = ratio_BT.clip(1 / LARGEST_RATIO, LARGEST_RATIO)
    mask, ages = mask_BT.numpy(), np.array(ages_B)
    found = {EFFECTIVE: weights_BT[mask]}
    for age in np.unique(ages):
        found[f"{EFFECTIVE}_age_{age:.0f}"] = weights_BT[ages == age][mask[ages == age]]
    return {name: Moments.of(values) for name, values in found.items() if len(values)}


def sampler_agreement(
    sampler_logprobs: Sequence[FloatArray], old_logprobs: Sequence[FloatArray]
) -> UpdateStatistics:
    """Returns how far the sampler's log-probabilities are from the trainer's for the same tokens and weights, in nats.

    sampler_logprobs, old_logprobs: one [R] array per rollout. Metrics: sampler/logprob_abs_diff_mean, _p99 and _max.
    Raises ValueError if they are not of the same tokens.
    """
    sampler, old = _flat(sampler_logprobs), _flat(old_logprobs)
    if sampler.shape != old.shape:
        raise ValueError(f"{sampler.size} log-probabilities of the sampler, {old.size} of the trainer")
    if sampler.size == 0:
        return UpdateStatistics()
    difference = np.abs(sampler - old)
    name = "sampler/logprob_abs_diff"
    return UpdateStatistics(
        means={f"{name}_mean": _sum(difference)},
        maxima={f"{name}_max": float(difference.max())},
        samples={name: QuantileSample.of(difference, (99,))},
    )


def kl_at_sampling(
    old_logprobs: Sequence[FloatArray], reference_logprobs: Sequence[FloatArray], config: AlgorithmConfig
) -> UpdateStatistics:
    """Returns the KL to the reference of the policy that sampled a step's rollouts, before any of its updates:
    `kl_penalty` with the configured estimator and clamps, mean over response tokens. Metric: objective/kl_at_sampling.

    old_logprobs, reference_logprobs: one [R] array per rollout.
    """
    old, reference = _flat(old_logprobs), _flat(reference_logprobs)
    if old.size == 0:
        return UpdateStatistics()
    values = kl_penalty(torch.from_numpy(old), torch.from_numpy(reference), config)
    return UpdateStatistics(means={"objective/kl_at_sampling": _sum(values.numpy())})


def merge_statistics(parts: Sequence[UpdateStatistics]) -> dict[str, float]:
    """Returns the statistics of all parts together; a name that no part has is absent, and so is a mean of nothing."""
    merged: dict[str, float] = {}
    for name, sums in _by_name(part.means for part in parts).items():
        if num_values := sum(count for _, count in sums):
            merged[name] = sum(total for total, _ in sums) / num_values
    # NumPy's extrema propagate a NaN; Python's depend on its position.
    for name, values in _by_name(part.minima for part in parts).items():
        merged[name] = float(np.min(values))
    for name, values in _by_name(part.maxima for part in parts).items():
        merged[name] = float(np.max(values))
    for name, moments in _by_name(part.deviations for part in parts).items():
        merged[f"{name}_std"] = sqrt(_together(moments)[1])
    for name, moments in _by_name(part.effective for part in parts).items():
        # Kish: (sum w)^2 / (n sum w^2), which is mean^2 / (mean^2 + variance).
        mean, variance = _together(moments)
        merged[name] = mean**2 / (mean**2 + variance)
    for name, samples in _by_name(part.samples for part in parts).items():
        found = np.concatenate([sample.values for sample in samples])
        weights = np.concatenate([np.full(len(sample.values), sample.weight) for sample in samples])
        for percentile in samples[0].percentiles:
            # An observed value: the smallest with at least this percentage of all values at or below it.
            value = np.quantile(found, percentile / 100, weights=weights, method="inverted_cdf")
            merged[f"{name}_p{percentile:02d}"] = float(value)
    return merged


def _together(moments: Sequence[Moments]) -> tuple[float, float]:
    """Returns mean and variance of the population of all parts."""
    count = sum(part.count for part in moments)
    mean = sum(part.count * part.mean for part in moments) / count
    squared = sum(part.squared_deviations + part.count * (part.mean - mean) ** 2 for part in moments)
    return mean, squared / count


def _by_name(parts: Iterable[Mapping[str, _T]]) -> dict[str, list[_T]]:
    collected: dict[str, list[_T]] = {}
    for part in parts:
        for name, value in part.items():
            collected.setdefault(name, []).append(value)
    return collected


def _sum(values: _Values) -> tuple[float, int]:
    return float(values.sum()), len(values)


def _flat(arrays: Sequence[FloatArray]) -> _Values:
    return np.concatenate([np.zeros(0), *arrays], dtype=np.float64)
