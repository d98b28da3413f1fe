"""Fixtures of all tests. Sets the engines' environment variables before any test module is imported."""

import copy
import gc
import importlib.util
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.live import is_live

gc.disable()  # until all tests are collected, and never for what was imported: that is no garbage

HAS_ENGINES = importlib.util.find_spec("torch") is not None
"""Whether this is a whole environment. In what the image for reward nodes has, only tests/reward can run."""

if HAS_ENGINES:
    from nemo_prorl.engines import environment

    environment.prepare()

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real-data",
        metavar="DIR",
        default=os.environ.get("PRORL_REAL_DATA", ""),
        help="folder of real data and weights for tests/real (or PRORL_REAL_DATA); see `real_data` in this file",
    )


TOGETHER = (
    ("tests/slurm/",),
    ("tests/engines/megatron/",),
    ("tests/engines/vllm/",),
    ("tests/demo/test_smollm2.py", "tests/demo/test_smollm2_tokenizer.py"),
    tuple(
        f"tests/reward/test_{name}.py"
        for name in ("server", "adapters", "client", "frontends", "repetition", "thoughts")
    ),
)
"""Folders and files whose tests share what takes long to start or to fetch: a Slurm cluster, jobs of several ranks, an
engine, a model, a reward service."""


def unit(nodeid: str) -> str:
    """Returns what one worker runs as a whole: the first name of a test's group in TOGETHER, or its file."""
    return next((group[0] for group in TOGETHER if nodeid.startswith(group)), nodeid.split("::")[0])


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the live tests, and moves what takes long to the front: short files at the end keep all workers busy."""
    for item in items:
        if is_live(item):
            item.add_marker("live")
    long = {
        item.path
        for item in items
        if {"live", "medium", "slow"} & {mark.name for mark in item.iter_markers()}
    }
    backwards = {path: -index for index, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(
        key=lambda item: (
            not any(item.nodeid.startswith(group) for group in TOGETHER),
            item.path not in long,
            backwards[item.path],  # tests/training takes longer than tests/algorithm
        )
    )


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadfile, a worker takes a `unit` at a time."""
    from xdist.scheduler import LoadFileScheduling

    if config.getoption("dist") != "loadfile":
        return None
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = unit
    return scheduler


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """With -n auto, there is a worker for each processor that this process may use, but none without 4 GiB of memory: a
    worker's engines and ranks need them."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(processors, int(memory_gib / 4)))


@pytest.fixture(scope="session", autouse=HAS_ENGINES)
def composing_once() -> Iterator[None]:
    """Remembers what Hydra made of files, which takes it 0.15 s: tests ask 600 times for what is mostly the same."""
    from hydra.core.config_store import ConfigStore

    from nemo_prorl.config import compose

    memory: dict[Any, Any] = {}
    of_files = compose._of_files

    def of_files_or_memory(config_name: str, choices: Sequence[str], conf_dir: Path) -> Any:
        files = tuple((path, path.read_bytes()) for path in sorted(conf_dir.rglob("*.yaml")))
        given = ConfigStore.instance().load(f"{compose.GIVEN}.yaml") if config_name == compose.GIVEN else None
        key = (config_name, tuple(choices), conf_dir, files, given and str(given.node))
        if key not in memory:
            memory[key] = of_files(config_name, choices, conf_dir)
        return copy.deepcopy(memory[key])

    with mock.patch.object(compose, "_of_files", of_files_or_memory):
        yield


@pytest.fixture(scope="session")
def real_data(request: pytest.FixtureRequest) -> Path:
    """Folder with the files that experiments/grading/outputs.py names; in eval/, the files of tests/real/test_data.py
    (`EVALUATION`); and stories260K/, karpathy/tinyllamas' model of this name as a Hugging Face checkpoint."""
    folder = request.config.getoption("--real-data")
    if not folder:
        pytest.skip("needs real data: give its folder with --real-data DIR or PRORL_REAL_DATA")
    return Path(folder).resolve(strict=True)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the real reward service, shared by all tests of the trainer that only send it requests."""
    from nemo_prorl.config import RewardConfig
    from nemo_prorl.reward_sources.service import running_service

    config = RewardConfig(ready_timeout_s=500.0)  # a busy machine is slow
    with running_service(config, tmp_path_factory.mktemp("service")) as running:
        yield running.url


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Spares the collections of garbage with which pytest and Python end, which take seconds after many tests."""
    gc.freeze()


@pytest.fixture
def handlers_restored() -> Iterator[None]:
    """Restores the handlers of the signals that `train` catches."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
