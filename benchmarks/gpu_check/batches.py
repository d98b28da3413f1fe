"""Batches, a loss and a configuration for policies of random weights. tests/engines/megatron uses them as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_prorl.config import (
    LoraConfig,
    ModelConfig,
    Precision,
    Recompute,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
)
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.types import FloatArray, TokenBatch, Totals, TrainBatch

VOCAB = 131


def run_config(
    path: Path,
    *,
    temperature: float = 1.2,
    chunk: int = 16,
    recompute: Recompute = Recompute.none,
    megatron: dict[str, Any] | None = None,
    lora: LoraConfig | None = None,
    **trainer: Any,
) -> RunConfig:
    """Returns fp32, small chunks and micro-batches, so that every batch takes several of both.

    Adam's epsilon is large because some gradients are 0 but for rounding (a key's bias hardly changes attention): with
    the usual one, the sign of the rounding error would decide about a step of the size of the learning rate.
    """
    settings = {"learning_rate": 1e-2, "adam_epsilon": 1e-4, "micro_batch_tokens": 128, "warmup_updates": 4}
    return RunConfig(
        model=ModelConfig(
            path=str(path),
            precision=Precision.fp32,
            logprob_chunk_tokens=chunk,
            recompute=recompute,
            megatron=megatron or {},
        ),
        lora=lora or LoraConfig(),
        trainer=TrainerConfig(**(settings | trainer)),
        sampler=SamplerConfig(max_prompt_tokens=128, max_response_tokens=384, temperature=temperature),
    )


def token_batch(num_rows: int = 10, longest: int = 40, seed: int = 0) -> TokenBatch:
    """Returns random rows, the first of them with the longest response."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, longest + 1, num_rows)
    lengths[: min(num_rows, 1)] = longest
    positions = np.arange(longest)
    prompts = rng.integers(2, 6, num_rows)
    inside = positions < lengths[:, None]
    return TokenBatch(
        token_ids_BT=np.where(inside, rng.integers(0, VOCAB, (num_rows, longest)), 0),
        response_mask_BT=inside & (positions >= prompts[:, None]),
        lengths_B=lengths,
    )


def train_batch(tokens: TokenBatch, seed: int = 1) -> TrainBatch:
    """Returns the rows with random advantages and log-probabilities."""
    rng = np.random.default_rng(seed)
    shape = tokens.token_ids_BT.shape

    def noise() -> FloatArray:
        return np.where(tokens.response_mask_BT, rng.normal(-3.0, 0.5, shape), 0.0).astype(np.float32)

    return TrainBatch(
        tokens=tokens,
        advantages_B=rng.normal(size=len(tokens)).astype(np.float32),
        sampler_logprobs_BT=noise(),
        old_logprobs_BT=noise(),
        reference_logprobs_BT=noise(),
    )


def loss_function(
    current_BT: torch.Tensor, entropy_BT: torch.Tensor, batch: TrainBatch, totals: Totals
) -> torch.Tensor:
    """Returns a loss that uses what a real one may: advantages, distance to the reference, entropy, both totals."""
    given = (batch.advantages_B, batch.reference_logprobs_BT, batch.tokens.response_mask_BT)
    advantages_B, reference_BT, mask_BT = (torch.from_numpy(array).to(current_BT.device) for array in given)
    per_token = (
        -advantages_B[:, None] * current_BT + 0.1 * (current_BT - reference_BT) ** 2 - 0.3 * entropy_BT
    )
    per_rollout = (current_BT * mask_BT).sum(1).exp() * advantages_B
    return (per_token * mask_BT).sum() / totals.num_tokens + per_rollout.sum() / totals.num_rollouts


@contextmanager
def captured_gradients(policy: MegatronPolicy) -> Iterator[dict[str, torch.Tensor]]:
    """Yields the gradients of the next update under Hugging Face names, before they are clipped. Not for a sharded
    optimizer, whose ranks see a part of the sum each."""
    gradients: dict[str, torch.Tensor] = {}
    step = policy._step

    def capture(loss: float) -> float:
        parameters = list(policy.model.parameters())
        weights = [parameter.data for parameter in parameters]
        for parameter in parameters:
            parameter.data = parameter.main_grad.clone()
        gradients.update(policy.named_weights())
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.data = weight
        return step(loss)

    policy._step = capture  # type: ignore[method-assign]
    yield gradients
    del policy._step  # type: ignore[method-assign]
