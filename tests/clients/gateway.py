"""A gateway between a client and the service that first answers with given statuses and then forwards everything."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.background import serve_in_background

HANG_UP = 0
"""A "status" that closes the connection without an answer, like a service that is killed."""


class Gateway:
    """A running gateway. `url` is its address for clients, `num_calls` the number of calls so far."""

    def __init__(self, target: str, statuses: Sequence[int]) -> None:
        self._target, self._statuses, self.num_calls = target, list(statuses), 0
        self._lock = threading.Lock()
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = gateway._answer(self.path, body)
                if status == HANG_UP:
                    return
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        with self._lock:
            self.num_calls += 1
            if self._statuses:
                return self._statuses.pop(0), b'{"detail": "not graded"}'
        try:
            with urllib.request.urlopen(self._target + path, data=body, timeout=60) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@contextmanager
def gateway(url: str, *statuses: int) -> Iterator[Gateway]:
    """Starts a gateway that answers with `statuses` in turn, then forwards to the service at `url`."""
    parts = urlsplit(url)
    made = Gateway(f"{parts.scheme}://{parts.netloc}", statuses)
    serve_in_background(made.server)
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
