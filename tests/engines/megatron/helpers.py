"""Batches, losses and measurements that the tests of the Megatron policy share, in this process and in others."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.gpu_check.batches import (
    VOCAB,
    captured_gradients,
    loss_function,
    run_config,
    token_batch,
    train_batch,
)
from nemo_prorl import distributed
from nemo_prorl.algorithm.advantage import batch_normalised
from nemo_prorl.algorithm.objective import policy_loss
from nemo_prorl.config import (
    AlgorithmConfig,
)
from nemo_prorl.engines.interface import NonFiniteUpdate
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.types import FloatArray, TokenBatch, Totals, TrainBatch


def reference_logprobs(policy: MegatronPolicy, batch: TokenBatch) -> FloatArray:
    with policy.reference():
        return policy.logprobs(batch)


def train_batch_of_a_step(tokens: TokenBatch) -> TrainBatch:
    """Advantages that are normalised over the batch, old log-probabilities near those of an untrained model, and a
    sampler that differs from them by so much that a geometric mean leaves [0.95, 1.05] in some rows and not in others.
    """
    rng = np.random.default_rng(5)
    mask, shape = tokens.response_mask_BT, tokens.token_ids_BT.shape
    old = np.where(mask, rng.normal(-np.log(VOCAB), 0.1, shape), 0.0).astype(np.float32)
    advantages = batch_normalised([rng.normal(size=len(tokens))], [mask.sum(axis=1)])[0]
    return replace(
        train_batch(tokens),
        advantages_B=advantages.astype(np.float32),
        old_logprobs_BT=old,
        sampler_logprobs_BT=np.where(mask, old + rng.normal(0.0, 0.3, shape), 0.0).astype(np.float32),
    )


def save(policy: MegatronPolicy, directory: Path) -> None:
    """Collective; the checkpoint is whole on return."""
    pending = policy.begin_save(directory)
    pending.write()
    pending.finish()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layout of one model, measured on the same global batch as every other."""

    name: str
    model: str
    trainer: dict[str, Any] = field(default_factory=dict)
    megatron: dict[str, Any] = field(default_factory=dict)
    """model.megatron."""
    ranks_per_machine: int = 0
    """As torchrun would say it; 0: it says nothing."""
    empty_replica: bool = False
    """Gives all rows to the first replica."""
    resume: str = ""
    """A checkpoint to continue from, WORLD/CASE."""
    algorithm: AlgorithmConfig | None = None
    """Trains on `train_batch_of_a_step` with these options instead of on noise with `loss_function`."""

    @property
    def alone(self) -> str:
        """Name of the case in which one rank does the same."""
        return self.model if self.algorithm is None else f"{self.model}-algorithm"


@dataclass(frozen=True, kw_only=True)
class World:
    """What the ranks of one world measured: ranks[rank][case name]."""

    ranks: list[dict[str, dict[str, Any]]]


def my_rows(case: Case, layout: distributed.Layout, num_rows: int) -> list[int]:
    if case.empty_replica:
        return list(range(num_rows)) if layout.replica == 0 else []
    return list(range(layout.replica, num_rows, layout.data_parallel))


def measure(case: Case, models: dict[str, Path], checkpoints: Path | None, world: str) -> dict[str, Any]:
    """Returns what this rank's replica computes: log-probabilities, gradients and the weights after two updates. Unless
    `checkpoints` is None, also those after the second update of policies that continue from a checkpoint between the
    two, and first save it again."""
    config = run_config(models[case.model], megatron=case.megatron, **case.trainer)
    ranks = distributed.initialise(config.trainer.tensor_parallel, config.trainer.pipeline_parallel)
    machine = {"LOCAL_WORLD_SIZE": str(case.ranks_per_machine)} if case.ranks_per_machine else {}
    with mock.patch.dict(os.environ, machine):
        policy = MegatronPolicy(config, ranks)
    if case.algorithm is None:
        whole, loss = train_batch(token_batch()), loss_function
    else:
        whole = train_batch_of_a_step(token_batch())
        loss = partial(policy_loss, config=case.algorithm, entropy_coefficient=0.1)
    rows = my_rows(case, ranks.layout, len(whole))
    batch = whole.select(rows)
    before = dict(policy.named_weights())
    logprobs = policy.logprobs(batch.tokens)
    if config.trainer.distributed_optimizer and ranks.layout.data_parallel > 1:
        gradients: dict[str, torch.Tensor] = {}
        first = policy.update(batch, loss)
    else:
        with captured_gradients(policy) as gradients:
            first = policy.update(batch, loss)
    if checkpoints is not None:
        save(policy, checkpoints / world / case.name)
    wrapped, in_flight = policy.trainable.wrapped, []
    groups, finish = wrapped.bucket_groups, wrapped.finish_grad_sync

    def counted(*args: Any, **kwargs: Any) -> None:
        in_flight.append(sum(group.grad_reduce_handle is not None for group in groups))
        finish(*args, **kwargs)

    with mock.patch.object(wrapped, "finish_grad_sync", counted):
        second = policy.update(batch, loss)
    measured = {
        "rows": rows,
        "in_flight": in_flight,
        "logprobs": logprobs,
        "reference_logprobs": reference_logprobs(policy, batch.tokens),
        "entropy": first.entropy_BT,
        "current_logprobs": first.current_logprobs_BT,
        "losses": [first.loss, second.loss],
        "grad_norms": [first.grad_norm, second.grad_norm],
        "learning_rates": [first.learning_rate, second.learning_rate],
        "before": as_numpy(before),
        "gradients": as_numpy(gradients),
        "after": as_numpy(dict(policy.named_weights())),
    }
    measured["refused"] = refuses_poison(policy, batch, ranks.layout)
    if checkpoints is None:
        return measured
    for key, source in (("again", f"{world}/{case.name}"), ("resumed", case.resume)):
        if source:
            policy = MegatronPolicy(config, ranks)
            policy.load(checkpoints / source)
            save(policy, checkpoints / world / f"{case.name}-{key}")
            reference_hash = policy.reference_hash()
            update = policy.update(batch, loss)
            measured[key] = {
                "after": as_numpy(dict(policy.named_weights())),
                "learning_rate": update.learning_rate,
                "reference_hash": reference_hash,
                "reference_logprobs": reference_logprobs(policy, batch.tokens),
            }
    return measured


def refuses_poison(policy: MegatronPolicy, batch: TrainBatch, layout: distributed.Layout) -> bool:
    """Does this rank refuse an update whose loss is NaN on the first replica only, and keep its weights?"""

    def poisoned(
        current: torch.Tensor, entropy: torch.Tensor, part: TrainBatch, totals: Totals
    ) -> torch.Tensor:
        loss = loss_function(current, entropy, part, totals)
        return loss * torch.nan if layout.replica == 0 else loss

    before = [parameter.clone() for parameter in policy.model.parameters()]
    try:
        policy.update(batch, poisoned)
    except NonFiniteUpdate:
        return all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    return False


def measure_all(
    cases: list[Case], models: dict[str, Path], checkpoints: Path | None, world: str
) -> dict[str, dict[str, Any]]:
    return {case.name: measure(case, models, checkpoints, world) for case in cases}


def as_numpy(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.detach().cpu().float().numpy() for name, tensor in tensors.items()}


def plain_logprobs(path: Path, batch: TokenBatch, temperature: float) -> FloatArray:
    """By transformers, row by row without padding."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    result = np.zeros(batch.token_ids_BT.shape, dtype=np.float32)
    for row, length in enumerate(batch.lengths_B):
        tokens = torch.from_numpy(batch.token_ids_BT[row : row + 1, :length])
        with torch.no_grad():
            logits = model(tokens).logits.float() / temperature
        logprobs = logits.log_softmax(-1)[0, :-1].gather(1, tokens[0, 1:, None])[:, 0]
        result[row, 1:length] = logprobs.numpy()
    return np.where(batch.response_mask_BT, result, 0.0)


MakePolicy = Callable[..., MegatronPolicy]
