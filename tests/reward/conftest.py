"""One service for all tests that only send it requests; tests that damage a service start their own."""

from collections.abc import Iterator

import pytest

from reward.sandbox.cell import Level
from reward.sandbox.execution import Sandbox
from reward.sandbox.probe import failure_of
from tests.reward.serving import Server

SECRET = "s3cr3t-token"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server("--workers", "4", env={"HOSTILE_SECRET": SECRET})
    yield server
    server.stop()


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox that runs programs one after the other, without a service."""
    level = next((level for level in (Level.landlock, Level.namespaces) if not failure_of(level)), None)
    if level is None:
        pytest.skip("this machine has no sandbox")
    sandbox = Sandbox(level)
    yield sandbox
    sandbox.close()
