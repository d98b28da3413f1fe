"""Fixtures of both environments. Sets the engines' environment variables before any test module is imported."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import is_live

if importlib.util.find_spec("torch"):  # only in the trainer's environment; the service's has no torch
    from nemo_prorl.engines import environment

    environment.prepare()

ROOT = Path(__file__).resolve().parents[1]
REWARD_PYTHON = os.environ.get("PRORL_REWARD_PYTHON", str(ROOT / ".venv-reward/bin/python"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real-data",
        metavar="DIR",
        default=os.environ.get("PRORL_REAL_DATA", ""),
        help="folder of real data and weights for tests/real (or PRORL_REAL_DATA); CONTRIBUTING.md says what is in it",
    )


TOGETHER = ("tests/slurm", "tests/engines/megatron", "tests/engines/vllm")
"""Folders whose tests share what takes long to start: a Slurm cluster, jobs of several ranks, an engine."""


def unit(nodeid: str) -> str:
    """Returns what one worker runs as a whole: the folder of a test if it is in TOGETHER, otherwise its file."""
    return next((folder for folder in TOGETHER if nodeid.startswith(f"{folder}/")), nodeid.split("::")[0])


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the live tests, and moves what takes long to the front: short files at the end keep all workers busy."""
    for item in items:
        if is_live(item):
            item.add_marker("live")
    long = {item.path for item in items if item.get_closest_marker("live") or item.get_closest_marker("slow")}
    items.sort(key=lambda item: (unit(item.nodeid) not in TOGETHER, item.path not in long))


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
    """With -n auto, there is a worker for each processor that this process may use, but none without 4 GiB of memory:
    a worker's engines and ranks need them."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(processors, int(memory_gib / 4)))


@pytest.fixture(scope="session")
def real_data(request: pytest.FixtureRequest) -> Path:
    folder = request.config.getoption("--real-data")
    if not folder:
        pytest.skip("needs real data: give its folder with --real-data DIR or PRORL_REAL_DATA")
    return Path(folder).resolve(strict=True)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the real reward service, shared by all trainer tests that only send it requests."""
    from nemo_prorl.config import RewardConfig
    from nemo_prorl.reward_sources.service import reward_service

    config = RewardConfig(python=REWARD_PYTHON, ready_timeout_s=500.0)  # a busy machine is slow
    with reward_service(config, tmp_path_factory.mktemp("service")) as url:
        yield url
