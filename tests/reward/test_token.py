"""Tests of a service with a token: it guards everything but the pulse, in every form in which clients can send it."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.reward.serving import Server, alive, boxed, wait_until

TOKEN = "0123456789abcdef:/@%"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service that any machine could reach. At the end it has to stop at a SIGTERM and to leave no process."""
    path: Path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    server = Server("--workers", "1", "--host", "0.0.0.0", "--token-file", str(path))
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    yield server
    several = wait_until(
        lambda: len(server.descendants()) >= 4
    )  # a zygote begins a worker anew after each hang
    below = server.descendants()
    assert server.stop() == 0
    assert several
    assert wait_until(lambda: not alive(below))


def test_a_token_guards_everything_but_the_pulse(guarded: Server) -> None:
    assert guarded.call("/healthz")[0] == 200
    for path in ("/readyz", "/metrics"):
        assert guarded.call(path)[0] == 401
        assert guarded.call(path, token="0123456789abcdef")[0] == 401
        assert guarded.call(path, token=TOKEN)[0] == 200
    assert guarded.call("/v1/score", boxed("5", "5"))[0] == 401
    assert guarded.call("/v1/score", boxed("5", "5"), token=TOKEN)[0] == 200


def test_the_token_is_in_no_command_line_and_no_log(guarded: Server) -> None:
    for pid in [guarded.process.pid, *guarded.descendants()]:
        assert TOKEN.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert TOKEN not in guarded.log.read_text()


def status_of(server: Server, path: str, authorization: str) -> int:
    body = json.dumps({"prompt": "", "response": "\\boxed{4}", "label": "4"}).encode()
    message = urllib.request.Request(server.url + path, data=body, headers={"Authorization": authorization})
    try:
        with urllib.request.urlopen(message, timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (basic(f"reward:{TOKEN}"), 200),
        (basic(f":{TOKEN}"), 200),
        (basic(f"reward:{TOKEN}x"), 401),
        (basic(f"{TOKEN}:"), 401),
        (basic("reward"), 401),
        ("Basic %%%", 401),
        ("Basic", 401),
        ("Bearer ", 401),
        ("", 401),
    ],
)
def test_the_token_is_a_bearer_or_the_password_of_the_url(
    guarded: Server, authorization: str, status: int
) -> None:
    assert status_of(guarded, "/slime", authorization) == status


@pytest.mark.parametrize("path", ["/openrlhf", "/slime", "/verify", "/seed_session", "/aggregate_metrics"])
def test_every_front_end_wants_the_token(guarded: Server, path: str) -> None:
    assert status_of(guarded, path, "Bearer wrong") == 401
