"""Checkpoints travel between an environment without Transformer Engine and one with it, and FP8's scales come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu_check.batches import loss_function
from benchmarks.gpu_check.policies import build
from benchmarks.gpu_check.policy import Variant, configured
from nemo_prorl.config import Fp8Recipe, LayerSpec, Precision
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.megatron.checkpoint import read_manifest
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.types import TrainBatch
from tests.conftest import ROOT
from tests.engines.megatron.helpers import reference_logprobs, save
from tests.gpu.emulated.local_policy import facts

RECIPES = [Fp8Recipe.delayed, Fp8Recipe.tensorwise, Fp8Recipe.blockwise]


def of_te(
    tiny: Path, ranks: Ranks, precision: Precision = Precision.bf16, fp8: Fp8Recipe = Fp8Recipe.off
) -> MegatronPolicy:
    packed = precision is Precision.bf16
    variant = Variant(name="", spec=LayerSpec.transformer_engine, precision=precision, packed=packed, fp8=fp8)
    return build(configured(tiny, variant), ranks)


def on_a_laptop(tiny: Path, precision: Precision, load: Path | str, saved: Path) -> Any:
    """Returns what `local_policy` finds before and after an update."""
    out = saved.with_suffix(".json")
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("NVTE", "PYTHONPATH"))
    }
    command = [
        sys.executable,
        "-m",
        "tests.gpu.emulated.local_policy",
        tiny,
        precision.name,
        load,
        saved,
        out,
    ]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def assert_equal_but_for_logprobs(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name in got.keys() - {"logprobs"}:
        is_exact = isinstance(got[name], str)
        assert got[name] == (wanted[name] if is_exact else pytest.approx(wanted[name], rel=1e-12)), name


@pytest.mark.parametrize("precision", Precision)
def test_a_checkpoint_goes_to_the_gpu_and_back(
    precision: Precision, tiny: Path, ranks: Ranks, batch: TrainBatch, tmp_path: Path
) -> None:
    """The optimizer changes with the environment: torch's AdamW, and Transformer Engine's FusedAdam."""
    _, saved = on_a_laptop(tiny, precision, "-", tmp_path / "laptop")
    policy = of_te(tiny, ranks, precision)
    (inner,) = (one.optimizer for one in policy.optimizer.chained_optimizers)
    assert type(inner).__module__.startswith("transformer_engine")
    policy.load(tmp_path / "laptop")
    loaded = facts(policy, batch.tokens)
    assert_equal_but_for_logprobs(loaded, saved)
    save(policy, tmp_path / "unchanged")
    policy.update(batch, loss_function)
    save(policy, tmp_path / "gpu")

    back, continued = on_a_laptop(tiny, precision, tmp_path / "unchanged", tmp_path / "laptop again")
    assert back == saved  # log-probabilities too, bit by bit
    moved, _ = on_a_laptop(tiny, precision, tmp_path / "gpu", tmp_path / "laptop at last")
    assert_equal_but_for_logprobs(moved, facts(policy, batch.tokens))
    # An update is the same in both environments, up to the rounding of the layers.
    tolerance = 1e-5 if precision is Precision.fp32 else 0.05
    mask = batch.tokens.response_mask_BT
    for one, other in ((loaded, saved), (facts(policy, batch.tokens), continued)):
        difference = np.abs(np.array(one["logprobs"]) - np.array(other["logprobs"]))[mask].mean()
        assert difference < tolerance
    assert np.abs(np.array(continued["logprobs"]) - np.array(saved["logprobs"]))[mask].mean() > 0.1


@pytest.mark.parametrize("recipe", RECIPES)
def test_fp8_resumes_bit_by_bit(
    recipe: Fp8Recipe, tiny: Path, ranks: Ranks, batch: TrainBatch, tmp_path: Path
) -> None:
    policy = of_te(tiny, ranks, fp8=recipe)
    policy.update(batch, loss_function)
    policy.logprobs(batch.tokens)
    save(policy, tmp_path / "saved")
    manifest = read_manifest(tmp_path / "saved")
    assert (manifest.fp8, "extra" in manifest.contents) == (recipe.name, True)

    def go_on(one: MegatronPolicy) -> list[Any]:
        first = one.logprobs(batch.tokens)
        report = one.update(batch, loss_function)
        return [first, report.grad_norm, one.logprobs(batch.tokens), reference_logprobs(one, batch.tokens)]

    wanted = go_on(policy)
    again = of_te(tiny, ranks, fp8=recipe)
    again.load(tmp_path / "saved")
    for got, value in zip(go_on(again), wanted, strict=True):
        np.testing.assert_array_equal(got, value)
