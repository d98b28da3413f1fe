"""Each field of model.megatron that docs/gpu.md lists, in an update with Transformer Engine's layers. Every case has a
process of its own, because Megatron keeps the choice of attention in environment variables."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check.batches import loss_function, token_batch, train_batch
from benchmarks.gpu_check.policies import build
from benchmarks.gpu_check.policy import Variant, configured
from nemo_prorl import distributed
from nemo_prorl.config import Fp8Recipe, LayerSpec, Recompute
from nemo_prorl.engines import passthrough
from tests.conftest import ROOT
from tests.engines.conftest import run_ranks


def update(
    folder: Path, megatron: dict[str, Any], model: dict[str, Any]
) -> tuple[float, dict[str, int], str]:
    """Returns the gradient's norm, the kernels that ran, and the setting of Transformer Engine for exact repetition."""
    from tests.gpu.emulated import extension

    for name in [name for name in os.environ if name.startswith("NVTE_")]:
        del os.environ[name]  # of policies before, in the process that forked this one
    config = configured(folder, Variant(name="", spec=LayerSpec.transformer_engine, packed=True))
    config.model.megatron = megatron
    for option, value in model.items():
        setattr(config.model, option, value)
    policy = build(config, distributed.initialise(1, 1))
    extension.used.clear()
    norm = policy.update(train_batch(token_batch(num_rows=4, longest=48)), loss_function).grad_norm
    return norm, dict(extension.used), os.environ.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "")


SELECTIVE = {"recompute": Recompute.selective}
DELAYED, TENSORWISE, BLOCKWISE = (
    {"fp8": recipe} for recipe in (Fp8Recipe.delayed, Fp8Recipe.tensorwise, Fp8Recipe.blockwise)
)
SAME = [
    ({"recompute_modules": ["core_attn", "mlp"]}, SELECTIVE),
    ({"recompute_modules": ["layernorm", "core_attn"]}, SELECTIVE),
    ({"attention_backend": "auto"}, {}),
    ({"attention_backend": "fused"}, {}),
    ({"bias_dropout_fusion": True}, {}),
    ({"deterministic_mode": True}, {}),
    ({"disable_bf16_reduced_precision_matmul": True}, {}),
    ({"clone_scatter_output_in_embedding": False}, {}),
    ({"overlap_grad_reduce": True, "bucket_size": 40_000}, {}),
    ({"pad_buckets_for_high_nccl_busbw": True}, {}),
    ({"batch_p2p_comm": False, "batch_p2p_sync": False}, {}),
    ({"barrier_with_L1_time": False}, {}),
]
"""What changes speed and memory alone."""
OTHER = [
    ({"fp8_margin": 1, "fp8_amax_history_len": 16, "fp8_amax_compute_algo": "max"}, DELAYED),
    (
        {
            "first_last_layers_bf16": True,
            "num_layers_at_start_in_bf16": 1,
            "num_layers_at_end_in_bf16": 1,
        },
        BLOCKWISE,
    ),
    ({"first_last_layers_bf16": True}, TENSORWISE),
]
"""What changes the rounding as well."""
ON_A_GPU_ALONE = {"cpu_offloading", "cpu_offloading_num_layers"}
"""They copy activations on a stream of their own."""


def names(case: Any) -> str:
    return ", ".join(case) if isinstance(case, dict) else ""


@pytest.fixture(scope="module")
def plain(tiny: Path) -> float:
    return float(run_ranks(update, 1, folder=tiny, megatron={}, model={})[0][0])


@pytest.mark.parametrize(("megatron", "model"), SAME, ids=names)
def test_a_setting_of_speed_leaves_the_gradient_as_it_is(
    megatron: dict[str, Any], model: dict[str, Any], tiny: Path, plain: float
) -> None:
    ((norm, used, nondeterministic),) = run_ranks(update, 1, folder=tiny, megatron=megatron, model=model)
    assert norm == plain
    assert used["attention NVTE_THD NVTE_PADDING_CAUSAL_MASK"] >= 2
    assert nondeterministic == ("0" if "deterministic_mode" in megatron else "")


@pytest.mark.parametrize(("megatron", "model"), OTHER, ids=names)
def test_a_setting_of_rounding_changes_the_gradient_a_little(
    megatron: dict[str, Any], model: dict[str, Any], tiny: Path, plain: float
) -> None:
    ((norm, used, _),) = run_ranks(update, 1, folder=tiny, megatron=megatron, model=model)
    assert norm == pytest.approx(plain, rel=0.05)
    num_layers_in_bf16 = 2 if "first_last_layers_bf16" in megatron else 0
    # Each of the two layers has four linear parts.
    assert bool([name for name in used if "Quantizer" in name]) is (num_layers_in_bf16 == 0)


REFUSED = {
    "Delayed scaling does not support": ({"recompute_modules": ["layernorm"]}, SELECTIVE | DELAYED),
    "fp8_amax_compute_algo": ({"fp8_amax_compute_algo": "mean"}, DELAYED),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_an_engine_refuses_is_an_error_of_the_configuration(message: str, tiny: Path) -> None:
    megatron, model = REFUSED[message]
    with pytest.raises(AssertionError, match=rf"ConfigError: .*model\.megatron=.*{message}"):
        run_ranks(update, 1, folder=tiny, megatron=megatron, model=model)


def test_every_field_that_the_page_lists_is_tried() -> None:
    section = (ROOT / "docs" / "gpu.md").read_text().split("## Settings of vLLM and Megatron-Core")[1]
    (listed,) = re.findall(r"rounding alone:\n\n(.*?)\n\n", section, re.DOTALL)
    tried = {name for megatron, _ in SAME + OTHER for name in megatron}
    assert tried | ON_A_GPU_ALONE == set(re.findall(r"`(\w+)`", listed))
    assert set(passthrough.TAKES_EFFECT_WITH) < tried
