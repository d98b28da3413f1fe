"""A pool of killable workers, each of which handles one message at a time and is watched from outside.

A worker that computes too long is killed and replaced, and the response gets 0 (`timeout`): it is to blame for the
time. So does a response that crashes its worker (SIGSEGV and the like). A worker that gives no answer for too long is
killed too, but a busy machine may be the reason, so the response is not graded. If a worker dies otherwise, it is
replaced and the request tried again; after three deaths the response is not graded.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from reward import frames
from reward.answers import Answer, Crashed, Failed, Invalid, Late, NoReply, NotSent, Reply, Retry, TimedOut
from reward.metrics import Metrics
from reward.sandbox.clock import cpu_s as cpu_s_of
from reward.sandbox.launch import Zygote, ZygoteError

log = logging.getLogger("reward")

_CRASH_SIGNALS = frozenset({4, 6, 7, 8, 11})  # ILL, ABRT, BUS, FPE, SEGV: how a response crashes a parser
_MAX_ATTEMPTS = 3
_WATCH_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """`cpu_s`: CPU seconds that a worker may use per request (None: the worker enforces its own limit). `wall_s`: limit
    in wall seconds, as a backstop. `queue`: requests that may wait."""

    workers: int
    cpu_s: float | None
    wall_s: float
    queue: int


class Worker(Protocol):
    """One killable process and the socket to it."""

    socket: socket.socket
    pid: int
    spent_s: float
    """CPU seconds that it had used in all, as reported with its last answer."""

    def end(self) -> int:
        """Kills it and waits for it. Returns the signal that had ended it (9 if it was still alive)."""


class ForkedWorker:
    """A confined grading process, forked by the fork server (zygote)."""

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
    """Workers of one kind. All methods must be called in the event loop. `depth`: requests that wait for a worker."""

    def __init__(
        self, name: str, options: PoolOptions, start: Callable[[], Worker], metrics: Metrics
    ) -> None:
        self.name, self.options = name, options
        self._start, self._metrics = start, metrics
        self._idle: deque[Link] = deque()
        self._all: set[Link] = set()
        self._waiting: deque[_Waiter] = deque()
        self.depth = 0
        self._missing = 0
        self._refill: asyncio.Task[None] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Starts every worker. Raises ZygoteError or OSError if none can be started."""
        for _ in range(self.options.workers):
            self._release(await self._start_worker())
        self._watchdog = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        self._closed = True
        if tasks := [task for task in (self._refill, self._watchdog) if task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # also end workers that are still being started
        for link in list(self._all):
            await link.end()
        self._all.clear()

    @property
    def is_full(self) -> bool:
        return self.depth >= self.options.queue

    @property
    def pids(self) -> list[int]:
        return [link.worker.pid for link in self._all]

    async def run(
        self,
        message: Mapping[str, Any],
        deadline: float | None = None,
        cpu_s: float | None = None,
        urgent: bool = False,
    ) -> Answer:
        """Returns the worker's answer, or why there is none. `deadline` is a value of time.monotonic; `cpu_s` replaces
        the pool's limit. Urgent messages (known answers) go to the head of the queue."""
        try:
            data = frames.encode(message)
        except ValueError as error:
            return Invalid(f"the task cannot be sent to a worker: {error}")
        reply = await self.ask(data, deadline, cpu_s, urgent)
        return reply.answers[0] if isinstance(reply, Reply) else reply

    async def ask(
        self,
        data: bytes,
        deadline: float | None = None,
        cpu_s: float | None = None,
        urgent: bool = False,
        *,
        num_requests: int = 1,
        num_attempts: int = _MAX_ATTEMPTS,
    ) -> Reply | NotSent:
        """Sends an encoded frame as `run` does. The frame counts as `num_requests` in the queue; `num_attempts`: how
        many workers may die of it."""
        last: Failed | NoReply = Failed("no worker was asked")
        for _ in range(num_attempts):
            link = await self._acquire(deadline, urgent, num_requests)
            if link is None:
                return Late()
            try:
                reply = await link.ask(data, cpu_s or self.options.cpu_s)
            except TimeoutError as error:
                self._metrics.kills.add(self.name, str(error))
                await self._replace(link)
                if str(error) == "cpu":
                    return TimedOut()
                return NoReply(f"no answer within {self.options.wall_s:g} s: the machine may be too loaded")
            except asyncio.CancelledError:
                self._replace_soon(link)
                raise
            except (OSError, EOFError, ValueError) as error:
                signal_number = await self._replace(link)
                self._metrics.kills.add(self.name, f"signal_{signal_number}")
                if signal_number in _CRASH_SIGNALS:
                    return Crashed(signal_number)
                last = NoReply(f"the worker died ({type(error).__name__}, signal {signal_number})")
                continue
            if reply.retire:
                self._replace_soon(link)
            else:
                self._release(link)
            match reply.answers[0]:
                case Retry(reason) if num_requests == 1:
                    last = Failed(reason)
                case _:
                    return reply
        return replace(last, reason=f"{last.reason} {num_attempts} times in a row")

    async def _acquire(self, deadline: float | None, urgent: bool, num_requests: int) -> Link | None:
        if self._idle:
            return self._idle.popleft()
        if deadline is not None and deadline <= time.monotonic():
            return None
        waiter = _Waiter(asyncio.get_running_loop().create_future(), deadline)
        (self._waiting.appendleft if urgent else self._waiting.append)(waiter)
        self.depth += num_requests
        try:
            return await waiter.link
        except asyncio.CancelledError:
            if waiter.link.done() and not waiter.link.cancelled() and (link := waiter.link.result()):
                self._release(link)
            raise
        finally:
            self.depth -= num_requests

    def _release(self, link: Link) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.link.done():
                waiter.link.set_result(link)
                return
        self._idle.append(link)

    async def _watch(self) -> None:
        """Ends requests that have computed or taken too long, and the waiting of requests whose deadline has passed."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            for link in self._all:
                link.check(now, self.options.wall_s)
            for waiter in self._waiting:
                if waiter.deadline is not None and waiter.deadline <= now and not waiter.link.done():
                    waiter.link.set_result(None)

    async def _start_worker(self) -> Link:
        """Starts a worker. Raises ZygoteError or OSError."""
        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            link = Link(await asyncio.shield(starting))
        except asyncio.CancelledError:  # the thread starts it all the same
            await Link(await starting).end()
            raise
        try:
            await link.open()
        except BaseException:
            await link.end()
            raise
        self._all.add(link)
        return link

    async def _replace(self, link: Link) -> int:
        """Ends a worker and has another one started. Returns the signal that had ended it."""
        self._all.discard(link)
        self._missing += 1
        signal_number = await link.end()
        if not self._closed and (self._refill is None or self._refill.done()):
            self._refill = asyncio.get_running_loop().create_task(self._fill())
        return signal_number

    def _replace_soon(self, link: Link) -> None:
        task = asyncio.get_running_loop().create_task(self._replace(link))
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)

    async def _fill(self) -> None:
        delay_s = 0.1
        while self._missing and not self._closed:
            try:
                self._release(await self._start_worker())
                self._missing -= 1
                delay_s = 0.1
            except (ZygoteError, OSError) as error:
                log.warning("pool %s cannot start a worker: %s", self.name, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, 5.0)


_BACKGROUND: set[asyncio.Task[int]] = set()


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A request that waits for a worker: `link` resolves to one, or to None when it is too late."""

    link: asyncio.Future[Link | None]
    deadline: float | None


class Link(asyncio.Protocol):
    """The connection to one worker: sends one message at a time, and returns its reply."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._reply: asyncio.Future[Reply] | None = None
        self._begun, self._limit_s = 0.0, float("inf")

    async def open(self) -> None:
        """Connects to the worker's socket. Raises OSError."""
        self.worker.socket.setblocking(False)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: self, sock=self.worker.socket)

    async def end(self) -> int:
        """Ends the worker. Returns the signal that had ended it (9 if it still ran, or its zygote is gone as well)."""
        if self._transport is not None:
            self._transport.abort()
        try:
            return await asyncio.to_thread(self.worker.end)
        except (ZygoteError, OSError):
            return 9

    async def ask(self, data: bytes, limit_s: float | None) -> Reply:
        """Sends a frame and returns the reply. Raises TimeoutError("cpu" or "wall") at a limit, EOFError or OSError if
        the worker dies, ValueError if its reply is malformed."""
        assert self._transport is not None
        if self._transport.is_closing():  # it died while it was idle
            raise EOFError
        self._reply = asyncio.get_running_loop().create_future()
        self._begun, self._limit_s = time.monotonic(), float("inf") if limit_s is None else limit_s
        self._transport.write(data)
        try:
            reply = await self._reply
        finally:
            self._reply = None
        self.worker.spent_s = reply.spent_s
        return reply

    def check(self, now: float, wall_s: float) -> None:
        """Ends the request if it has used up its CPU or wall time."""
        if self._reply is None:
            return
        if self._limit_s < float("inf"):
            computed_s = (cpu_s_of(self.worker.pid) or 0.0) - self.worker.spent_s
            if computed_s >= self._limit_s:
                self._fail(TimeoutError("cpu"))
        if now - self._begun >= wall_s:
            self._fail(TimeoutError("wall"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < frames.LENGTH.size:
            return
        size = frames.LENGTH.unpack_from(self._received)[0]
        if size > frames.MAX_BYTES:
            self._fail(ValueError("a worker's answer is too long"))
        elif len(self._received) >= frames.LENGTH.size + size:
            body, self._received = self._received[frames.LENGTH.size :], bytearray()
            try:
                reply = Reply.from_frame(frames.decode(body))
            except ValueError as error:
                self._fail(error)
                return
            if self._reply is not None and not self._reply.done():
                self._reply.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error if isinstance(error, OSError) else EOFError("the worker closed its socket"))

    def _fail(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
