"""HTTP connections with limits: on their number, and on the time that a request takes to arrive.

Uvicorn waits forever for the rest of a request. Half-sent requests would accumulate until the process has no file
descriptor left, and without one it cannot start a worker either.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ARRIVAL_S = 30.0
"""Seconds within which a request has to arrive. Our own client sends each in one piece."""
MIN_BYTES_PER_S = 64 << 10
"""A body gets one more second for each 64 KiB that have arrived, the speed of a poor mobile network. So the longest
body (192 MiB) may take 52 minutes, while one that stops arriving is cut off soon."""
KEEP_ALIVE_S = 75
"""Seconds after which an idle connection is closed, as in nginx. Longer than clients keep one open (aiohttp: 15 s): if
the service closed first, a client could send a request into a connection that is just closing."""
MAX_CONNECTIONS = 16_384
"""Connections open at a time. Our client uses at most one per batch, and has 4 * workers + 32 requests in flight per
server."""
_OTHER_DESCRIPTORS = 512
"""File descriptors reserved for workers, which take one each, and for starting them."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 21\r\n\r\ntoo many connections\n"
)


def raise_descriptor_limit() -> int:
    """Raises this process's limit of open files as far as the system allows and it may need. Returns the number of
    connections that this leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    room = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - _OTHER_DESCRIPTORS
    return max(32, min(MAX_CONNECTIONS, room))


class Connection(HttpToolsProtocol):
    """A uvicorn connection that closes itself when a request takes too long to arrive. A request that arrives in one
    piece needs no timer."""

    max_connections = MAX_CONNECTIONS
    arrival_s = ARRIVAL_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._arriving = True
        """Whether the server is waiting for the first request, or for the rest of one."""
        self._began_s = 0.0
        self._body_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.write(_FULL)
            transport.close()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_idle = self.cycle is not None and self.cycle.response_complete
        if not self._arriving and is_idle and self.timeout_keep_alive_task is None:
            self._arriving = True  # line breaks before a request end uvicorn's wait for the next one
        if not self._arriving:
            self._unwatch()
        elif self._timer is None:
            self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arriving, self._body_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._arriving = False

    def _watch(self) -> None:
        self._began_s = self.loop.time()
        self._timer = self.loop.call_later(self.arrival_s, self._check)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Closes the connection unless enough of the body has arrived to allow it more time."""
        self._timer = None
        if self.transport.is_closing():
            return
        left_s = self._began_s + self.arrival_s + self._body_bytes / MIN_BYTES_PER_S - self.loop.time()
        # A request queued behind one that is still being answered waits for us; reading may be paused then.
        is_behind = self.cycle is not None and self.cycle.scope is not self.scope
        if self.pipeline or (is_behind and not self.cycle.response_complete):
            left_s = self.arrival_s
        if left_s > 0.0:
            self._timer = self.loop.call_later(left_s, self._check)
        else:
            self.transport.close()
