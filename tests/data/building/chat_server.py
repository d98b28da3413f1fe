"""A real HTTP server that speaks the chat-completions protocol with scripted answers and failures."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.background import serve_in_background


@dataclass(frozen=True)
class Failure:
    """An error status instead of an answer; retry_after_s becomes the header."""

    status: int
    retry_after_s: float | None = None


@dataclass
class ChatServer:
    url: str
    asked: Counter[str] = field(default_factory=Counter)
    """How often each question arrived."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


Script = Callable[[str, int], "str | Failure"]
"""(question, number of earlier requests for it) -> reply or failure."""


@contextmanager
def chat_server(script: Script, *, takes_s: float = 0.0) -> Iterator[ChatServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question = body["messages"][-1]["content"]
            with state.lock:
                before = state.asked[question]
                state.asked[question] += 1
                state.bodies.append(body)
                state.running += 1
                state.most_at_once = max(state.most_at_once, state.running)
            time.sleep(takes_s)
            with state.lock:
                state.running -= 1
            reply = script(question, before)
            if isinstance(reply, Failure):
                headers = {} if reply.retry_after_s is None else {"Retry-After": str(reply.retry_after_s)}
                self._send(reply.status, {"error": {"message": f"failed with {reply.status}"}}, headers)
                return
            message = {"role": "assistant", "content": reply}
            self._send(
                200,
                {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                },
                {},
            )

        def _send(self, status: int, value: dict[str, Any], headers: dict[str, str]) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            for name, text in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = ChatServer(url=f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = serve_in_background(server)
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
