"""Services for the client tests, one of them with a token. `make test-clients` runs these tests."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.reward.serving import Server

TOKEN = "0123456789abcdef:/@%"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server("--workers", "2")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def guarded_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the URL, including the token, of a service that requires one."""
    path: Path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    server = Server("--workers", "1", "--token-file", str(path))
    yield server.url.replace("//", f"//reward:{quote(TOKEN, safe='')}@")
    server.stop()
