"""A pool of killable workers: one request a worker at a time, each watched from outside.

A worker that computes too long is killed and replaced, and the response gets 0 (`timeout`): the time is the
response's fault. One that was given no processor for too long is killed too, but that is our fault (`failed`). A
worker that dies otherwise is replaced and the request tried again; three deaths in a row are `failed`, except that a
response which crashes its worker (SIGSEGV and the like) gets 0.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from reward import frames
from reward.metrics import Metrics
from reward.sandbox.clock import cpu_s as cpu_s_of
from reward.sandbox.launch import Zygote, ZygoteError

log = logging.getLogger("reward")

_CRASH_SIGNALS = frozenset({4, 6, 7, 8, 11})  # ILL, ABRT, BUS, FPE, SEGV: what a response does to a parser
_MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """`cpu_s`: CPU seconds that a worker may take for one request (None: the worker watches over that itself).
    `wall_s`: wall seconds, the backstop. `queue`: requests that may wait."""

    workers: int
    cpu_s: float | None
    wall_s: float
    queue: int


class Worker(Protocol):
    """One killable process and the socket to it."""

    socket: socket.socket
    pid: int
    spent_s: float
    """CPU seconds that it had used when it last answered, as it said."""

    def end(self) -> int:
        """Kills it, waits for it; the signal that had ended it (9 if it was still alive)."""
        ...


class ForkedWorker:
    """A confined grading process, forked by a zygote."""

    def __init__(self, zygote: Zygote) -> None:
        self.socket, theirs = socket.socketpair()
        self._zygote = zygote
        with theirs:
            self.pid = zygote.spawn([theirs.fileno()])
        self.spent_s = 0.0

    def end(self) -> int:
        self.socket.close()
        return self._zygote.end(self.pid)


class Pool:
    """Workers of one kind. All methods belong to the event loop. `depth`: requests that wait for a worker."""

    def __init__(
        self, name: str, options: PoolOptions, start: Callable[[], Worker], metrics: Metrics
    ) -> None:
        self.name, self.options = name, options
        self._start, self._metrics = start, metrics
        self._idle: deque[Worker] = deque()
        self._all: set[Worker] = set()
        self._waiting: deque[asyncio.Future[Worker]] = deque()
        self.depth = 0
        self._missing = 0
        self._refill: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Starts every worker. Raises ZygoteError or OSError if none can be had."""
        for _ in range(self.options.workers):
            self._adopt(await asyncio.to_thread(self._start))

    async def close(self) -> None:
        self._closed = True
        if self._refill is not None:
            self._refill.cancel()
        for worker in list(self._all):
            await asyncio.to_thread(_end_quietly, worker)
        self._all.clear()

    @property
    def is_full(self) -> bool:
        return self.depth >= self.options.queue

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._all]

    async def run(
        self,
        message: Mapping[str, Any],
        deadline: float | None = None,
        cpu_s: float | None = None,
        urgent: bool = False,
    ) -> dict[str, Any]:
        """The worker's answer, or {"timeout": True}, {"crashed": signal}, {"late": True} (its deadline, a
        time.monotonic value, passed in the queue), {"failed": sentence}. `cpu_s` replaces the pool's limit; urgent
        messages (canaries) go to the head of the queue."""
        last, data = "", frames.encode(message)
        for _ in range(_MAX_ATTEMPTS):
            worker = await self._acquire(deadline, urgent)
            if worker is None:
                return {"late": True}
            try:
                answer = await self._attended(worker, data, cpu_s or self.options.cpu_s)
            except TimeoutError as error:
                self._metrics.kills.add(self.name, str(error))
                await self._replace(worker)
                if str(error) == "cpu":
                    return {"timeout": True}
                return {"failed": f"no answer within {self.options.wall_s:g} s: the machine is too loaded"}
            except asyncio.CancelledError:
                self._replace_soon(worker)
                raise
            except (OSError, EOFError, ValueError) as error:
                signal_number = await self._replace(worker)
                self._metrics.kills.add(self.name, f"signal_{signal_number}")
                if signal_number in _CRASH_SIGNALS:
                    return {"crashed": signal_number}
                last = f"the worker died ({type(error).__name__}, signal {signal_number})"
                continue
            if answer.get("retire"):
                self._replace_soon(worker)
            else:
                self._release(worker)
            if "retry" not in answer:
                return answer
            last = str(answer["retry"])
        return {"failed": f"{last} {_MAX_ATTEMPTS} times in a row"}

    async def _attended(self, worker: Worker, data: bytes, limit_s: float | None) -> dict[str, Any]:
        """The exchange, ended with TimeoutError("cpu" or "wall") when a limit is reached."""
        started = time.monotonic()
        exchange = asyncio.ensure_future(_exchange(worker, data))
        try:
            while True:
                left_s = started + self.options.wall_s - time.monotonic()
                done, _ = await asyncio.wait([exchange], timeout=max(0.0, min(left_s, 0.25)))
                if done:
                    answer = exchange.result()
                    worker.spent_s = answer.get("spent_s", 0.0)
                    return answer
                if limit_s is not None and (cpu_s_of(worker.pid) or 0.0) - worker.spent_s >= limit_s:
                    raise TimeoutError("cpu")
                if time.monotonic() - started >= self.options.wall_s:
                    raise TimeoutError("wall")
        finally:
            exchange.cancel()

    async def _acquire(self, deadline: float | None, urgent: bool) -> Worker | None:
        if self._idle:
            return self._idle.popleft()
        waiter: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if urgent else self._waiting.append)(waiter)
        self.depth += 1
        waiter.add_done_callback(self._has_waited)
        try:
            timeout = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            return await asyncio.wait_for(waiter, timeout)
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release(waiter.result())
            raise

    def _has_waited(self, _waiter: asyncio.Future[Worker]) -> None:
        self.depth -= 1

    def _adopt(self, worker: Worker) -> None:
        worker.socket.setblocking(False)
        self._all.add(worker)
        self._release(worker)

    def _release(self, worker: Worker) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._idle.append(worker)

    async def _replace(self, worker: Worker) -> int:
        """Ends a worker and has another started; the signal that had ended it."""
        self._all.discard(worker)
        self._missing += 1
        signal_number = await asyncio.to_thread(_end_quietly, worker)
        if not self._closed and (self._refill is None or self._refill.done()):
            self._refill = asyncio.get_running_loop().create_task(self._fill())
        return signal_number

    def _replace_soon(self, worker: Worker) -> None:
        task = asyncio.get_running_loop().create_task(self._replace(worker))
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)

    async def _fill(self) -> None:
        delay_s = 0.1
        while self._missing and not self._closed:
            try:
                self._adopt(await asyncio.to_thread(self._start))
                self._missing -= 1
                delay_s = 0.1
            except (ZygoteError, OSError) as error:
                log.warning("pool %s cannot start a worker: %s", self.name, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, 5.0)


_BACKGROUND: set[asyncio.Task[int]] = set()


def _end_quietly(worker: Worker) -> int:
    try:
        return worker.end()
    except (ZygoteError, OSError):  # its zygote is gone, and took the worker along
        return 9


async def _exchange(worker: Worker, data: bytes) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(worker.socket, data)
    received = bytearray()
    while len(received) < frames.LENGTH.size:
        received += await _receive(loop, worker.socket)
    size = frames.LENGTH.unpack_from(received)[0]
    if size > frames.MAX_BYTES:
        raise ValueError("a worker's answer is too long")
    while len(received) < frames.LENGTH.size + size:
        received += await _receive(loop, worker.socket)
    answer = frames.decode(received[frames.LENGTH.size :])
    if not isinstance(answer, dict):
        raise ValueError("a worker's answer is not an object")
    return answer


async def _receive(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bytes:
    data = await loop.sock_recv(connection, 1 << 18)
    if not data:
        raise EOFError("the worker closed its socket")
    return data
