"""The trainer's side: submit responses as they finish, get verdicts as futures. Standard library and aiohttp only.

    client = RewardClient(discovery_dir=run_dir / "reward_servers", token_file=run_dir / "token")
    client.wait_until_ready(timeout_s=120)
    future = client.submit(ScoreRequest(...))     # from any thread, as soon as a response is complete
    result = future.result()                      # never raises; without a score if the service has not graded

Requests travel in batches of one domain to the server with the fewest outstanding ones per worker, that of this node
before others. Those that a server does not grade (it is overloaded, fails or is gone) are tried again elsewhere, after
growing, jittered pauses; a server that comes back is used again (reward.servers). A request whose time or attempts are
spent resolves to `infra_error`, with the reason and without a score.

Time: `request_timeout_s` bounds one attempt; `request_timeout_s * max_attempts`, or the request's own deadline_ms if
that is shorter, bounds a request from its submission. Waiting for a server that has room, or for any server, uses up
time but no attempts; a server's failure on the request uses up one attempt.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from reward import frames
from reward.protocol import MAX_BATCH_ITEMS, MAX_RESPONSE_BYTES, GradeStatus, ScoreRequest, ScoreResult
from reward.servers import KnownServer, Servers

_LINGER_S = 0.002
_SWEEP_S = 0.25
"""Seconds between searches for items whose time is up; one search per batch would be quadratic in the items."""
_MAX_PAUSE_S = 5.0


class RewardServiceError(RuntimeError):
    """The service cannot be used; the message is one sentence."""


class CannotGrade(RewardServiceError):
    """Servers are ready, but none of them will ever grade one of the required domains."""


class _Busy(ValueError):
    """A server answered a whole batch with "too many requests" or "unavailable": it has tried none of them."""


_NOT_TRIED = (_Busy, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Failures of a batch that its server has not begun."""


@dataclass(slots=True, eq=False)
class _Item:
    request_id: str
    domain: str
    future: Future[ScoreResult]
    expires: float
    """When it is given up, by time.monotonic."""
    body: str = ""
    """The request as JSON, without its deadline."""
    attempts: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """How often each server, by its URL, did not grade this item."""
    reason: str = ""
    """Why the last try did not grade it; empty before the first."""


class RewardClient:
    """Runs an asyncio loop of its own in one daemon thread, from its first use on. The public methods may be called
    from any thread."""

    def __init__(
        self,
        *,
        urls: Sequence[str] = (),
        discovery_dir: Path | None = None,
        token_file: Path | None = None,
        request_timeout_s: float = 60.0,
        max_attempts: int = 5,
        batch_items: int = 32,
        version: str = "",
        domains: Collection[str] = (),
    ) -> None:
        """Servers come from `urls`, or from the ready files (*.json) in `discovery_dir`, which is read again and again.
        version, domains: those of the service, if they are known already. Raises RewardServiceError."""
        if bool(urls) == (discovery_dir is not None):
            raise RewardServiceError("give the reward client either urls or a discovery_dir")
        if not 1 <= batch_items <= MAX_BATCH_ITEMS or max_attempts < 1 or request_timeout_s <= 0:
            raise RewardServiceError(
                f"batch_items must be 1 to {MAX_BATCH_ITEMS}, max_attempts and request_timeout_s positive"
            )
        self._servers = Servers(
            urls=[url.rstrip("/") for url in urls], folder=discovery_dir, on_ready=lambda: self._wake.set()
        )
        self._servers.version, self._servers.domains = version, frozenset(domains)
        self._headers: dict[str, str] = {}
        if token_file is not None:
            try:
                token = token_file.read_text().strip()
            except OSError as error:
                raise RewardServiceError(
                    f"the token file {token_file} cannot be read: {error.strerror}"
                ) from error
            if not token:
                raise RewardServiceError(f"the token file {token_file} is empty")
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s, self._max_attempts, self._batch_items = request_timeout_s, max_attempts, batch_items
        self._waiting: dict[str, deque[_Item]] = defaultdict(deque)
        self._all: set[_Item] = set()
        self.num_retries = self.num_missing = 0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._wake, self._stopping = asyncio.Event(), asyncio.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------------------------- any thread
    def wait_until_ready(
        self,
        timeout_s: float,
        say: Callable[[str], None] = lambda why: None,
        domains: Collection[str] = (),
    ) -> None:
        """Returns when all servers were asked, and those that are ready grade all `domains`. Tells `say` again and
        again why it still waits.

        Raises RewardServiceError if none is ready in time or one does not fit, and CannotGrade if none that is ready in
        time grades a domain, at once if all servers of a list are ready."""
        self._start()
        begun = time.monotonic()
        while True:
            if self._servers.mismatch:
                raise RewardServiceError(self._servers.mismatch)
            is_late = time.monotonic() - begun > timeout_s
            servers, up = list(self._servers.used.values()), self._servers.up()
            missing = frozenset(domains).difference(*(server.grades for server in up))
            if up and not missing and all(server.asked_s for server in servers):
                return
            why = self._servers.why_down()
            if up and missing:
                why = "; ".join(server.why_not(name) for server in up for name in sorted(missing))
                if is_late or (self._servers.folder is None and len(up) == len(servers)):
                    raise CannotGrade(f"the reward service cannot grade all that is asked of it: {why}")
            if is_late:
                raise RewardServiceError(f"the reward service was not ready within {timeout_s:g} s: {why}")
            say(why)
            time.sleep(0.05)

    @property
    def version(self) -> str:
        """Version of the graders (reward/version.py), the same on all servers; empty before the first one is ready."""
        return self._servers.version

    @property
    def domains(self) -> frozenset[str]:
        """Domains that the servers grade; empty before the first one is ready."""
        return self._servers.domains

    def submit(self, request: ScoreRequest) -> Future[ScoreResult]:
        """Thread-safe. The future always gets a result; status infra_error (score None) if the service failed.

        A request that JSON cannot carry (NaN, an object, endless nesting) gets invalid_request, because no server could
        read it. A response that is too long to be graded is sent as far as it shows that."""
        self._start()
        budget_s = self._timeout_s * self._max_attempts
        if request.deadline_ms is not None:
            budget_s = min(1000 * budget_s, request.deadline_ms) / 1000  # a huge number is no float
        item = _Item(request.request_id, request.domain, Future(), time.monotonic() + budget_s)
        self._all.add(item)  # here, because a loop that is being closed may never run `_requeue`
        sent = {**request.to_json(), "response": request.response[: MAX_RESPONSE_BYTES + 1]}
        sent.pop("deadline_ms", None)
        try:
            item.body = json.dumps(sent, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            reason = f"the request cannot be written as JSON: {error}"
            self._resolve_without_score(item, GradeStatus.invalid_request, "invalid_request", reason)
            return item.future
        try:
            self._loop.call_soon_threadsafe(self._requeue, item)
        except RuntimeError:  # the loop is closed
            self._give_up(item, "the reward client is closed")
        return item.future

    def _start(self) -> None:
        """Starts the thread at the first use: most ranks of a large run make no requests."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="reward-client", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stops the thread. Requests without a result resolve to infra_error."""
        with self._lock:
            self._closed = True
        if self._thread is None:
            self._loop.close()
            return
        with suppress(RuntimeError):  # it is closed already, or a fault has ended the thread
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=10)

    def __enter__(self) -> RewardClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------- the thread
    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()  # from now on `submit` resolves its item itself
            for item in list(self._all):
                self._give_up(item, "the reward client was closed")

    async def _main(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=self._headers
        ) as session:
            self._session = session
            loops = [
                self._loop.create_task(self._dispatch()),
                self._loop.create_task(self._servers.watch(self._get)),
            ]
            stopping = self._loop.create_task(self._stopping.wait())
            done, _ = await asyncio.wait([*loops, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in (*loops, *self._tasks, stopping):
                task.cancel()
            await asyncio.gather(*loops, *self._tasks, stopping, return_exceptions=True)
            for task in done - {stopping}:  # a loop ended by itself: raise the fault, which is ours
                task.result()

    async def _dispatch(self) -> None:
        """Hands waiting items to servers, in batches of one domain, the least loaded server first."""
        swept = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_S):
                    await self._wake.wait()
                await asyncio.sleep(_LINGER_S)  # lets a burst of submissions become a batch
            self._wake.clear()
            now = time.monotonic()
            if now - swept >= _SWEEP_S:
                swept = now
                self._drop_expired(now)
            for queue in self._waiting.values():
                while queue and (server := self._choose(queue[0])) is not None:
                    # The next batch: items at the queue's head that failed equally often on this server.
                    size = min(self._batch_items, self._room(server))
                    failures = queue[0].failures.get(server.url, 0)
                    batch = [queue.popleft()]
                    while queue and len(batch) < size and queue[0].failures.get(server.url, 0) == failures:
                        batch.append(queue.popleft())
                    server.outstanding += len(batch)
                    task = self._loop.create_task(self._send(server, batch))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    def _drop_expired(self, now: float) -> None:
        """Gives up the waiting items whose time is up. The others keep their order."""
        for queue in self._waiting.values():
            for _ in range(len(queue)):
                item = queue.popleft()
                if item.expires <= now:
                    self._give_up(
                        item, item.reason or f"no server was ready in time: {self._servers.why_down()}"
                    )
                else:
                    queue.append(item)

    def _choose(self, item: _Item) -> KnownServer | None:
        """Returns the server with the fewest outstanding requests per worker, of those that grade the item's domain and
        have failed least on it; of equal ones the first. None if these have no room, or none of them is up: then the
        item waits."""
        known = list(self._servers.used.values())
        # A domain that nobody grades: any server may say so.
        able = [server for server in known if item.domain in server.grades] or known
        up = [server for server in able if server.up]
        failures = {server.url: item.failures.get(server.url, 0) for server in up}
        least = min(failures.values(), default=0)
        usable = [server for server in up if self._room(server) > 0 and failures[server.url] == least]
        return min(usable, key=lambda server: server.outstanding / server.num_workers, default=None)

    def _room(self, server: KnownServer) -> int:
        """Returns how many more requests to send to a server: few enough to leave other servers some, and enough to
        keep its workers busy while the next batch is on its way."""
        return 4 * server.num_workers + 2 * self._batch_items - server.outstanding

    async def _send(self, server: KnownServer, batch: list[_Item]) -> None:
        """Makes one attempt. Afterwards every item of the batch is resolved or waits again, whatever happens."""
        try:
            results = await self._post(server, batch)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, aiohttp.ClientConnectionError | ConnectionError):
                self._servers.mark_down(server, f"is gone ({type(error).__name__})")
            reason = f"{server.url}: {type(error).__name__} {error}".rstrip()
            for item in batch:
                self._again(item, server, reason, counts=not isinstance(error, _NOT_TRIED))
            return
        finally:
            server.outstanding -= len(batch)
            self._wake.set()
        for item, result in zip(batch, results, strict=True):
            if result.status in (GradeStatus.graded, GradeStatus.invalid_request):
                self._resolve(item, result)
                continue
            reason = f"{server.url}: {result.details.get('reason', result.verdict)}"
            if result.verdict == "no_sandbox":  # no server grades programs
                self._give_up(item, reason)
            else:
                self._again(item, server, reason, counts=result.status is GradeStatus.infra_error)

    async def _get(self, url: str) -> tuple[int, bytes]:
        """Returns (HTTP status, body). Raises what aiohttp raises."""
        timeout = aiohttp.ClientTimeout(total=10.0, sock_connect=5.0)
        async with self._session.get(url, timeout=timeout) as reply:
            return reply.status, await reply.read()

    async def _post(self, server: KnownServer, batch: Sequence[_Item]) -> list[ScoreResult]:
        """Returns the results in order. Raises what aiohttp raises, _Busy if the server takes nothing now, or
        ValueError, KeyError or TypeError on an answer that breaks the protocol."""
        # A server drops what it has not begun by the deadline, but may take a worker's whole time limit for the rest.
        timeout = aiohttp.ClientTimeout(total=self._timeout_s + 35.0, sock_connect=5.0)
        now = time.monotonic()
        left_ms = [max(0, int(1000 * min(self._timeout_s, item.expires - now))) for item in batch]
        lines = [
            f'{item.body[:-1]}, "deadline_ms": {ms}}}\n' for item, ms in zip(batch, left_ms, strict=True)
        ]
        async with self._session.post(
            f"{server.url}/v1/score_batch", data="".join(lines).encode(), timeout=timeout
        ) as reply:
            if reply.status in (429, 503):
                raise _Busy(f"HTTP {reply.status}: {(await reply.text())[:200]}")
            if reply.status != 200:
                raise ValueError(f"HTTP {reply.status}: {(await reply.text())[:200]}")
            answer = frames.decode(await reply.read())
        results = [ScoreResult.from_json(item) for item in answer["items"]]
        if [result.request_id for result in results] != [item.request_id for item in batch]:
            raise ValueError(f"the {len(results)} results are not those of the {len(batch)} requests")
        if wrong := {result.version for result in results} - {self.version}:
            raise ValueError(f"a result comes from version {wrong.pop()}, not {self.version}")
        return results

    def _again(self, item: _Item, server: KnownServer, reason: str, *, counts: bool) -> None:
        """Puts an item back after a pause, or gives it up if its attempts or its time are spent. counts: whether this
        was an attempt."""
        item.reason = reason
        item.failures[server.url] = item.failures.get(server.url, 0) + 1
        item.attempts += counts
        pause_s = min(_MAX_PAUSE_S, 0.05 * 2 ** min(sum(item.failures.values()), 10)) * random.uniform(
            0.5, 1.5
        )
        if item.attempts >= self._max_attempts:
            self._give_up(item, f"{reason} (after {item.attempts} attempts)")
        elif time.monotonic() + pause_s >= item.expires:
            self._give_up(item, f"{reason} (its time is spent)")
        else:
            self.num_retries += 1
            self._loop.call_later(pause_s, self._requeue, item)

    def _requeue(self, item: _Item) -> None:
        self._waiting[item.domain].append(item)
        self._wake.set()

    def _resolve(self, item: _Item, result: ScoreResult) -> None:
        try:
            self._all.remove(item)
        except KeyError:  # another thread has resolved it, while the client was being closed
            return
        if item.future.set_running_or_notify_cancel():
            item.future.set_result(result)

    def _give_up(self, item: _Item, reason: str) -> None:
        self.num_missing += 1
        self._resolve_without_score(item, GradeStatus.infra_error, "missing", reason)

    def _resolve_without_score(self, item: _Item, status: GradeStatus, verdict: str, reason: str) -> None:
        details = {"reason": reason, "attempts": item.attempts}
        result = ScoreResult(
            request_id=item.request_id,
            status=status,
            score=None,
            verdict=verdict,
            details=details,
            version=self.version,
        )
        self._resolve(item, result)
