"""Two ranks with Transformer Engine's layers on packed rows in bf16 and FP8, by the comparison of `make gpu-check`.
`make test-te` also runs all layouts of tests/engines/megatron with these layers, in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu_check.batches import loss_function, token_batch, train_batch
from benchmarks.gpu_check.layouts import CHOSEN, LAYOUTS, measure_all
from benchmarks.gpu_check.policies import TINY, build, folder_of
from benchmarks.gpu_check.policy import BF16, configured
from nemo_prorl import distributed
from nemo_prorl.config import Fp8Recipe
from nemo_prorl.engines.megatron import weights
from tests.engines.conftest import run_ranks
from tests.engines.megatron.helpers import save

PACKED = [variant for variant in CHOSEN if variant.packed]
OF_FP8 = [variant for variant in PACKED if variant.fp8 is not Fp8Recipe.off]


@pytest.mark.slow
def test_layouts_are_within_the_limits_of_gpu_check(tmp_path: Path) -> None:
    errors, of_other_rank = run_ranks(measure_all, 2, workdir=tmp_path, variants=PACKED)
    assert errors == of_other_rank
    assert len(errors) == len(LAYOUTS) * len(PACKED)
    for name, found in errors.items():
        print(f"{name}: {found[0]:.3g} {found[2]:.3g}")
    for variant in PACKED:
        for layout in LAYOUTS:
            logprob, entropy, gradient = errors[f"{variant.name}: {layout}"]
            limits = variant.limits or BF16
            assert max(logprob, entropy) < limits[0], f"{variant.name}: {layout}"
            assert gradient < limits[1], f"{variant.name}: {layout}"


def one_sided(workdir: Path) -> dict[str, Any]:
    """Trains two replicas, of which the second has no rows, so that they make different numbers of passes; then saves
    a policy that is split over both ranks."""
    found: dict[str, Any] = {}
    batch = train_batch(token_batch(num_rows=8, longest=96))
    folder = folder_of(TINY, workdir / "tiny")
    for variant in OF_FP8:
        ranks = distributed.initialise(1, 1)
        policy = build(configured(folder, variant), ranks)
        report = policy.update(batch.select(range(8) if ranks.layout.replica == 0 else []), loss_function)
        found[variant.name] = (report.grad_norm, weights.content_hash(policy.named_weights()))
        split = configured(folder, variant)
        split.trainer.tensor_parallel = 2
        policy = build(split, distributed.initialise(2, 1))
        policy.update(batch, loss_function)
        save(policy, workdir / variant.fp8.name)
        found[f"{variant.name} split"] = policy.logprobs(batch.tokens)
    return found


@pytest.mark.slow
def test_a_replica_without_rows_and_a_checkpoint_of_two_ranks(
    tmp_path: Path, ranks: distributed.Ranks
) -> None:
    first, second = run_ranks(one_sided, 2, workdir=tmp_path)
    batch = train_batch(token_batch(num_rows=8, longest=96))
    for variant in OF_FP8:
        assert first[variant.name] == second[variant.name], "the replicas have grown apart"
        assert first[variant.name][0] > 0
        policy = build(configured(folder_of(TINY, tmp_path / "tiny"), variant), ranks)
        policy.load(tmp_path / variant.fp8.name)
        wanted, mask = first[f"{variant.name} split"], batch.tokens.response_mask_BT
        np.testing.assert_array_equal(wanted, second[f"{variant.name} split"])
        assert np.abs(policy.logprobs(batch.tokens) - wanted)[mask].mean() < 0.25
