"""The loss of docs/algorithm.md, computed token by token on Python floats, and its test inputs."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import torch

from nemo_prorl.algorithm.mismatch import MAX_OWN_WEIGHT
from nemo_prorl.config import (
    Aggregation,
    AlgorithmConfig,
    CorrectionLevel,
    CorrectionMode,
    KlEstimator,
    Objective,
    RatioLevel,
)
from nemo_prorl.types import Totals, TrainBatch

BARE = AlgorithmConfig(kl_beta=0.0, clip_low=0.2, clip_high=0.2, dual_clip=0.0)
"""Options of the clipped objective without dual clip, KL penalty, entropy bonus or correction."""


def oracle_loss(
    current: list[list[float]],
    entropy: list[list[float]],
    batch: TrainBatch,
    totals: Totals,
    config: AlgorithmConfig,
    entropy_coefficient: float,
    constant: list[list[float]] | None = None,
) -> float:
    """Returns the loss. constant: the log-probabilities where no gradient flows, in the weight of cispo and in the
    ratio of a clamped KL; by default those of `current`."""
    total, unclamped = 0.0, replace(config, kl_clamp_log_ratio=0.0, kl_clamp_value=0.0)
    for b in range(len(batch)):
        positions = np.flatnonzero(batch.tokens.response_mask_BT[b])
        advantage = float(batch.advantages_B[b])
        old = [float(batch.old_logprobs_BT[b, t]) for t in positions]
        sampler = [float(batch.sampler_logprobs_BT[b, t]) for t in positions]
        reference = [float(batch.reference_logprobs_BT[b, t]) for t in positions]
        now = [current[b][t] for t in positions]
        ratios = oracle_ratios(now, old, config)
        frozen = oracle_ratios([(constant or current)[b][t] for t in positions], old, config)
        weights = oracle_weights(old, sampler, config)
        for i, t in enumerate(positions):
            if config.objective is Objective.cispo:
                objective = clamp(frozen[i], 1 - config.clip_low, 1 + config.clip_high) * advantage * now[i]
            elif config.objective is Objective.dppo:
                moved = math.exp((constant or current)[b][t]) - math.exp(sampler[i])
                is_far = moved > config.clip_high if advantage > 0 else moved < -config.clip_low
                objective = 0.0 if is_far else ratios[i] * advantage
                if config.dual_clip and advantage < 0:
                    objective = max(objective, config.dual_clip * advantage)
            else:
                clipped = clamp(ratios[i], 1 - config.clip_low, 1 + config.clip_high)
                objective = min(ratios[i] * advantage, clipped * advantage)
                if config.dual_clip and advantage < 0:
                    objective = max(objective, config.dual_clip * advantage)
            kl = oracle_kl(now[i], reference[i], config)
            if config.kl_weighted:
                before = (constant or current)[b][t]
                is_clamped = oracle_kl(before, reference[i], config) != oracle_kl(
                    before, reference[i], unclamped
                )
                kl *= weights[i] * min(MAX_OWN_WEIGHT, math.exp((before if is_clamped else now[i]) - old[i]))
            loss = -weights[i] * objective + config.kl_beta * kl - entropy_coefficient * entropy[b][t]
            total += {
                Aggregation.token_mean: loss / totals.num_tokens,
                Aggregation.sequence_mean_token_mean: loss / len(positions) / totals.num_rollouts,
                Aggregation.sequence_mean_token_sum: loss / totals.num_rollouts / config.aggregation_constant,
            }[config.aggregation]
    return total


def oracle_ratios(current: list[float], old: list[float], config: AlgorithmConfig) -> list[float]:
    if config.ratio_level is RatioLevel.token:
        return [math.exp(c - o) for c, o in zip(current, old, strict=True)]
    mean = sum(c - o for c, o in zip(current, old, strict=True)) / len(old)
    return [math.exp(mean)] * len(old)


def oracle_weights(old: list[float], sampler: list[float], config: AlgorithmConfig) -> list[float]:
    logs = [o - s for o, s in zip(old, sampler, strict=True)]
    tokens = [math.exp(log) for log in logs]
    n = len(logs)
    ratios = {
        CorrectionLevel.off: [1.0] * n,
        CorrectionLevel.token: tokens,
        CorrectionLevel.sequence: [math.prod(tokens)] * n,
        CorrectionLevel.geometric: [math.prod(tokens) ** (1 / n)] * n,
    }[config.correction_level]
    low, high = config.correction_low, config.correction_high
    if config.correction_level is CorrectionLevel.off:
        return ratios
    if config.correction_mode is CorrectionMode.truncate:
        return [clamp(ratio, low, high) for ratio in ratios]
    if config.correction_mode is CorrectionMode.mask:
        return [ratio if low <= ratio <= high else 0.0 for ratio in ratios]
    own = [min(token, max(high, MAX_OWN_WEIGHT)) for token in tokens]
    return own if all(low <= ratio <= high for ratio in ratios) else [0.0] * n


def oracle_kl(current: float, reference: float, config: AlgorithmConfig) -> float:
    d = reference - current
    if config.kl_clamp_log_ratio:
        d = clamp(d, -config.kl_clamp_log_ratio, config.kl_clamp_log_ratio)
    kl = {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - d - 1}[config.kl_estimator.value]
    return clamp(kl, -config.kl_clamp_value, config.kl_clamp_value) if config.kl_clamp_value else kl


def clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _configs() -> list[AlgorithmConfig]:
    """Returns a fixed sample of the product of all options, with bounds so near 1 that each of them acts on some
    tokens."""
    product = list(
        itertools.product(
            Aggregation,
            KlEstimator,
            Objective,
            RatioLevel,
            CorrectionLevel,
            CorrectionMode,
            (0.0, 1.5),
            ((0.0, 0.0), (0.5, 0.0), (0.0, 0.1), (20.0, 10.0)),
            (False, True),
        )
    )
    configs = []
    for aggregation, estimator, objective, ratio, level, mode, dual_clip, clamps, weighted in random.Random(
        0
    ).sample(product, 160):
        configs.append(
            AlgorithmConfig(
                aggregation=aggregation,
                aggregation_constant=3.0 if aggregation is Aggregation.sequence_mean_token_sum else 1.0,
                kl_estimator=estimator,
                kl_beta=0.3,
                kl_clamp_log_ratio=clamps[0],
                kl_clamp_value=clamps[1],
                kl_weighted=weighted,
                objective=objective,
                ratio_level=ratio,
                correction_level=level,
                correction_mode=mode,
                correction_low=0.8,
                correction_high=1.1,
                dual_clip=0.0 if objective is Objective.cispo else dual_clip,
            )
        )
    return configs


CONFIGS = _configs()


def current_and_entropy(batch: TrainBatch, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns float64 leaves, 0 outside the response, whose ratios are from about 0.4 to 2.5."""
    generator = np.random.default_rng(seed)
    mask = batch.tokens.response_mask_BT
    current = np.where(mask, batch.old_logprobs_BT + generator.normal(0, 0.4, mask.shape), 0.0)
    entropy = np.where(mask, generator.uniform(0, 2, mask.shape), 0.0)
    return torch.tensor(current, requires_grad=True), torch.tensor(entropy, requires_grad=True)


def gradients(loss: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, leaves))
