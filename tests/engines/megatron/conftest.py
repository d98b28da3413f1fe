"""One process of the Megatron policy for tests that need no more, and the worlds of two and four ranks that the tests
of layouts and of checkpoints share: starting ranks is what takes time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_prorl import distributed
from tests.engines.conftest import run_ranks
from tests.engines.megatron.helpers import MakePolicy, World, measure_all
from tests.engines.megatron.layouts import ALONE, FOUR, QUICK, TWO


@pytest.fixture(scope="session")
def ranks() -> distributed.Ranks:
    return distributed.initialise(1, 1)


@pytest.fixture
def make_policy(hf_models: dict[str, Path], ranks: distributed.Ranks) -> MakePolicy:
    """make_policy("qwen2", chunk=8, learning_rate=...): a policy in this process."""
    from nemo_prorl.engines.megatron.policy import MegatronPolicy
    from tests.engines.megatron.helpers import run_config

    def make(model: str = "qwen2", **changes: Any) -> MegatronPolicy:
        return MegatronPolicy(run_config(hf_models[model], **changes), ranks)

    return make


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a checkpoint WORLD/CASE of every case, saved between its two updates."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def one(hf_models: dict[str, Path], checkpoints: Path) -> World:
    return World(ranks=[measure_all(ALONE, hf_models, checkpoints, "one")])


@pytest.fixture(scope="session")
def quick(hf_models: dict[str, Path]) -> World:
    return World(
        ranks=run_ranks(measure_all, 4, cases=QUICK, models=hf_models, checkpoints=None, world="quick")
    )


@pytest.fixture(scope="session")
def two(hf_models: dict[str, Path], checkpoints: Path, one: World) -> World:
    return World(
        ranks=run_ranks(measure_all, 2, cases=TWO, models=hf_models, checkpoints=checkpoints, world="two")
    )


@pytest.fixture(scope="session")
def four(hf_models: dict[str, Path], checkpoints: Path, one: World, two: World) -> World:
    return World(
        ranks=run_ranks(measure_all, 4, cases=FOUR, models=hf_models, checkpoints=checkpoints, world="four")
    )
