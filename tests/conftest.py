"""Read in both environments, before any test module: whatever the engines want from the environment is set first."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("torch"):  # the trainer's environment; the service's has no torch
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


@pytest.fixture(scope="session")
def real_data(request: pytest.FixtureRequest) -> Path:
    folder = request.config.getoption("--real-data")
    if not folder:
        pytest.skip("needs real data: give its folder with --real-data DIR or PRORL_REAL_DATA")
    return Path(folder).resolve(strict=True)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the real reward service: one for all of the trainer's tests that only ask it questions."""
    from nemo_prorl.config import RewardConfig
    from nemo_prorl.reward_service import reward_service

    config = RewardConfig(python=REWARD_PYTHON, ready_timeout_s=500.0)  # a busy machine takes its time
    with reward_service(config, tmp_path_factory.mktemp("service")) as url:
        yield url
