"""Which servers a client uses, and whether they are up.

A thousand clients that ask every server of a large job every second would be a load by themselves. So a client of many
servers uses a few of them: that of its own node, and others in an order that each client has for itself. A server that
is up is asked now and then; one that is down soon again, and then less and less often, while another takes its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path

import aiohttp

from reward.known_server import KnownServer, OtherProtocol, Schedule, report_of

log = logging.getLogger("reward.client")

NUM_USED = 4
"""Number of the found servers that a client uses: choosing the less loaded of two balances a load well, and two more
may be down."""

Announced = Callable[[], Mapping[str, str]]
"""URLs of servers by their names, on a cluster the names of their nodes."""
Ask = Callable[[str], Awaitable[tuple[int, bytes]]]
"""HTTP status and body of the answer at a URL."""


def read_folder(folder: Path) -> dict[str, str]:
    """Returns the servers whose ready files (NAME.json) are in a folder. Any other file there is logged and passed
    over."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = str(json.loads(path.read_text())["url"]).rstrip("/")
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the file %s does not announce a reward server: %s", path, error)
    return found


def preferred(names: Iterable[str], *, own: str, client: str) -> list[str]:
    """`own` first, if it is there; then the others in an order that depends on `client`, stays when servers come and
    go, and gives every server any place for about as many clients as any other (rendezvous hashing)."""

    def place(name: str) -> tuple[bool, bytes]:
        return name != own, hashlib.sha256(f"{client}\0{name}".encode()).digest()

    return sorted(names, key=place)


class Servers:
    """The servers that a client uses. `watch` and `lose` are for the client's event loop; all else may be read from any
    thread."""

    def __init__(
        self,
        *,
        urls: Collection[str] = (),
        announced: Announced | None = None,
        domains: Collection[str] = (),
        version: str = "",
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """All `urls` are used; of the servers that are `announced`, NUM_USED. `domains`: those that a server must be
        able to grade. `version`: of the graders, which all servers must have; empty: that of the first one that is
        ready. `on_ready` is called whenever a server has said that it can take requests."""
        self.used = {url: KnownServer(url) for url in urls}
        """By URL; with those that are down."""
        self.version = version
        self.domains: frozenset[str] = frozenset()
        """What the servers grade; empty until one is ready."""
        self.mismatch = ""
        """Why a server does not fit the others or this client, in one sentence; empty until there is one."""
        self._announced, self._wanted, self._on_ready = announced, tuple(domains), on_ready
        self._own = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        """The name that the reward server of this node has, if there is one."""
        self._client = f"{socket.gethostname()} {os.getpid()} {id(self)}"
        self._found: Mapping[str, str] = {}
        self._folder = Schedule()
        self._has_lost_one = asyncio.Event()

    def up(self) -> list[KnownServer]:
        """Returns the servers that take requests."""
        return [server for server in list(self.used.values()) if server.up]

    def why_down(self, where: object) -> str:
        """Says which servers are not up, and why, or that none announced itself `where` it should."""
        down = [f"{server.url} {server.reason}" for server in list(self.used.values()) if not server.up]
        return "; ".join(down) or f"none announced itself in {where}"

    def lose(self, server: KnownServer, reason: str) -> None:
        """Marks a server as down after a failed request."""
        server.put_down(reason)
        now = asyncio.get_running_loop().time()
        for schedule in (server.schedule, self._folder):
            schedule.check_soon(now)
        self._has_lost_one.set()

    async def watch(self, ask: Ask) -> None:
        """Looks for servers, and asks them whether they are ready, until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            if is_check := self._announced is not None and self._folder.due_s <= clock():
                self._found = self._announced()
            while due := self._choose(clock()):
                await asyncio.gather(*(self._probe(server, ask) for server in due))
                for server in due:
                    server.schedule.plan_next(clock(), is_well=server.up)
            if is_check:
                is_well = bool(self.used) and len(self.up()) == len(self.used)
                self._folder.plan_next(clock(), is_well=is_well)
            next_s = min((server.schedule.due_s for server in self.used.values()), default=inf)
            if self._announced is not None:
                next_s = min(next_s, self._folder.due_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_lost_one.wait(), next_s - clock())
            self._has_lost_one.clear()

    def _choose(self, now: float) -> list[KnownServer]:
        """Uses the preferred servers of those that were found: so many that NUM_USED are not known to be down, and have
        a sandbox. Returns those of the used ones that are to be asked now."""
        if self._announced is not None:
            chosen: dict[str, KnownServer] = {}
            num_good = 0
            for name in preferred(self._found, own=self._own, client=self._client):
                if num_good == NUM_USED:
                    break
                url = self._found[name]
                chosen[url] = server = self.used.get(url) or KnownServer(url)
                num_good += (server.up or server.is_new) and server.sandbox != "none"
            busy = {url: server for url, server in self.used.items() if server.outstanding}
            self.used = busy | chosen
        return [server for server in self.used.values() if server.schedule.due_s <= now]

    async def _probe(self, server: KnownServer, ask: Ask) -> None:
        try:
            status, body = await ask(f"{server.url}/readyz")
            if status == 401:
                server.put_down("refuses the token")
                return
            report = report_of(body)
        except OtherProtocol as error:
            self._refuse(server, str(error))
            return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            server.put_down(f"does not answer ({type(error).__name__})")
            return
        is_ready = server.is_ready(report, self._wanted)
        if is_ready and self.version not in ("", report.version):
            differs = f"has {report.version}, others {self.version}: servers must not differ in version"
            self._refuse(server, differs)
        elif is_ready:
            self.version, self.domains = report.version, frozenset(report.domains)
            server.up, server.reason = True, ""
            self._on_ready()

    def _refuse(self, server: KnownServer, reason: str) -> None:
        """Leaves out a server that does not fit, for good: `mismatch` says why."""
        self.mismatch = f"the reward server {server.url} {reason}"
        if server.reason != reason:
            log.error("%s; it is not used", self.mismatch)
        server.put_down(reason)
