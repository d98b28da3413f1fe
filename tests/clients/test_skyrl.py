"""SkyRL's own SandboxFusion client against /run_code. It is in no package: PRORL_SKYRL names a checkout of SkyRL."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

import pytest

from tests.clients.gateway import gateway
from tests.reward.serving import Server

FOLDER = os.environ.get("PRORL_SKYRL", "")
if not FOLDER:  # here, because a fixture would skip only after the service has started
    pytest.skip("needs a checkout of SkyRL: give its folder in PRORL_SKYRL", allow_module_level=True)

TESTS = {"inputs": ["1\n", "3\n"], "outputs": ["2\n", "6\n"]}


@pytest.fixture(scope="module")
def client() -> ModuleType:
    # Only this module, because the packages above it import SkyRL's agents.
    sys.path.insert(0, os.path.join(FOLDER, "skyrl-agent/skyrl_agent/tasks/verifiers/sandbox_fusion"))
    return importlib.import_module("utils")


@pytest.mark.parametrize(
    ("source", "results"),
    [
        ("print(2 * int(input()))", [True, True]),
        ("print(2)", [True, False]),
        ("print(1", [-2, -2]),
        ("import time\ntime.sleep(60)", [-3, -3]),
    ],
)
def test_results(client: ModuleType, server: Server, source: str, results: list[object]) -> None:
    assert client.check_correctness(f"{server.url}/run_code", TESTS, source, timeout=2)[0] == results


def test_it_tries_again_on_504(client: ModuleType, server: Server) -> None:
    one = {name: values[:1] for name, values in TESTS.items()}
    with gateway(server.url, 504) as between:
        assert client.check_correctness(f"{between.url}/run_code", one, "print(2)", timeout=2)[0] == [True]
