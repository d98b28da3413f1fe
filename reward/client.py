"""The trainer's side: submit responses as they finish, get verdicts as futures. Standard library and aiohttp only.

    client = RewardClient(discovery_dir=run_dir / "reward_servers", token_file=run_dir / "token")
    client.wait_until_ready(timeout_s=120)
    future = client.submit(ScoreRequest(...))     # from any thread, as soon as a response is complete
    result = future.result()                      # never raises; without a score if the service has not graded

Requests travel in batches of one domain to the server with the fewest outstanding ones. Those that a server does not
grade (it is overloaded, fails or is gone) are tried again elsewhere, after growing, jittered pauses; a server that
comes back is used again (reward.discovery says which servers a client uses). A request whose time or attempts are spent
resolves to `infra_error`, with the reason and without a score.

Time: `request_timeout_s` bounds one attempt; `request_timeout_s * max_attempts`, or the request's own deadline_ms if
that is shorter, bounds a request from its submission. Waiting for a server that has room, or for any server, uses up
time but no attempts; a server's failure on the request uses up one attempt.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp

from reward import frames
from reward.discovery import Announced, Servers, read_folder
from reward.known_server import KnownServer
from reward.protocol import MAX_BATCH_ITEMS, MAX_RESPONSE_BYTES, GradeStatus, ScoreRequest, ScoreResult

log = logging.getLogger("reward.client")

_LINGER_S = 0.002
_SWEEP_S = 0.25
"""Seconds between searches for items whose time is up; one search per batch would be quadratic in the items."""
_MAX_PAUSE_S = 5.0
STRAGGLERS_S = 10.0
"""Seconds that further servers may take to announce themselves in a folder whose servers so far are hopeless."""


class RewardServiceError(RuntimeError):
    """The service cannot be used; the message is one sentence."""


class CannotGrade(RewardServiceError):
    """No server can grade all of the required domains, and waiting would not change that."""


class _Busy(ValueError):
    """A server answered a whole batch with "too many requests" or "unavailable": it has tried none of them."""


@dataclass(slots=True, eq=False)
class _Item:
    request: ScoreRequest
    future: Future[ScoreResult]
    expires: float
    """When it is given up, by time.monotonic."""
    attempts: int = 0
    pauses: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """URL of a server -> how often it did not grade this item."""
    reason: str = ""
    """Why the last try did not grade it; empty before the first."""


@dataclass(slots=True)
class ClientStatistics:
    """Counts since the client was made."""

    num_retries: int = 0
    num_missing: int = 0


class RewardClient:
    """Runs an asyncio loop of its own in one daemon thread; the public methods may be called from any thread."""

    def __init__(
        self,
        *,
        urls: Sequence[str] = (),
        discovery_dir: Path | None = None,
        token_file: Path | None = None,
        request_timeout_s: float = 60.0,
        max_attempts: int = 5,
        batch_items: int = 32,
        domains: Collection[str] = (),
        announced: Announced | None = None,
        version: str = "",
    ) -> None:
        """Servers come from `urls`, or from the ready files (*.json) in `discovery_dir`, which is read again and again.
        announced: reads that folder instead, if given. domains: what a server must be able to grade to count as ready.
        version: the version of the graders; empty: the first server's. Raises RewardServiceError."""
        if bool(urls) == (discovery_dir is not None):
            raise RewardServiceError("give the reward client either urls or a discovery_dir")
        if not 1 <= batch_items <= MAX_BATCH_ITEMS or max_attempts < 1 or request_timeout_s <= 0:
            raise RewardServiceError(
                f"batch_items must be 1 to {MAX_BATCH_ITEMS}, max_attempts and request_timeout_s positive"
            )
        self._discovery_dir = discovery_dir
        if announced is None and discovery_dir is not None:
            announced = partial(read_folder, discovery_dir)
        self._servers = Servers(
            urls=[url.rstrip("/") for url in urls],
            announced=announced,
            domains=domains,
            version=version,
            on_ready=lambda: self._wake.set(),
        )
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
        self.statistics = ClientStatistics()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reward-client", daemon=True)
        self._thread.start()
        self._started.wait()

    # ------------------------------------------------------------------------------------- any thread
    def wait_until_ready(self, timeout_s: float, say: Callable[[str], None] = lambda why: None) -> None:
        """Returns when one discovered server is ready, or one given server and all others that are worth waiting for.
        Tells `say` again and again why it still waits.

        Raises RewardServiceError if they are not ready in time or differ in version, and CannotGrade as soon as it is
        known that no server will ever grade all `domains`."""
        begun = hopeless_since = time.monotonic()
        while True:
            if self._servers.mismatch:
                raise RewardServiceError(self._servers.mismatch)
            servers, up = list(self._servers.used.values()), self._servers.up()
            hopeless = [server for server in servers if server.is_hopeless]
            if up and (len(up) + len(hopeless) == len(servers) or self._discovery_dir is not None):
                for server in hopeless:
                    log.warning("the reward server %s is not used: it %s", server.url, server.reason)
                return
            now = time.monotonic()
            if not servers or len(hopeless) < len(servers):
                hopeless_since = now
            elif self._discovery_dir is None or now - hopeless_since > STRAGGLERS_S:
                raise CannotGrade(f"the reward service cannot grade all that is asked of it: {self._down()}")
            if now - begun > timeout_s:
                break
            say(
                "; ".join(dict.fromkeys(server.reason for server in servers if not server.up)) or self._down()
            )
            time.sleep(0.05)
        if not servers:
            raise RewardServiceError(
                f"no reward server announced itself in {self._discovery_dir} within {timeout_s:g} s"
            )
        raise RewardServiceError(f"the reward service was not ready within {timeout_s:g} s: {self._down()}")

    def _down(self) -> str:
        return self._servers.why_down(self._discovery_dir)

    @property
    def version(self) -> str:
        """Version of the graders (reward/version.py), the same on all servers; empty before the first one is ready."""
        return self._servers.version

    @property
    def domains(self) -> frozenset[str]:
        """Domains that the servers grade; empty before the first one is ready."""
        return self._servers.domains

    def submit(self, request: ScoreRequest) -> Future[ScoreResult]:
        """Thread-safe. The future always gets a result; status infra_error (score None) if the service failed."""
        budget_s = self._timeout_s * self._max_attempts
        if request.deadline_ms is not None:
            budget_s = min(1000 * budget_s, request.deadline_ms) / 1000  # a huge number is no float
        item = _Item(request, Future(), time.monotonic() + budget_s)
        self._all.add(item)  # here, because a loop that is being closed may never run `_requeue`
        try:
            self._loop.call_soon_threadsafe(self._requeue, item)
        except RuntimeError:  # the loop is closed
            self._give_up(item, "the reward client is closed")
        return item.future

    def close(self) -> None:
        """Stops the thread. Requests without a result resolve to infra_error."""
        if self._closed:
            return
        self._closed = True
        with suppress(RuntimeError):  # a fault has ended the thread and closed its loop
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
            self._stopping = asyncio.Event()
            self._started.set()
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
            try:
                await asyncio.wait_for(self._wake.wait(), _SWEEP_S)
                await asyncio.sleep(_LINGER_S)  # lets a burst of submissions become a batch
            except TimeoutError:
                pass
            self._wake.clear()
            now = time.monotonic()
            if now - swept >= _SWEEP_S:
                swept = now
                self._drop_expired(now)
            for queue in self._waiting.values():
                while queue and (server := self._choose(queue[0].failures)) is not None:
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
                    self._give_up(item, item.reason or f"no server was ready in time: {self._down()}")
                else:
                    queue.append(item)

    def _choose(self, failures: Mapping[str, int]) -> KnownServer | None:
        """Returns the server with the fewest outstanding requests per worker, among those that failed least on an item.
        None if these have no room: then the item waits, because the others have failed more often on it."""
        up = self._servers.up()
        least = min((failures.get(server.url, 0) for server in up), default=0)
        usable = [server for server in up if self._room(server) > 0 and failures.get(server.url, 0) == least]
        return min(usable, key=lambda server: server.outstanding / server.num_workers, default=None)

    def _room(self, server: KnownServer) -> int:
        """Returns how many more requests to send to a server: few enough to leave other servers some, and enough to
        keep its workers busy while the next batch is on its way."""
        return 4 * server.num_workers + 2 * self._batch_items - server.outstanding

    async def _send(self, server: KnownServer, batch: list[_Item]) -> None:
        """Makes one attempt. Afterwards every item of the batch is resolved or waits again, whatever happens."""
        num_taken = len(batch)
        try:
            bodies = self._encode(batch)
            batch = list(bodies)
            results = await self._post(server, bodies) if batch else []
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            reason = f"{server.url}: {type(error).__name__} {error}".rstrip()
            lost = isinstance(error, aiohttp.ClientConnectionError | OSError) and not isinstance(
                error, TimeoutError
            )
            if lost:
                self._servers.lose(server, f"is gone ({type(error).__name__})")
            not_tried = isinstance(error, aiohttp.ClientConnectorError | _Busy)
            for item in batch:
                self._again(item, server, reason, counts=not not_tried)
            return
        finally:
            server.outstanding -= num_taken
            self._wake.set()
        for item, result in zip(batch, results, strict=True):
            if result.status in (GradeStatus.graded, GradeStatus.invalid_request):
                self._resolve(item, result)
            else:
                reason = f"{server.url}: {result.details.get('reason', result.verdict)}"
                nowhere = all(known.sandbox == "none" for known in self._servers.used.values())
                if result.verdict == "no_sandbox" and nowhere:  # asking another server would not help
                    self._give_up(item, f"{reason} (no server has a sandbox)")
                else:
                    self._again(item, server, reason, counts=result.status is GradeStatus.infra_error)

    def _encode(self, batch: list[_Item]) -> dict[_Item, bytes]:
        """Returns the requests of a batch as JSON. Resolves a request that JSON cannot carry (NaN, an object, endless
        nesting), because no server could read it. Cuts a response that is too long to be graded to a length that is
        still too long, so that a batch of them stays below a server's limit."""
        now = time.monotonic()
        bodies = {}
        for item in batch:
            left_s = min(self._timeout_s, item.expires - now)
            body = {**item.request.to_json(), "deadline_ms": max(0, int(1000 * left_s))}
            try:
                body["response"] = item.request.response[: MAX_RESPONSE_BYTES + 1]
                bodies[item] = json.dumps(body, allow_nan=False).encode()
            except (ValueError, TypeError, RecursionError) as error:
                details = {"reason": f"the request cannot be written as JSON: {error}"}
                self._resolve_without_score(item, GradeStatus.invalid_request, "invalid_request", details)
        return bodies

    async def _get(self, url: str) -> tuple[int, bytes]:
        """Returns (HTTP status, body). Raises what aiohttp raises."""
        timeout = aiohttp.ClientTimeout(total=10.0, sock_connect=5.0)
        async with self._session.get(url, timeout=timeout) as reply:
            return reply.status, await reply.read()

    async def _post(self, server: KnownServer, bodies: Mapping[_Item, bytes]) -> list[ScoreResult]:
        """Returns the results in order. Raises what aiohttp raises, _Busy if the server takes nothing now, or
        ValueError, KeyError or TypeError on an answer that breaks the protocol."""
        # A server drops what it has not begun by the deadline, but may take a worker's whole time limit for the rest.
        timeout = aiohttp.ClientTimeout(total=self._timeout_s + 35.0, sock_connect=5.0)
        data = b"\n".join(bodies.values())
        headers = {"Content-Type": "application/jsonl"}
        async with self._session.post(
            f"{server.url}/v1/score_batch", data=data, headers=headers, timeout=timeout
        ) as reply:
            if reply.status in (429, 503):
                raise _Busy(f"HTTP {reply.status}: {(await reply.text())[:200]}")
            if reply.status != 200:
                raise ValueError(f"HTTP {reply.status}: {(await reply.text())[:200]}")
            answer = frames.decode(await reply.read())
        results = [ScoreResult.from_json(item) for item in answer["items"]]
        if len(results) != len(bodies):
            raise ValueError(f"{len(results)} results for {len(bodies)} requests")
        for item, result in zip(bodies, results, strict=True):
            if result.request_id != item.request.request_id:
                raise ValueError("a result carries another request's id")
            if self.version and result.version != self.version:
                raise ValueError(f"a result comes from version {result.version}, not {self.version}")
        return results

    def _again(self, item: _Item, server: KnownServer, reason: str, *, counts: bool) -> None:
        """Puts an item back after a pause, or gives it up if its attempts or its time are spent. counts: whether this
        was an attempt."""
        item.reason = reason
        item.failures[server.url] = item.failures.get(server.url, 0) + 1
        item.attempts += counts
        item.pauses += 1
        pause_s = min(_MAX_PAUSE_S, 0.05 * 2 ** min(item.pauses, 10)) * random.uniform(0.5, 1.5)
        if item.attempts >= self._max_attempts:
            self._give_up(item, f"{reason} (after {item.attempts} attempts)")
        elif time.monotonic() + pause_s >= item.expires:
            self._give_up(item, f"{reason} (its time is spent)")
        else:
            self.statistics.num_retries += 1
            self._loop.call_later(pause_s, self._requeue, item)

    def _requeue(self, item: _Item) -> None:
        self._waiting[item.request.domain].append(item)
        self._wake.set()

    def _resolve(self, item: _Item, result: ScoreResult) -> None:
        try:
            self._all.remove(item)
        except KeyError:  # another thread has resolved it, while the client was being closed
            return
        if item.future.set_running_or_notify_cancel():
            item.future.set_result(result)

    def _give_up(self, item: _Item, reason: str) -> None:
        self.statistics.num_missing += 1
        details = {"reason": reason, "attempts": item.attempts}
        self._resolve_without_score(item, GradeStatus.infra_error, "missing", details)

    def _resolve_without_score(
        self, item: _Item, status: GradeStatus, verdict: str, details: Mapping[str, object]
    ) -> None:
        result = ScoreResult(
            request_id=item.request.request_id,
            status=status,
            score=None,
            verdict=verdict,
            details=details,
            version=self.version,
        )
        self._resolve(item, result)
