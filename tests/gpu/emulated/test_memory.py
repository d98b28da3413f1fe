"""`plan --memory` against the tensors of a policy with Transformer Engine's layers and optimizer: weights, reference,
gradients, optimizer states, and what a save copies. Activations are left out: what a kernel keeps is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.scale.test_memory_of_engines import check, held_and_estimated, measure_all
from tests.cluster.scale.test_memory_of_engines import model as model
from tests.engines.conftest import run_ranks

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
