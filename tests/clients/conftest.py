"""Services for the client tests, one of them with a token, and single modules of other trainers. `make test-clients`
runs these tests."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock
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


def import_alone(name: str, *, unused: tuple[str, ...] = ()) -> ModuleType:
    """Returns the module `name` without running the __init__ of the packages above it, which would import the whole
    trainer with Ray and engines. `unused`: packages that neighbouring modules import and the client code does not use;
    a stand-in replaces a missing one."""
    above = name.split(".")[:-1]
    for depth in range(1, len(above) + 1):
        package = ".".join(above[:depth])
        if package not in sys.modules:
            spec = importlib.util.find_spec(package)
            assert spec is not None, f"{package} is not installed"
            module = ModuleType(package)
            module.__path__ = list(spec.submodule_search_locations or [])
            sys.modules[package] = module
    for missing in unused:
        if missing not in sys.modules and importlib.util.find_spec(missing) is None:
            sys.modules[missing] = MagicMock()
    return importlib.import_module(name)
