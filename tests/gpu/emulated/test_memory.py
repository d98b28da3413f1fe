"""`plan --memory` against the tensors of a policy with Transformer Engine's layers and optimizer: weights, reference,
gradients, optimizer states, and what a save copies. Activations are left out: what a kernel keeps is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check.batches import loss_function
from nemo_prorl.cluster.scale.memory import fp8_weights
from nemo_prorl.config import Fp8Recipe
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.types import TrainBatch
from tests.cluster.scale.test_memory_of_engines import check, held_and_estimated, measure_all
from tests.cluster.scale.test_memory_of_engines import model as model
from tests.engines.conftest import run_ranks
from tests.gpu.emulated.test_checkpoints import RECIPES, of_te

TE = "transformer_engine"


def without_activations(parts: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return {name: sizes for name, sizes in parts.items() if name != "activations"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_rank(model: Path, precision: str) -> None:
    check(without_activations(held_and_estimated(model, {}, precision, TE)), precision)


@pytest.mark.slow
def test_two_ranks(model: Path) -> None:
    for rank in run_ranks(measure_all, 2, path=model, spec=TE):
        for name, parts in rank.items():
            check(without_activations(parts), name)


def fp8_copies(policy: MegatronPolicy) -> float:
    """Bytes of the FP8 numbers of all weights, without their scales."""
    copies = (
        one for module in policy.model.modules() for one in getattr(module, "_fp8_workspaces", {}).values()
    )
    parts = (getattr(one, name, None) for one in copies for name in dir(one) if name in PARTS)
    return float(sum(part.nbytes for part in parts if part is not None))


PARTS = ("_data", "_transpose", "_rowwise_data", "_columnwise_data")


@pytest.mark.parametrize("recipe", RECIPES)
def test_fp8_copies_of_weights_are_planned_and_none_outlives_the_call(
    recipe: Fp8Recipe, tiny: Path, ranks: Ranks, batch: TrainBatch
) -> None:
    policy = of_te(tiny, ranks, fp8=recipe)
    held = []

    def watching(*arguments: Any) -> Any:
        held.append(fp8_copies(policy))
        return loss_function(*arguments)

    policy.update(batch, watching)
    planned = fp8_weights(policy.architecture, policy.config, 0, 2)["FP8 weights"]
    assert max(held) == pytest.approx(planned, rel=0.02)
    assert fp8_copies(policy) == 0
    policy.logprobs(batch.tokens)
    assert fp8_copies(policy) == 0
