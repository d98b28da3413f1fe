"""The servers of the reward service as one client knows them: which there are, and which of them take requests.

A client uses all servers that it is given, or that announce themselves in a folder, and asks each every 10 s whether it
is ready. When one is lost, it looks for servers again soon, and then less and less often.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from reward import frames
from reward.protocol import PROTOCOL_VERSION

log = logging.getLogger("reward.client")

PERIOD_S = 10.0
"""Seconds between two questions to a server that takes requests, on average; a server grades its known answers every
12 s. A thousand clients are a hundred questions a second to each server."""
SHORTEST_PAUSE_S = 0.5
"""Seconds until servers are looked for again after one was lost. The pause doubles each time, up to PERIOD_S."""

Ask = Callable[[str], Awaitable[tuple[int, bytes]]]
"""HTTP status and body of the answer at a URL."""


class Mismatch(ValueError):
    """A reward server that this client must not use: another version of the protocol, or of the graders."""


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


@dataclass(slots=True, eq=False)
class KnownServer:
    """One server: its address, what its last report said, and the requests that it has."""

    url: str
    num_workers: int = 1
    grades: frozenset[str] = frozenset()
    """The domains that it grades when it is up."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """The domains that it will never grade, with the reason."""
    outstanding: int = 0
    reason: str = "was not reached yet"
    """Why it takes no requests; empty if it does."""
    asked_s: float = 0.0
    """When it was asked last whether it is ready, in seconds of the client's event loop; 0 if never."""

    @property
    def up(self) -> bool:
        return not self.reason

    def read_report(self, data: bytes) -> str:
        """Takes over the body of an answer from /readyz (reward/readiness.py) and returns the version of the graders.

        Raises Mismatch for a reward server with another protocol, and ValueError for anything else that is no report: a
        message from a proxy or another program is no reason to give up on a server."""
        report = frames.decode(data)
        try:
            if report["protocol"] != PROTOCOL_VERSION:
                raise Mismatch(
                    f"speaks version {report['protocol']} of the protocol and this client {PROTOCOL_VERSION}: install "
                    "the same release of nemo-prorl-reward on both sides"
                )
            late, refused = defaultdict[str, list[str]](list), dict[str, str]()
            for name, state in report["domains"].items():
                reason = str(state.get("reason", "its known answers are not graded yet"))
                if state.get("is_refused"):
                    refused[name] = reason
                elif not state["ready"]:
                    late[reason].append(name)
            reasons = [f"{reason} ({', '.join(names)})" for reason, names in late.items()]
            version, self.num_workers = str(report["version"]), max(1, int(report["workers"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the answer is not the report of a reward server: {error!r}") from error
        self.grades, self.refused = frozenset(report["domains"].keys() - refused.keys()), refused
        self.reason = f"is not ready: {', '.join(reasons)}" if reasons else ""
        return version

    def why_not(self, domain: str) -> str:
        """Says why it does not grade a domain."""
        if domain in self.refused:
            return f"{self.url} refuses {domain} ({self.refused[domain]})"
        return f"{self.url} does not know the domain {domain}"


class Servers:
    """The servers that a client uses. `watch` and `mark_down` are for the client's event loop; all else may be read
    from any thread."""

    def __init__(
        self,
        *,
        urls: Collection[str] = (),
        folder: Path | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Uses all `urls`, or all servers that announce themselves in a folder. `on_ready` is called whenever a server
        has said that it is ready."""
        self.used = {url: KnownServer(url) for url in urls}
        """By URL, that of this node first; with those that are down."""
        self.version = ""
        """The version of the graders, which all servers must have; empty before the first one is ready."""
        self.domains: frozenset[str] = frozenset()
        """What servers that were ready so far grade."""
        self.mismatch = ""
        """Why a server does not fit the others or this client, in one sentence; empty until there is one."""
        self.folder, self._on_ready = folder, on_ready
        self._announced: dict[str, str] = {}
        self._changed_ns = -1
        """When the folder had been changed last when it was read."""
        self._own = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        """The name that the reward server of this node has, if there is one."""
        self._has_lost_one = asyncio.Event()

    def up(self) -> list[KnownServer]:
        """Returns the servers that take requests."""
        return [server for server in list(self.used.values()) if server.up]

    def why_down(self) -> str:
        """Says which servers are not up, and why, or that no server announced itself."""
        down = [f"{server.url} {server.reason}" for server in list(self.used.values()) if not server.up]
        return "; ".join(down) or f"no reward server announced itself in {self.folder}"

    def mark_down(self, server: KnownServer, reason: str) -> None:
        """Stops using a server after a failed request, and has servers looked for again soon."""
        server.reason = reason
        self._has_lost_one.set()

    async def watch(self, ask: Ask) -> None:
        """Looks for servers, and asks them whether they are ready, until it is cancelled."""
        clock, pause_s = asyncio.get_running_loop().time, SHORTEST_PAUSE_S
        while True:
            if self.folder is not None:
                self._use(self._announced_in(self.folder))
            # In rounds that follow a loss, those that are up are not asked again.
            due = [s for s in self.used.values() if not s.up or clock() - s.asked_s > 0.7 * PERIOD_S]
            await asyncio.gather(*(self._probe(server, ask) for server in due))
            for server in due:
                server.asked_s = clock()
            if self.used and len(self.up()) == len(self.used):
                pause_s = PERIOD_S
            with suppress(TimeoutError):
                async with asyncio.timeout(_spread(pause_s)):
                    await self._has_lost_one.wait()
                pause_s = SHORTEST_PAUSE_S
                await asyncio.sleep(_spread(pause_s))
            self._has_lost_one.clear()
            pause_s = min(2.0 * pause_s, PERIOD_S)

    def _announced_in(self, folder: Path) -> Mapping[str, str]:
        """Returns the URLs of servers by their names, on a cluster those of nodes. Reads the folder only if it has
        changed or a server is down: on a cluster it is shared by hundreds of clients, and holds a file per node."""
        changed_ns = 0
        with suppress(OSError):
            changed_ns = folder.stat().st_mtime_ns
        if changed_ns != self._changed_ns or len(self.up()) < len(self.used):
            self._changed_ns, self._announced = changed_ns, read_folder(folder)
        return self._announced

    def _use(self, found: Mapping[str, str]) -> None:
        """Uses the servers that were found, and those that have requests until these are answered."""
        urls = [found[name] for name in sorted(found, key=lambda name: (name != self._own, name))]
        busy = {url: server for url, server in self.used.items() if server.outstanding}
        self.used = {url: self.used.get(url) or KnownServer(url) for url in urls} | busy

    async def _probe(self, server: KnownServer, ask: Ask) -> None:
        """Asks a server whether it is ready."""
        before = server.reason
        try:
            status, body = await ask(f"{server.url}/readyz")
            if status == 401:
                server.reason = "refuses the token"
                return
            version = server.read_report(body)
            if server.up and self.version not in ("", version):
                raise Mismatch(f"has {version}, others {self.version}: servers must not differ in version")
        except Mismatch as error:
            self.mismatch = f"the reward server {server.url} {error}"
            if before != str(error):
                log.error("%s; it is not used", self.mismatch)
            server.reason = str(error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            server.reason = f"does not answer ({type(error).__name__})"
        if server.up:
            self.version, self.domains = version, self.domains | server.grades
            self._on_ready()


def _spread(pause_s: float) -> float:
    """Returns a pause that is partly random, so that clients which started together do not ask together."""
    return pause_s * random.uniform(0.75, 1.25)
