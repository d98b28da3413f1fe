"""Fixtures of the tests with emulated kernels. Without their plugin (`make test-te`) none is collected."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.gpu_check.policies import TINY, folder_of
from nemo_prorl import distributed
from nemo_prorl.types import TrainBatch

IS_EMULATED = "tests.gpu.emulated.plugin" in sys.modules
collect_ignore_glob = [] if IS_EMULATED else ["test_*.py"]


@pytest.fixture(scope="session")
def ranks() -> distributed.Ranks:
    return distributed.initialise(1, 1)


@pytest.fixture
def used() -> Counter[str]:
    """How often each kernel was used since the test began."""
    from tests.gpu.emulated import extension

    extension.used.clear()
    return extension.used


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy whose widths every FP8 recipe supports."""
    return folder_of(TINY, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def batch() -> TrainBatch:
    from benchmarks.gpu_check.batches import token_batch, train_batch

    return train_batch(token_batch(num_rows=8, longest=96))
