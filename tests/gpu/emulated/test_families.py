"""Every family with Transformer Engine's layers in bf16 on packed rows, against Megatron's own layers in fp32. `make
test-te` also runs tests/engines/megatron/test_families.py with these layers, in fp32."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu_check.batches import token_batch
from benchmarks.gpu_check.policy import Variant, configured
from nemo_prorl.config import LayerSpec, Precision
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from tests.engines.conftest import FAMILIES, build_hf_model

EXACT = Variant(name="local fp32", precision=Precision.fp32)
ROUNDED = Variant(name="local bf16")
PACKED = Variant(name="packed", spec=LayerSpec.transformer_engine, packed=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_as_exact_as_those_of_megatrons_own_layers(
    family: str, ranks: Ranks, tmp_path: Path, used: Counter[str]
) -> None:
    """Within 1.3 times the error of bf16 itself. Rows are long, because kinds of rotary embeddings
    differ little at the beginning."""
    folder = build_hf_model(tmp_path, family, dtype="bfloat16")
    batch = token_batch(num_rows=6, longest=200)
    exact, rounded, packed = (
        MegatronPolicy(configured(folder, variant), ranks).logprobs(batch)
        for variant in (EXACT, ROUNDED, PACKED)
    )
    assert any(name.startswith("attention") and "NVTE_THD" in name for name in used)
    mask = batch.response_mask_BT
    error, limit = (np.abs(got - exact)[mask].mean() for got in (packed, rounded))
    print(f"{family}: packed {error:.4f}, local {limit:.4f} nats")
    assert 0 < error < 1.3 * limit
