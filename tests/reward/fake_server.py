"""A reward server for tests that gives scripted answers and records what it is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from reward.protocol import PROTOCOL_VERSION
from tests.background import serve_in_background
from tests.reward.serving import Address

Items = list[dict[str, Any]]
HANG_UP = 0
"""A "status" that closes the connection without an answer."""


def graded(items: Items, **changes: Any) -> Items:
    """Returns a result with the score 1 for each item."""
    result = {"status": "graded", "score": 1.0, "verdict": "v", "details": {}, "version": "v1"}
    return [{"request_id": item["request_id"], **result, **changes} for item in items]


def right(items: Items) -> tuple[int, Any]:
    return 200, graded(items)


class FakeServer:
    """`answer`: returns the status and the results, or the body, of a batch. `report` changes the report of a ready
    server of one domain, "math"."""

    def __init__(self, answer: Callable[[Items], tuple[int, Any]] = right, **report: Any) -> None:
        self.answer = answer
        self.report: dict[str, Any] | bytes = {
            "ready": True, "protocol": PROTOCOL_VERSION, "version": "v1", "workers": 2, "sandbox": "none",
            "domains": {"math": {"ready": True}}, **report,
        }  # fmt: skip
        """The answer of /readyz."""
        self.batches: list[Items] = []
        self.tokens: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.tokens.append(self.headers.get("Authorization", ""))
                self.reply(200, fake.report)

            def do_POST(self) -> None:
                lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
                items = [json.loads(line) for line in lines]
                fake.batches.append(items)
                status, body = fake.answer(items)
                if status == HANG_UP:
                    self.close_connection = True
                    self.connection.close()
                else:
                    self.reply(status, {"items": body} if isinstance(body, list) else body)

            def reply(self, status: int, body: Any) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        serve_in_background(self._server)

    @property
    def asked(self) -> Items:
        """All requests so far."""
        return [item for batch in self.batches for item in batch]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def fake_servers() -> Iterator[Callable[..., FakeServer]]:
    """Yields a function that makes servers, and closes them at the end."""
    made: list[FakeServer] = []

    def make(*arguments: Any, **report: Any) -> FakeServer:
        made.append(FakeServer(*arguments, **report))
        return made[-1]

    yield make
    for fake in made:
        fake.close()


@contextmanager
def gateway(url: str, *statuses: int) -> Iterator[FakeServer]:
    """Yields a server that answers with `statuses` in turn, and then with what the URL of a service answers."""
    left, service = list(statuses), Address(url)

    def answer(items: Items) -> tuple[int, bytes]:
        if left:
            return left.pop(0), b'{"detail": "not graded"}'
        status, _, body = service.call("", items[0])
        return status, body

    with fake_servers() as make:
        yield make(answer)
