"""What a job asks of its machine and of Slurm's commands."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from subprocess import CompletedProcess

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


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (CompletedProcess("", 0, "7 RUNNING\n", ""), "RUNNING"),
        (CompletedProcess("", 0, "9 RUNNING\n7 COMPLETING\n", ""), "COMPLETING"),
        (
            CompletedProcess("", 0, "9 RUNNING\n8 PENDING\n", ""),
            "",
        ),  # of the array, whose last task has ended
        (CompletedProcess("", 1, "", "slurm_load_jobs error: Invalid job id specified"), ""),
        (CompletedProcess("", 1, "", "Unable to contact slurm controller"), None),
    ],
)
def test_the_state_of_a_job_is_not_that_of_its_array(
    answer: CompletedProcess[str], state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "run", lambda *_: answer)
    monkeypatch.setattr(commands, "PAUSE_S", 0.0)
    assert commands.state_of("7") == state
