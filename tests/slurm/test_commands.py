"""What a job asks of its machine and of Slurm's commands."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from slurm.job import commands


@pytest.fixture(params=["both", "no IPv6", "no sockets"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel that may refuse families of addresses, as with ipv6.disable=1."""
    refused = {"both": (), "no IPv6": (socket.AF_INET6,), "no sockets": (socket.AF_INET6, socket.AF_INET)}

    class Socket(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *others: object) -> None:
            if family in refused[request.param]:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Socket)
    return str(request.param)


@pytest.fixture
def used() -> Iterator[int]:
    """A port on which somebody listens, by IPv4."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_is_chosen_whatever_the_kernel_has(used: int, kernel: str) -> None:
    port = commands.free_port([used, used + 1, used + 2])
    assert (port == used) == (kernel == "no sockets")
