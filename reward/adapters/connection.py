"""Shared by the adapters: one client of the reward service per process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from reward.client import RewardClient
from reward.protocol import ScoreRequest, ScoreResult

_ATTEMPT_S = 60.0
_ATTEMPTS = 1_000_000_000
"""More than there is time for: patience_s alone decides when to give up on a response."""


@dataclass(frozen=True, kw_only=True)
class ServiceConnection:
    """Which servers to ask, and for how long. Plain data that can be pickled or forked into other processes: each
    process makes its own client on first use, and all its threads share it."""

    servers: tuple[str, ...]
    """URLs (http://...), or one folder with the servers' ready files."""
    token_file: str | None = None
    patience_s: float = 300.0
    """Seconds for which a response is sent again, to any server that is up, before it counts as not graded."""

    def submit(self, request: ScoreRequest) -> Future[ScoreResult]:
        """Submits as RewardClient.submit does. The future always gets a result: without a score after patience_s."""
        return self.client().submit(replace(request, deadline_ms=max(1, round(1000 * self.patience_s))))

    def client(self) -> RewardClient:
        """Returns this process's client. Raises RewardServiceError if servers or token file cannot be used."""
        key = os.getpid(), self
        with _lock:
            if key not in _clients:
                folders = [name for name in self.servers if not _is_url(name)]
                _clients[key] = RewardClient(
                    urls=[] if folders else self.servers,
                    discovery_dir=Path(folders[0]) if folders else None,
                    token_file=None if self.token_file is None else Path(self.token_file),
                    request_timeout_s=_ATTEMPT_S,
                    max_attempts=_ATTEMPTS,
                )
            return _clients[key]


def connection(
    servers: str | Sequence[str], token_file: str | os.PathLike[str] | None, patience_s: float
) -> ServiceConnection:
    """Checks the arguments and builds a connection. Raises ValueError, in one sentence, if there is no server to ask or
    patience_s is not positive."""
    names = (servers,) if isinstance(servers, str) else tuple(map(str, servers))
    if not names or not all(names) or (len(names) > 1 and not all(map(_is_url, names))):
        raise ValueError(
            f"the reward servers must be URLs that begin with http:// or https://, or one folder with ready files,"
            f" not {list(names)}"
        )
    if not patience_s > 0:
        raise ValueError(f"patience_s must be a positive number of seconds, not {patience_s}")
    token = None if token_file is None else os.fspath(token_file)
    return ServiceConnection(servers=names, token_file=token, patience_s=float(patience_s))


def _is_url(name: str) -> bool:
    """Whether `name` is a URL; otherwise it is a folder."""
    return name.startswith(("http://", "https://"))


_clients: dict[tuple[int, ServiceConnection], RewardClient] = {}
"""By process id: a forked child makes clients of its own, because threads do not survive a fork. It keeps those of its
parent, whose task it is to close their sockets."""
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@atexit.register
def _close_own() -> None:
    for (pid, _), client in _clients.items():
        if pid == os.getpid():
            client.close()
