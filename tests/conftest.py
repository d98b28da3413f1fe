"""Read in both environments, before any test module: whatever the engines want from the environment is set first."""

import importlib.util
import os
from pathlib import Path

import pytest

if importlib.util.find_spec("torch"):  # the trainer's environment; the service's has no torch
    from nemo_prorl.engines import environment

    environment.prepare()


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
