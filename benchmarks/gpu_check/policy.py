"""One rank of the policy against float64: log-probabilities, entropy and gradients, with Megatron's own layers and with
Transformer Engine's, padded and packed, in fp32, bf16 and FP8. Then what only a GPU can get wrong about moving weights
and optimizer state to the host and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu_check.machine import Machine
from benchmarks.gpu_check.policies import TINY, Measured, build, exact, folder_of, measure
from benchmarks.gpu_check.rows import Row
from nemo_prorl import distributed
from nemo_prorl.config import ConfigError, Fp8Recipe, LayerSpec, Precision, RunConfig
from nemo_prorl.engines.megatron.build import check_hardware
from nemo_prorl.types import TrainBatch
from tests.engines.megatron.helpers import loss_function, run_config, token_batch, train_batch

PART = "policy"
TEMPERATURE = 1.2


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to compute the same."""

    name: str
    spec: LayerSpec = LayerSpec.local
    precision: Precision = Precision.bf16
    packed: bool = False
    fused: bool = True
    fp8: Fp8Recipe = Fp8Recipe.off
    limits: tuple[float, float] | None = None
    """Limits of a log-probability's mean error, in nats, and of the gradients' relative error; None: twice the errors
    of bf16 in Megatron's layers, so that packing, for example, must not make anything worse."""


FP32 = (2e-5, 1e-4)
BF16 = (0.05, 0.1)
# Transformer Engine multiplies fp32 matrices as TF32: ten bits of mantissa instead of bf16's seven.
TF32 = (BF16[0] / 8, BF16[1] / 8)
FP8 = {
    # Its scales come from earlier updates: the first pass, which this is, has none. To be read, not judged.
    Fp8Recipe.delayed: (math.inf, math.inf),
    # For gross errors only. e4m3 keeps 3 bits of a number's mantissa, bf16 7: 16 times the rounding error.
    Fp8Recipe.tensorwise: (0.3, 0.6),
    Fp8Recipe.blockwise: (0.3, 0.6),
}

VARIANTS = (
    Variant(name="local fp32", precision=Precision.fp32, limits=FP32),
    Variant(name="local fp32, plain head", precision=Precision.fp32, fused=False, limits=FP32),
    Variant(name="local bf16", limits=BF16),
    Variant(name="TE fp32", spec=LayerSpec.transformer_engine, precision=Precision.fp32, limits=TF32),
    Variant(name="TE bf16, padded", spec=LayerSpec.transformer_engine),
    Variant(name="TE bf16, packed", spec=LayerSpec.transformer_engine, packed=True),
    *(
        Variant(
            name=f"TE {recipe.name} FP8, packed",
            spec=LayerSpec.transformer_engine,
            packed=True,
            fp8=recipe,
            limits=limits,
        )
        for recipe, limits in FP8.items()
    ),
)


def run(machine: Machine, workdir: Path) -> Iterator[Row]:
    """Rows of the part. What cannot run here is left out; `left_out` says why."""
    ranks = distributed.initialise(1, 1)
    folder = folder_of(TINY, workdir / "tiny")
    batch = train_batch(token_batch(num_rows=8, longest=96))
    wanted: Measured | None = None
    twice: tuple[float, float] = BF16
    for variant in VARIANTS:
        config = configured(folder, variant)
        if left_out(machine, variant, config):
            continue
        policy = build(config, ranks)
        if wanted is None:  # weights are the same bf16 numbers in all variants
            wanted = exact(dict(policy.named_weights()), TINY, batch, TEMPERATURE)
        errors = compare(measure(policy, batch), wanted, batch)
        limits = variant.limits or twice
        if variant.name == "local bf16":
            twice = (2 * errors[0], 2 * errors[2])
        yield from _rows(variant.name, errors, limits)
    yield from _moves(folder, ranks, batch)


def configured(folder: Path, variant: Variant) -> RunConfig:
    """As the variant says."""
    config = run_config(folder, temperature=TEMPERATURE, chunk=64, micro_batch_tokens=512)
    config.model.layer_spec, config.model.precision = variant.spec, variant.precision
    config.model.fp8, config.model.fused_logprobs = variant.fp8, variant.fused
    config.trainer.packing = variant.packed
    return config


def left_out(machine: Machine, variant: Variant, config: RunConfig) -> str:
    """Why the variant cannot run here; empty if it can."""
    if not variant.fused and (why := machine.lacks("gpu", "triton")):
        return f"the same as without: {why}"
    if variant.spec is LayerSpec.transformer_engine and (why := machine.lacks("gpu", "te")):
        return why
    try:
        check_hardware(config)
    except ConfigError as error:
        return str(error)
    return ""


def compare(got: Measured, wanted: Measured, batch: TrainBatch) -> tuple[float, float, float]:
    """(mean error of a log-probability, mean error of an entropy, error of all gradients relative to their length)."""
    mask = batch.tokens.response_mask_BT
    logprob = np.abs(got.logprobs_BT - wanted.logprobs_BT)[mask].mean()
    entropy = np.abs(got.entropy_BT - wanted.entropy_BT)[mask].mean()
    norms = torch.stack(
        [
            torch.stack([(got.gradients[name] - exact).square().sum(), exact.square().sum()])
            for name, exact in wanted.gradients.items()
        ]
    ).sum(0)
    return float(logprob), float(entropy), float((norms[0] / norms[1]).sqrt())


def _rows(name: str, errors: tuple[float, float, float], limits: tuple[float, float]) -> Iterator[Row]:
    logprob, entropy, gradient = errors
    of_values, of_gradients = (limit if math.isfinite(limit) else None for limit in limits)
    yield Row(part=PART, what=f"{name}: log-probability, mean", value=logprob, unit="nats", limit=of_values)
    yield Row(part=PART, what=f"{name}: entropy, mean", value=entropy, unit="nats", limit=of_values)
    yield Row(part=PART, what=f"{name}: gradients, relative", value=gradient, unit="", limit=of_gradients)


def _moves(folder: Path, ranks: distributed.Ranks, batch: TrainBatch) -> Iterator[Row]:
    """Two updates of two policies; one looks at its reference and hands its memory over in between. A small part of an
    update, not 0, is the limit: attention's backward pass on a GPU need not add up in the same order twice."""
    config = configured(folder, VARIANTS[2])
    moved, still = build(config, ranks), build(config, ranks)
    start = {name: tensor.float() for name, tensor in still.named_weights()}
    for policy in (moved, still):
        policy.update(batch, loss_function)
    before = moved.logprobs(batch.tokens)
    with moved.reference():
        of_reference = moved.logprobs(batch.tokens)
    moved.finish_training()
    moved.prepare_for_training()
    seen = float(np.abs(moved.logprobs(batch.tokens) - before).max())
    yield Row(part=PART, what="weights after a look at the reference", value=seen, unit="nats", limit=0.0)
    fresh = build(config, ranks).logprobs(batch.tokens)
    same = float(np.abs(fresh - of_reference).max())
    yield Row(part=PART, what="reference against a fresh policy", value=same, unit="nats", limit=0.0)
    for policy in (moved, still):
        policy.update(batch, loss_function)
    ends = [dict(policy.named_weights()) for policy in (moved, still)]
    apart = sum(float((ends[0][name].float() - ends[1][name].float()).square().sum()) for name in start)
    length = sum(float((ends[1][name].float() - start[name]).square().sum()) for name in start)
    yield Row(
        part=PART,
        what="update after offloading, relative",
        value=(apart / length) ** 0.5,
        unit="",
        limit=0.05,
    )
