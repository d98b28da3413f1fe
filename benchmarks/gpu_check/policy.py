"""Checks one rank of the policy against float64: log-probabilities, entropy and gradients, with Megatron's own layers
and with Transformer Engine's, padded and packed, in fp32, bf16 and FP8. Then checks that weights and optimizer state
survive the way to the host and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu_check.batches import loss_function, run_config, token_batch, train_batch
from benchmarks.gpu_check.machine import Machine
from benchmarks.gpu_check.policies import TINY, Measured, build, exact, folder_of, measure
from benchmarks.gpu_check.rows import Row
from nemo_prorl import distributed
from nemo_prorl.config import ConfigError, Fp8Recipe, LayerSpec, Precision, RunConfig
from nemo_prorl.engines.megatron.build import check_hardware
from nemo_prorl.types import TrainBatch

TEMPERATURE = 1.2


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the ways to compute the same results."""

    name: str
    means: str = ""
    """What is wrong if this variant is beyond its limits and those before it are not."""
    spec: LayerSpec = LayerSpec.local
    precision: Precision = Precision.bf16
    packed: bool = False
    fused: bool = True
    fp8: Fp8Recipe = Fp8Recipe.off
    limits: tuple[float, float] | None = None
    """Limits of a log-probability's mean error, in nats, and of the gradients' relative error. None means twice the
    errors of Megatron's layers in bf16, so that packing, for example, must not increase them."""


FP32 = (2e-5, 1e-4)
BF16 = (0.05, 0.1)
# Transformer Engine multiplies fp32 matrices as TF32, with 10 bits of mantissa instead of bf16's 7.
TF32 = (BF16[0] / 8, BF16[1] / 8)
# e4m3 has 3 bits of mantissa and bf16 has 7. With emulated kernels (tests/gpu/emulated) the errors of the three recipes
# are 0.15 to 0.18 nats, and 0.16 to 0.18 in the gradients, with and without recomputation.
FP8 = dict.fromkeys((Fp8Recipe.delayed, Fp8Recipe.tensorwise, Fp8Recipe.blockwise), (0.25, 0.3))

VARIANTS = (
    Variant(
        name="local fp32",
        means="the policy computes something else on this GPU, or its fp32 products are TF32: trust no line below",
        precision=Precision.fp32,
        limits=FP32,
    ),
    Variant(
        name="local fp32, plain head",
        means="the products of vocab_parallel.py; training uses the fused head, which passed",
        precision=Precision.fp32,
        fused=False,
        limits=FP32,
    ),
    Variant(
        name="local bf16",
        means="bf16 products are summed in fewer bits than fp32 has; all bf16 training here would be noisier",
        limits=BF16,
    ),
    Variant(
        name="TE fp32",
        means="a weight in the wrong place of a layer, or rotary positions: write model.layer_spec=local",
        spec=LayerSpec.transformer_engine,
        precision=Precision.fp32,
        limits=TF32,
    ),
    Variant(
        name="TE bf16, padded",
        means="cuDNN's causal attention: write model.megatron.attention_backend=unfused",
        spec=LayerSpec.transformer_engine,
    ),
    Variant(
        name="TE bf16, packed",
        means="cuDNN's attention between the bounds of packed rows: write trainer.packing=false",
        spec=LayerSpec.transformer_engine,
        packed=True,
    ),
    *(
        Variant(
            name=f"TE {recipe.name} FP8, packed",
            means="the scales or the products of this recipe: write another one, or model.fp8=off",
            spec=LayerSpec.transformer_engine,
            packed=True,
            fp8=recipe,
            limits=limits,
        )
        for recipe, limits in FP8.items()
    ),
)


def run(machine: Machine, workdir: Path) -> Iterator[Row]:
    """Yields the rows of the part, without variants that cannot run here (see `left_out`)."""
    ranks = distributed.initialise(1, 1)
    folder = folder_of(TINY, workdir / "tiny")
    batch = train_batch(token_batch(num_rows=8, longest=96))
    expected: Measured | None = None
    twice: tuple[float, float] = BF16
    for variant in VARIANTS:
        config = configured(folder, variant)
        if left_out(machine, variant, config):
            continue
        policy = build(config, ranks)
        if expected is None:  # all variants have the same weights, which are exact in bf16
            expected = exact(dict(policy.named_weights()), TINY, batch, TEMPERATURE)
        errors = compare(measure(policy, batch), expected, batch)
        limits = variant.limits or twice
        if variant.name == "local bf16":
            twice = (2 * errors[0], 2 * errors[2])
        yield from _rows(variant, errors, limits)
    yield from _moves(folder, ranks, batch)


def configured(folder: Path, variant: Variant) -> RunConfig:
    """Returns the configuration of a variant."""
    config = run_config(folder, temperature=TEMPERATURE, chunk=64, micro_batch_tokens=512)
    config.model.layer_spec, config.model.precision = variant.spec, variant.precision
    config.model.fp8, config.model.fused_logprobs = variant.fp8, variant.fused
    config.trainer.packing = variant.packed
    return config


def left_out(machine: Machine, variant: Variant, config: RunConfig) -> str:
    """Returns why the variant cannot run here; empty if it can."""
    if not variant.fused and (why := machine.lacks("gpu", "triton")):
        return f"the same as with fused kernels, which cannot run: {why}"
    if variant.spec is LayerSpec.transformer_engine and (why := machine.lacks("gpu", "te")):
        return why
    try:
        check_hardware(config.model.fp8)
    except ConfigError as error:
        return str(error)
    return ""


def compare(got: Measured, expected: Measured, batch: TrainBatch) -> tuple[float, float, float]:
    """Returns (mean error of a log-probability, mean error of an entropy, norm of the error of all gradients relative
    to their norm)."""
    mask = batch.tokens.response_mask_BT
    logprob = np.abs(got.logprobs_BT - expected.logprobs_BT)[mask].mean()
    entropy = np.abs(got.entropy_BT - expected.entropy_BT)[mask].mean()
    norms = torch.stack(
        [
            torch.stack([(got.gradients[name] - exact).square().sum(), exact.square().sum()])
            for name, exact in expected.gradients.items()
        ]
    ).sum(0)
    return float(logprob), float(entropy), float((norms[0] / norms[1]).sqrt())


def _rows(variant: Variant, errors: tuple[float, float, float], limits: tuple[float, float]) -> Iterator[Row]:
    for what, unit, value, limit in (
        ("log-probability, mean", "nats", errors[0], limits[0]),
        ("entropy, mean", "nats", errors[1], limits[0]),
        ("gradients, relative", "", errors[2], limits[1]),
    ):
        yield Row(what=f"{variant.name}: {what}", value=value, unit=unit, limit=limit, means=variant.means)


def _moves(folder: Path, ranks: distributed.Ranks, batch: TrainBatch) -> Iterator[Row]:
    """Compares two policies after two updates, one of which uses its reference and offloads its state in between. The
    limit is a small part of an update, not 0, because the backward pass of attention on a GPU may sum in another order
    each time."""
    config = configured(folder, VARIANTS[2])
    config.sampler.release_memory = True
    moved, still = build(config, ranks), build(config, ranks)
    start = {name: tensor.float() for name, tensor in still.named_weights()}
    for policy in (moved, still):
        policy.update(batch, loss_function)
    before = moved.logprobs(batch.tokens)
    with moved.reference():
        reference_logprobs = moved.logprobs(batch.tokens)
    moved.finish_training()
    moved.prepare_for_training()
    error = float(np.abs(moved.logprobs(batch.tokens) - before).max())
    yield Row(
        what="weights after use of the reference",
        value=error,
        unit="nats",
        limit=0.0,
        means="passes are not repeatable on this GPU, or the switch back from the reference changes weights",
    )
    fresh = build(config, ranks).logprobs(batch.tokens)
    error = float(np.abs(fresh - reference_logprobs).max())
    yield Row(
        what="reference against a fresh policy",
        value=error,
        unit="nats",
        limit=0.0,
        means="the copy of the reference in host memory is not what it was: KL would be measured from elsewhere",
    )
    for policy in (moved, still):
        policy.update(batch, loss_function)
    ends = [dict(policy.named_weights()) for policy in (moved, still)]
    difference = sum(float((ends[0][name].float() - ends[1][name].float()).square().sum()) for name in start)
    change = sum(float((ends[1][name].float() - start[name]).square().sum()) for name in start)
    yield Row(
        what="update after offloading, relative",
        value=(difference / change) ** 0.5,
        unit="",
        limit=0.05,
        means="optimizer states do not survive the way to the host and back: write sampler.release_memory=false",
    )
