"""Tests of the policy's loss where probabilities are as far apart as they can be: nothing is 0 * infinity, and no token
outweighs the others."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from nemo_prorl.algorithm.mismatch import MAX_OWN_WEIGHT, importance_weights
from nemo_prorl.algorithm.objective import policy_loss
from nemo_prorl.algorithm.ratio import clip_bindings, probability_ratio
from nemo_prorl.config import (
    Aggregation,
    AlgorithmConfig,
    CorrectionLevel,
    CorrectionMode,
    Objective,
    RatioLevel,
)
from nemo_prorl.types import TrainBatch
from tests.algorithm.oracle import gradients, oracle_loss

FAR = [0.0, 1.0, -1.0, 12.0, -12.0, 100.0, -100.0]
"""Nats between two policies; e^100 is infinite in float32."""
CONFIGS = [
    AlgorithmConfig(
        objective=objective,
        ratio_level=ratio_level,
        aggregation=aggregation,
        correction_level=level,
        correction_mode=mode,
        correction_low=low,
        kl_beta=0.0,
    )
    for objective, ratio_level, aggregation, level, mode, low in itertools.product(
        Objective, RatioLevel, Aggregation, CorrectionLevel, CorrectionMode, (0.0, 0.5)
    )
]


def names(config: AlgorithmConfig) -> str:
    values = [getattr(config, field.name) for field in dataclasses.fields(config)]
    return "-".join(str(value.value) for value in values if hasattr(value, "value"))


def far_batch(make_batch: Callable[..., TrainBatch], seed: int) -> tuple[TrainBatch, torch.Tensor]:
    """Returns a batch, with advantages of 0 too, and current log-probabilities, each drawn from FAR apart."""
    random = np.random.default_rng(seed)
    lengths = [4, 1, 3, 2, 4]
    current = [-random.uniform(0.1, 2.0, length) for length in lengths]
    old = [row - random.choice(FAR, len(row)) for row in current]
    sampler = [row - random.choice(FAR, len(row)) for row in old]
    batch = make_batch(advantages=[-2.0, 1.0, 0.0, 0.5, -0.1], old=old, sampler=sampler)
    values = torch.zeros(batch.tokens.response_mask_BT.shape, dtype=torch.float64)
    values[torch.from_numpy(batch.tokens.response_mask_BT)] = torch.from_numpy(np.concatenate(current))
    return batch, values


@pytest.mark.medium
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("config", CONFIGS[::7], ids=names)
def test_the_loss_is_the_loops_and_no_token_outweighs_the_others(config, dtype, make_batch, totals_of):
    for seed in range(4):
        batch, values = far_batch(make_batch, seed)
        current = values.to(dtype).requires_grad_()
        loss = policy_loss(current, current, batch, totals_of(batch), config=config, entropy_coefficient=0.0)
        expected = oracle_loss(values.tolist(), values.tolist(), batch, totals_of(batch), config, 0.0)
        assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        (gradient,) = gradients(loss, current)
        assert gradient.isfinite().all()
        slope = max(config.dual_clip, 1 + config.clip_high) * max(config.correction_high, MAX_OWN_WEIGHT)
        assert gradient.abs().max() <= slope * 2.0, "the largest advantage is 2, and no share is above 1"
        assert (gradient[batch.advantages_B == 0] == 0).all()


@pytest.mark.parametrize("dual_clip", [0.0, 3.0])
@pytest.mark.parametrize("ratio_level", RatioLevel)
@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize(
    ("advantage", "mode", "sampler"),
    [
        (0.0, CorrectionMode.truncate, -100.0),  # the advantage is 0
        (0.0, CorrectionMode.truncate, -0.1),
        (-1.0, CorrectionMode.mask, -0.1),  # the weight is 0: the sampler found the token likely, old did not
        (-1.0, CorrectionMode.drop, -0.1),
        (1.0, CorrectionMode.mask, -300.0),  # the weight is 0: the sampler found it impossible
        (-1.0, CorrectionMode.drop, -300.0),
    ],
)
def test_a_token_without_weight_or_advantage_adds_exactly_0(
    advantage, mode, sampler, objective, ratio_level, dual_clip, make_batch, totals_of
):
    config = AlgorithmConfig(
        objective=objective,
        ratio_level=ratio_level,
        dual_clip=dual_clip,
        correction_level=CorrectionLevel.token,
        correction_mode=mode,
        correction_low=0.5,
        kl_beta=0.0,
    )
    batch = make_batch(advantages=[advantage], old=[[-200.0]], sampler=[[sampler]])
    current = torch.full((1, 3), -0.5, requires_grad=True)
    loss = policy_loss(current, current, batch, totals_of(batch), config=config, entropy_coefficient=0.0)
    assert loss.item() == 0.0
    assert gradients(loss, current)[0].tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("ratio_level", RatioLevel)
@pytest.mark.parametrize("log_ratio", [2.0, 8.0, 10.0, 20.0, 100.0])
def test_a_token_that_became_far_likelier_stops_at_the_dual_clip(
    log_ratio, ratio_level, make_batch, totals_of
):
    """Without a dual clip its slope is e^log_ratio: at 8 nats as much as three thousand ordinary tokens."""
    batch = make_batch(advantages=[-1.0], old=[[-1.0 - log_ratio]], num_prompt_tokens=0)
    for dual_clip, slope in ((3.0, 0.0), (0.0, math.exp(log_ratio))):
        config = AlgorithmConfig(kl_beta=0.0, ratio_level=ratio_level, dual_clip=dual_clip)
        current = torch.full((1, 1), -1.0, dtype=torch.float64, requires_grad=True)
        loss = policy_loss(current, current, batch, totals_of(batch), config=config, entropy_coefficient=0.0)
        if dual_clip or log_ratio < 80:
            assert gradients(loss, current)[0].item() == pytest.approx(slope, rel=1e-5)
        else:
            assert loss.item() == math.inf, "and the update is refused"
        ratio = probability_ratio(
            current, torch.tensor(batch.old_logprobs_BT), torch.ones(1, 1, dtype=torch.bool), ratio_level
        )
        advantages = torch.tensor(batch.advantages_B)
        assert clip_bindings(ratio, torch.zeros(()), advantages, config).dual.tolist() == [[dual_clip > 0]]


def test_weights_are_finite_whatever_the_engines_say(make_batch):
    batch, _ = far_batch(make_batch, 1)
    mask = torch.from_numpy(batch.tokens.response_mask_BT)
    log_ratio = torch.from_numpy(batch.old_logprobs_BT - batch.sampler_logprobs_BT)
    for config in CONFIGS:
        assert importance_weights(log_ratio, mask, config).weight_BT.isfinite().all()
