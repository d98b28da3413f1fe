"""The policy with Transformer Engine's layers against float64, by the comparison of `make gpu-check`, and against its
limits. The figures are what a GPU should show but for its kernels' own rounding; experiments/gpu.md lists them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu_check.batches import loss_function, run_config
from benchmarks.gpu_check.policies import TINY, Measured, build, exact, measure
from benchmarks.gpu_check.policy import BF16, FP8, FP32, TEMPERATURE, Variant, compare, configured
from nemo_prorl.config import Fp8Recipe, LayerSpec, Precision, Recompute
from nemo_prorl.distributed import Ranks
from nemo_prorl.types import TrainBatch

RECIPES = [Fp8Recipe.delayed, Fp8Recipe.tensorwise, Fp8Recipe.blockwise]
TE = LayerSpec.transformer_engine
FP32_TE = Variant(name="fp32", spec=TE, precision=Precision.fp32)
PACKED = Variant(name="packed", spec=TE, packed=True)


@pytest.fixture(scope="module")
def expected(tiny: Path, ranks: Ranks, batch: TrainBatch) -> Measured:
    policy = build(configured(tiny, FP32_TE), ranks)
    return exact(dict(policy.named_weights()), TINY, batch, TEMPERATURE)


@pytest.mark.parametrize("recompute", Recompute)
@pytest.mark.parametrize(
    ("variant", "limits", "attention"),
    [
        (FP32_TE, FP32, ""),  # cuDNN has no attention in fp32, so Transformer Engine's own PyTorch runs
        (Variant(name="padded", spec=TE), BF16, "NVTE_SBHD NVTE_CAUSAL_MASK"),
        (PACKED, BF16, "NVTE_THD NVTE_PADDING_CAUSAL_MASK"),
        *(
            (Variant(name=r.name, spec=TE, packed=True, fp8=r), FP8[r], "NVTE_THD NVTE_PADDING_CAUSAL_MASK")
            for r in RECIPES
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_variant_is_within_the_limits_of_gpu_check(
    variant: Variant,
    limits: tuple[float, float],
    attention: str,
    recompute: Recompute,
    tiny: Path,
    ranks: Ranks,
    batch: TrainBatch,
    expected: Measured,
    used: Counter[str],
) -> None:
    config = configured(tiny, variant)
    config.model.recompute = recompute
    logprob, entropy, gradient = compare(measure(build(config, ranks), batch), expected, batch)
    print(f"{variant.name} {recompute.name}: {logprob:.3g} {entropy:.3g} {gradient:.3g}")
    assert max(logprob, entropy) < limits[0]
    assert gradient < limits[1]
    assert [name.partition(" ")[2] for name in used if name.startswith("attention")] == [attention] * bool(
        attention
    )
    assert used["gemm into main_grad"]
    assert used["adam"]
    num_fp8 = sum(count for name, count in used.items() if name.endswith("Quantizer"))
    assert bool(num_fp8) is (variant.fp8 is not Fp8Recipe.off)
    if variant.fp8 is not Fp8Recipe.off:
        # Far from what bf16 gives: else the products were not in FP8.
        assert logprob > BF16[0]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_reference_is_that_of_a_fresh_policy(
    recipe: Fp8Recipe, tiny: Path, ranks: Ranks, batch: TrainBatch
) -> None:
    """Layers keep weights in FP8 from pass to pass, and must make new ones for the reference and after it. Only with
    `delayed` do earlier passes matter, as docs/gpu.md says."""
    config = configured(tiny, Variant(name="", spec=TE, packed=True, fp8=recipe))
    policy = build(config, ranks)
    first = policy.logprobs(batch.tokens)
    policy.update(batch, loss_function)
    before = policy.logprobs(batch.tokens)
    with policy.reference():
        reference = policy.logprobs(batch.tokens)
    after = policy.logprobs(batch.tokens)
    mask = batch.tokens.response_mask_BT
    assert np.abs(before - first)[mask].mean() > 0.1  # the update was large
    if recipe is Fp8Recipe.delayed:
        assert 0 < np.abs(reference - first)[mask].mean() < 0.5
    else:
        np.testing.assert_array_equal(reference, first)
        np.testing.assert_array_equal(after, before)


def test_gradients_do_not_depend_on_where_they_are_added(
    tiny: Path, ranks: Ranks, batch: TrainBatch, used: Counter[str]
) -> None:
    """In the matrix product (Transformer Engine's fusion, without Apex), or by autograd and Megatron's hooks."""
    fused, plain = (build(configured(tiny, FP32_TE), ranks) for _ in range(2))
    for module in plain.model.modules():
        if hasattr(module, "fuse_wgrad_accumulation"):
            module.fuse_wgrad_accumulation = False
    got = measure(fused, batch)
    # Four products in each of two layers.
    products = 8 * len(fused._plan(batch.tokens))
    assert used["gemm into main_grad"] == products
    wanted = measure(plain, batch)
    assert used["gemm into main_grad"] == products
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(got.gradients[name], gradient, rtol=1e-6, atol=1e-9, msg=name)
    assert [policy.in_use()["gradient accumulation"] for policy in (fused, plain)] == ["fused", "plain"]


def test_a_configuration_of_a_user_packs_by_itself(tiny: Path, ranks: Ranks) -> None:
    """With the defaults of `model.layer_spec` and `trainer.packing`."""
    config = run_config(tiny)
    config.model.precision = Precision.bf16
    used = build(config, ranks).in_use()
    assert used["layers"].startswith("Transformer Engine 2.15")
    assert used["sequences"] == "packed"
    assert used["trainer's attention"] == "TEDotProductAttention"
