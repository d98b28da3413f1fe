"""One service for all tests that only ask it questions; tests that hurt a service start their own."""

from collections.abc import Iterator

import pytest

from tests.reward.serving import Server

SECRET = "s3cr3t-token"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server("--workers", "4", env={"HOSTILE_SECRET": SECRET})
    yield server
    server.stop()
