"""A pool of killable workers, each of which handles one message at a time and is watched from outside.

A worker that computes too long is killed and replaced, and the response gets 0 (`timeout`): it is to blame for the
time. So does a response that crashes its worker (SIGSEGV and the like). A worker that gives no answer for too long is
killed too, but a busy machine may be the reason, so the response is not graded. If a worker dies otherwise, it is
replaced and the request tried again; after three deaths the response is not graded.

A free worker gets the request that has waited longest, or up to `group` small ones in one message: grading a puzzle or
a rule takes tens of microseconds, and a message of its own several times as much. Only the grader's own answers are
taken from a group. If anything else happens to it, each of its requests is sent again on its own, so only what a
response does alone with a worker can count against it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from reward import frames
from reward.answers import Answer, Crashed, Failed, Invalid, Late, NoReply, Reply, Retry, TimedOut
from reward.metrics import Metrics
from reward.sandbox.clock import cpu_s as cpu_s_of
from reward.sandbox.launch import Zygote, ZygoteError

log = logging.getLogger("reward")

_CRASH_SIGNALS = frozenset({4, 6, 7, 8, 11})  # ILL, ABRT, BUS, FPE, SEGV: how a response crashes a parser
_MAX_ATTEMPTS = 3
_WATCH_S = 0.25
_MAX_GROUP_BYTES = 1 << 20
_GROUP_CPU_S = 1.0
"""CPU seconds after which a group's worker is killed. A worker returns what it has after 0.1 s (reward.worker), so one
that runs into this limit is busy with a single expensive request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """`cpu_s`: CPU seconds that a worker may use per request (None: the worker enforces its own limit). `wall_s`: limit
    in wall seconds, as a backstop. `queue`: requests that may wait. `group`: requests in one message, at most."""

    workers: int
    cpu_s: float | None
    wall_s: float
    queue: int
    group: int = 1


class Worker(Protocol):
    """One killable process and the socket to it."""

    socket: socket.socket
    pid: int

    def end(self) -> int:
        """Kills it and waits for it. Returns the signal that had ended it (9 if it was still alive)."""


class ForkedWorker:
    """A confined grading process, forked by the fork server (zygote)."""

    def __init__(self, zygote: Zygote) -> None:
        self.socket, theirs = socket.socketpair()
        self._zygote = zygote
        with theirs:
            self.pid = zygote.spawn([theirs.fileno()])

    def end(self) -> int:
        self.socket.close()
        return self._zygote.end(self.pid)


@dataclass(slots=True, eq=False)
class _Request:
    """A request that waits for a worker, or that a worker has. `body`: its message as JSON."""

    body: bytes
    deadline: float | None
    cpu_s: float | None
    is_alone: bool
    """Whether it is never part of a group."""
    answer: asyncio.Future[Answer]
    num_attempts: int = 0
    """How many workers could not answer it alone."""

    def resolve(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Pool:
    """Workers of one kind. All methods must be called in the event loop."""

    def __init__(
        self, name: str, options: PoolOptions, start: Callable[[], Worker], metrics: Metrics
    ) -> None:
        self.name, self.options = name, options
        self._start, self._metrics = start, metrics
        self.links: set[Link] = set()
        """One for each worker that runs."""
        self._idle: deque[Link] = deque()
        self._waiting: deque[_Request] = deque()
        self._is_due = False
        """Whether `_dispatch` is about to run."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Starts every worker. Raises ZygoteError or OSError if one cannot be started."""
        for _ in range(self.options.workers):
            await self._add_worker()
        self._in_background(self._watch())

    async def close(self) -> None:
        if tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # also end workers that are still being started
        links, self.links = self.links, set()
        for link in links:
            await link.end()

    @property
    def depth(self) -> int:
        """Number of requests that wait for a worker."""
        return len(self._waiting)

    async def run(
        self,
        message: Mapping[str, Any],
        deadline: float | None = None,
        cpu_s: float | None = None,
        urgent: bool = False,
    ) -> Answer:
        """Returns the worker's answer, or why there is none. `deadline` is a value of time.monotonic; `cpu_s` replaces
        the pool's limit. Urgent messages (known answers) go to the head of the queue, and alone."""
        loop = asyncio.get_running_loop()
        try:
            request = _Request(frames.body(message), deadline, cpu_s, urgent, loop.create_future())
        except ValueError as error:
            return Invalid(f"the task cannot be sent to a worker: {error}")
        (self._waiting.appendleft if urgent else self._waiting.append)(request)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._dispatch)  # after everything that is ready in this turn of the loop
        return await request.answer

    def _dispatch(self) -> None:
        """Hands waiting requests to idle workers."""
        self._is_due = False
        while self._idle and self._waiting:
            requests = self._take()
            cpu_s = _GROUP_CPU_S if len(requests) > 1 else requests[0].cpu_s or self.options.cpu_s
            self._idle.popleft().send(requests, cpu_s)

    def _take(self) -> list[_Request]:
        """Takes the next waiting request, or the next ones that go together, from the queue."""
        taken = [self._waiting.popleft()]
        size = len(taken[0].body)
        while self._waiting and len(taken) < self.options.group:
            size += len(self._waiting[0].body)
            if taken[0].is_alone or self._waiting[0].is_alone or size > _MAX_GROUP_BYTES:
                break
            taken.append(self._waiting.popleft())
        return taken

    def answered(self, link: Link, reply: Reply) -> None:
        """Takes over a worker's reply: the answers to its first requests."""
        if link not in self.links:  # it comes too late, because the worker is being replaced
            return
        requests, link.requests = link.requests, []
        self._waiting.extendleft(reversed(requests[len(reply.answers) :]))
        for request, answer in zip(requests, reply.answers, strict=False):
            if isinstance(answer, Retry):
                self._try_again([request], Failed(answer.reason), was_alone=len(requests) == 1)
            else:
                request.resolve(answer)
        if reply.retire:
            self.lose(link)
        else:
            self._idle.append(link)
        self._dispatch()

    def _try_again(self, requests: list[_Request], last: Failed | NoReply, *, was_alone: bool) -> None:
        """Puts requests back at the head of the queue, or gives one up that has failed too often alone."""
        for request in reversed(requests):
            request.is_alone = True
            request.num_attempts += was_alone
            if request.num_attempts < _MAX_ATTEMPTS:
                self._waiting.appendleft(request)
            else:
                request.resolve(replace(last, reason=f"{last.reason} {_MAX_ATTEMPTS} times in a row"))

    async def _watch(self) -> None:
        """Ends requests that have computed or taken too long, and the waiting of requests whose deadline has passed."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            for link in list(self.links):
                if limit := link.exceeded(now, self.options.wall_s):
                    self.lose(link, limit)
            for request in self._waiting:
                if request.deadline is not None and request.deadline <= now:
                    request.resolve(Late())
            self._waiting = deque(request for request in self._waiting if not request.answer.done())

    def lose(self, link: Link, cause: str = "") -> None:
        """Replaces a worker. cause: the limit that it has exceeded, "cpu" or "wall", or the name of the error by which
        it has failed; empty if it has done nothing wrong."""
        if link in self.links:  # otherwise it is being replaced already
            self.links.remove(link)
            if link in self._idle:
                self._idle.remove(link)
            self._in_background(self._replace(link, cause))

    async def _replace(self, link: Link, cause: str) -> None:
        """Ends a worker, decides what becomes of its requests, and starts another worker."""
        signal_number = await link.end()
        if cause:
            died = cause if cause in ("cpu", "wall") else f"signal_{signal_number}"
            self._metrics.kills.add(self.name, died)
        self._after_loss(link.requests, cause, signal_number)
        self._dispatch()
        delay_s = 0.1
        if cause and not link.requests:  # it died while it was idle, and so may its successors
            await asyncio.sleep(delay_s)
        while True:
            try:
                return await self._add_worker()
            except (ZygoteError, OSError) as error:
                log.warning("pool %s cannot start a worker: %s", self.name, error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 5.0)

    def _after_loss(self, requests: list[_Request], cause: str, signal_number: int) -> None:
        """Resolves the only request of a lost worker if the request is to blame or has taken too long. Others are tried
        again."""
        last = NoReply(f"the worker died ({cause}, signal {signal_number})")
        if len(requests) != 1:
            self._try_again(requests, last, was_alone=False)
        elif cause == "cpu":
            requests[0].resolve(TimedOut())
        elif cause == "wall":
            why = f"no answer within {self.options.wall_s:g} s: the machine may be too loaded"
            requests[0].resolve(NoReply(why))
        elif signal_number in _CRASH_SIGNALS:
            requests[0].resolve(Crashed(signal_number))
        else:
            self._try_again(requests, last, was_alone=True)

    async def _add_worker(self) -> None:
        """Starts a worker, which takes requests from then on. Raises ZygoteError or OSError."""
        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            link = Link(await asyncio.shield(starting), self)
        except asyncio.CancelledError:  # the thread starts it all the same
            await Link(await starting, self).end()
            raise
        try:
            await link.open()
        except BaseException:
            await link.end()
            raise
        self.links.add(link)
        self._idle.append(link)
        self._dispatch()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Link(asyncio.Protocol):
    """The connection to one worker of a pool, with the requests that the worker has."""

    def __init__(self, worker: Worker, pool: Pool) -> None:
        self.worker, self._pool = worker, pool
        self.requests: list[_Request] = []
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._begun, self._limit_s = 0.0, float("inf")
        self._spent_s = 0.0
        """CPU seconds that the worker had used in all, as reported with its last answer."""

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

    def send(self, requests: list[_Request], cpu_s: float | None) -> None:
        """Sends requests to the worker, which has `cpu_s` seconds of CPU time for them."""
        assert self._transport is not None
        self.requests, self._begun = requests, time.monotonic()
        self._limit_s = float("inf") if cpu_s is None else cpu_s
        bodies = b", ".join(request.body for request in requests)
        self._transport.write(frames.framed(b'{"requests": [' + bodies + b"]}"))

    def exceeded(self, now: float, wall_s: float) -> str:
        """Returns the limit that its requests have used up, "cpu" or "wall"; empty if none."""
        if not self.requests:
            return ""
        if self._limit_s < float("inf"):
            computed_s = (cpu_s_of(self.worker.pid) or 0.0) - self._spent_s
            if computed_s >= self._limit_s:
                return "cpu"
        return "wall" if now - self._begun >= wall_s else ""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < frames.LENGTH.size:
            return
        size = frames.LENGTH.unpack_from(self._received)[0]
        try:
            if size > frames.MAX_BYTES:
                raise ValueError("a worker's answer is too long")
            if len(self._received) < frames.LENGTH.size + size:
                return
            body, self._received = self._received[frames.LENGTH.size :], bytearray()
            reply = Reply.from_frame(frames.decode(body))
            if len(reply.answers) > len(self.requests):
                raise ValueError("a worker answers what it was not asked")
        except ValueError as error:
            self._pool.lose(self, type(error).__name__)
            return
        self._spent_s = reply.spent_s
        self._pool.answered(self, reply)

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.lose(self, type(error).__name__ if isinstance(error, OSError) else EOFError.__name__)
