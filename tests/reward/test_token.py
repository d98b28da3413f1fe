"""Tests of a service with a token: it guards everything but the pulse, in every form in which clients can send it."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from starlette.requests import Request

from reward.server import Front
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
    # A zygote begins a worker anew after each hang.
    several = wait_until(lambda: len(server.descendants()) >= 4)
    below = server.descendants()
    assert server.stop() == 0
    assert several
    assert wait_until(lambda: not alive(below))


def test_a_token_guards_everything_but_the_pulse(guarded: Server) -> None:
    assert guarded.call("/healthz")[0] == 200
    for path in ("/readyz", "/metrics"):
        assert [guarded.call(path, token=token)[0] for token in ("", TOKEN[:16], TOKEN)] == [401, 401, 200]
    for path in ("/v1/score", "/v1/score_batch", "/openrlhf", "/slime"):
        assert guarded.call(path, boxed("5", "5"), token="wrong")[0] == 401
    assert guarded.call("/v1/score", boxed("5", "5"), token=TOKEN)[0] == 200


def test_the_token_is_in_no_command_line_and_no_log(guarded: Server) -> None:
    for pid in [guarded.process.pid, *guarded.descendants()]:
        assert TOKEN.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert TOKEN not in guarded.log.read_text()


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "is_right"),
    [
        (f"Bearer {TOKEN}", True),
        (basic(f"reward:{TOKEN}"), True),
        (basic(f":{TOKEN}"), True),
        (basic(f"reward:{TOKEN}x"), False),
        (basic(f"{TOKEN}:"), False),
        (basic("reward"), False),
        ("Basic %%%", False),
        ("Basic", False),
        ("Bearer ", False),
        ("", False),
    ],
)
def test_the_token_is_a_bearer_or_the_password_of_the_url(authorization: str, is_right: bool) -> None:
    request = Request({"type": "http", "headers": [(b"authorization", authorization.encode())]})
    assert Front(None, None, TOKEN).admits(request) is is_right  # type: ignore[arg-type]
    assert Front(None, None, None).admits(request)  # type: ignore[arg-type]
