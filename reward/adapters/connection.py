"""Shared by the adapters: one client per process, and the errors for a response that was not graded."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from reward.client import RewardClient
from reward.protocol import ScoreRequest, ScoreResult

_ATTEMPT_S = 60.0
_ATTEMPTS = 1_000_000_000
"""More than there is time for: patience_s alone decides when to give up on a response."""


class NotGraded(RuntimeError):
    """The service could not grade a response; the message is one sentence. For callers that handle errors as errors."""


class StopTraining(BaseException):
    """A response cannot be graded; the message is one sentence. For callers that turn an Exception into a 0.

    Deliberately not an Exception. Some trainers wrap the user's reward function in `except Exception` and go on with a
    reward of 0: verl 0.9.1 in its rate-limited and PRIME reward managers
    (experimental/reward_loop/reward_manager/limited.py, workers/reward_manager/prime.py), and verifiers up to 0.3 in
    Rubric (rubrics/rubric.py). A policy would then learn that its answers are wrong whenever the service is down, or
    whenever a row's label defines no task."""


@contextmanager
def stopping() -> Iterator[None]:
    """Turns every Exception, such as BadLabel, into StopTraining with its sentence."""
    try:
        yield
    except Exception as error:
        raise StopTraining(f"a response cannot be graded ({type(error).__name__}): {error}") from error


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Which servers to ask, and for how long. Plain data that can be pickled or forked into other processes: each
    process makes its own client on first use, and all its threads share it."""

    servers: tuple[str, ...]
    """URLs (http://...), or one folder with the servers' ready files."""
    token_file: str | None = None
    patience_s: float = 300.0
    """Seconds for which a response is sent again, to any server that is up, before it counts as not graded."""

    def submit(self, request: ScoreRequest) -> Future[ScoreResult]:
        """Submits as RewardClient.submit does. The future always gets a result: without a score after patience_s."""
        patience_ms = max(1, round(1000 * self.patience_s))
        deadline_ms = patience_ms if request.deadline_ms is None else min(request.deadline_ms, patience_ms)
        return self.client().submit(replace(request, deadline_ms=deadline_ms))

    def grade(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        futures = [self.submit(request) for request in requests]
        return [future.result() for future in futures]

    async def grade_one(self, request: ScoreRequest) -> ScoreResult:
        """Grades one request, in whatever event loop the caller runs."""
        return await asyncio.wrap_future(self.submit(request))

    def client(self) -> RewardClient:
        """Returns this process's client. Raises RewardServiceError if servers or token file cannot be used."""
        with _state.lock:
            if self not in _state.clients:
                folders = [name for name in self.servers if not is_url(name)]
                client = _state.clients[self] = RewardClient(
                    urls=[] if folders else self.servers,
                    discovery_dir=Path(folders[0]) if folders else None,
                    token_file=None if self.token_file is None else Path(self.token_file),
                    request_timeout_s=_ATTEMPT_S,
                    max_attempts=_ATTEMPTS,
                )
                atexit.register(client.close)
            return _state.clients[self]


def connection(
    servers: str | Sequence[str], token_file: str | os.PathLike[str] | None, patience_s: float
) -> Connection:
    """Checks the arguments and builds a Connection. Raises ValueError, in one sentence, if there is no server to ask or
    patience_s is not positive."""
    names = (servers,) if isinstance(servers, str) else tuple(map(str, servers))
    folders = [name for name in names if not is_url(name)]
    if not all(names) or not names or (folders and len(names) > 1):
        raise ValueError(
            f"the reward servers must be URLs that begin with http:// or https://, or one folder with ready files,"
            f" not {list(names)}"
        )
    if not patience_s > 0:
        raise ValueError(f"patience_s must be a positive number of seconds, not {patience_s}")
    token = None if token_file is None else os.fspath(token_file)
    return Connection(servers=names, token_file=token, patience_s=float(patience_s))


def is_url(name: str) -> bool:
    """Whether `name` is a URL; otherwise it is a folder."""
    return name.startswith(("http://", "https://"))


def score_or_raise(result: ScoreResult, error: type[BaseException]) -> float:
    """Returns the score, or raises `error` with one sentence if there is none."""
    if result.score is None:
        reason = result.details.get("reason", result.verdict)
        raise error(
            f"the reward service did not grade a response ({result.status.value}: {reason}), and a reward of 0 would"
            " teach the policy that its answer is wrong"
        )
    return result.score


class _State:
    """The clients of this process. A forked child makes its own, because threads do not survive a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: dict[Connection, RewardClient] = {}
        self.of_the_parent: list[RewardClient] = []

    def after_fork(self) -> None:
        self.of_the_parent += self.clients.values()  # kept alive: closing these sockets is the parent's task
        for client in self.clients.values():
            atexit.unregister(client.close)
        self.lock, self.clients = threading.Lock(), {}


_state = _State()
os.register_at_fork(after_in_child=_state.after_fork)
