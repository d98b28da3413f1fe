"""Measures how fast a policy of the shape of a 1.5B model trains on one GPU, in bf16 and in each FP8 recipe, and how
fast its weights stream to the sampler. On CPU a tiny policy takes its place, to test the code."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_check.batches import loss_function, train_batch
from benchmarks.gpu_check.machine import Machine
from benchmarks.gpu_check.policies import TINY, build, folder_of
from benchmarks.gpu_check.policy import VARIANTS, Variant, configured, left_out
from benchmarks.gpu_check.rows import Row, seconds_of
from nemo_prorl import distributed
from nemo_prorl.cluster.scale.known import shape_of
from nemo_prorl.cluster.scale.roofline import operations
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.types import TokenBatch, TrainBatch

LENGTHS = [8192] * 2 + [6144] * 6 + [4096] * 12 + [2048] * 14
"""Lengths of the rollouts of an update, 131,072 tokens in all, spread as in a real step: a few have the maximal
length."""


def run(machine: Machine, workdir: Path) -> Iterator[Row]:
    """Yields the rows of the part."""
    ranks = distributed.initialise(1, 1)
    on_gpu = machine.num_gpus > 0
    architecture = shape_of("r1-distill-qwen-1.5b") if on_gpu else TINY
    folder = folder_of(architecture, workdir / "speed")
    batch = _batch(np.array(LENGTHS if on_gpu else [96, 64, 64, 32]))
    first = True
    for variant in _variants(machine, folder):
        config = configured(folder, variant)
        config.model.logprob_chunk_tokens = 1024
        # At 1.5B, without recomputation, a pass of 8,192 tokens saves some 16 GiB of activations, beside 30 GiB of
        # weights and optimizer.
        config.trainer.micro_batch_tokens = 8192 if on_gpu else 512
        config.trainer.learning_rate = 1e-6  # small enough for the random policy to stay finite
        config.sampler = replace(config.sampler, max_prompt_tokens=1024, max_response_tokens=7168)
        policy = build(config, ranks)
        yield from _passes(variant.name, policy, batch, architecture, machine)
        if first:
            yield from _refit(policy)
        first = False
        del policy
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()


def _variants(machine: Machine, folder: Path) -> list[Variant]:
    """Returns the variants to measure: bf16 with the fastest layers that are installed, then FP8."""
    possible = [
        v for v in VARIANTS if not left_out(machine, v, configured(folder, v)) and "fp32" not in v.name
    ]
    packed = [variant for variant in possible if variant.packed]
    return packed or possible[:1]


def _batch(lengths: np.ndarray) -> TrainBatch:
    positions = np.arange(lengths.max())
    inside = positions < lengths[:, None]
    rng = np.random.default_rng(0)
    tokens = TokenBatch(
        token_ids_BT=np.where(inside, rng.integers(0, TINY.vocab_size, inside.shape), 0),
        response_mask_BT=inside & (positions >= 16),
        lengths_B=lengths.astype(np.int64),
    )
    return train_batch(tokens)


def _passes(
    name: str, policy: MegatronPolicy, batch: TrainBatch, architecture: Architecture, machine: Machine
) -> Iterator[Row]:
    lengths = batch.tokens.lengths_B.astype(np.float64)
    num_tokens = int(lengths.sum())
    # Without recomputation, and of the causal half of the query-key pairs only, unlike in PaLM's appendix B (arXiv
    # 2204.02311). An update takes three times as many (Narayanan et al. 2021, arXiv 2104.04473, section 5.1).
    pairs = float((lengths**2).sum()) / 2
    forward = sum(
        operations(architecture, num_tokens=num_tokens, response_tokens=num_tokens, attended=pairs).forward
    )
    work: dict[str, tuple[float, Callable[[], Any]]] = {
        "log-probabilities": (forward, lambda: policy.logprobs(batch.tokens)),
        "update": (3 * forward, lambda: policy.update(batch, loss_function)),
    }
    for what, (flops, once) in work.items():
        if machine.num_gpus:
            torch.cuda.reset_peak_memory_stats()
        seconds = seconds_of(once, repeats=3)
        note = f"{num_tokens / seconds:,.0f} tokens/s"
        if sheet := machine.data_sheet:
            note += f", {flops / seconds / sheet.flops:.1%} of the bf16 peak"
        if machine.num_gpus:
            note += f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
        yield Row(what=f"{name}: {what}", value=seconds, unit="s", note=note)


def _refit(policy: MegatronPolicy) -> Iterator[Row]:
    """Measures the trainer's side of a refit: a copy of every full tensor under its Hugging Face name."""
    size = sum(tensor.numel() * tensor.element_size() for _, tensor in policy.named_weights())

    def stream() -> None:
        for _ in policy.named_weights():
            pass

    seconds = seconds_of(stream, repeats=3)
    yield Row(
        what="refit, the trainer's side",
        value=seconds,
        unit="s",
        note=f"{size / 2**30:.2f} GiB, {size / seconds / 1e9:.1f} GB/s",
    )
