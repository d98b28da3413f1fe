"""A reward service that dies, hangs or answers garbage in mid-step: the real client against scripted servers.

The client tries again (tests/reward/test_client.py has every kind of garbage); then rollouts are dropped and counted;
then the run stops and says why. A failure is never a reward of 0.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pytest

from nemo_prorl.reward_sources.service import ServiceGrader
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.training.sampling.rounds import Collection
from reward.client import RewardClient
from reward.protocol import DOMAINS, PROTOCOL_VERSION
from tests.training.conftest import (
    MIXED,
    NUM_ROLLOUTS,
    WRONG,
    make_collector,
    make_config,
    make_prompts,
    new_state,
    uids,
)

pytestmark = pytest.mark.medium  # clients wait before they try again

NUM_PROMPTS = 6
Items = list[dict[str, Any]]
Answer = Callable[[Items], tuple[int, Any]]
"""Honest verdicts -> HTTP status and body; status 0: the server dies, and breaks this and every further connection."""


def honest(items: Items) -> tuple[int, Any]:
    return 200, {"items": items}


def dies(items: Items) -> tuple[int, Any]:
    return 0, None


class Server(ThreadingHTTPServer):
    """A server that answers its first `num_honest` batches honestly, and those after them as `then` says."""

    daemon_threads = True

    def __init__(self, num_honest: int, then: Answer, last: Answer | None = None) -> None:
        """last: the answer from three batches after these on."""
        self.num_batches, self.num_graded, self.dead = 0, 0, False
        self._lock, self._num_honest, self._then, self._last = (
            threading.Lock(),
            num_honest,
            then,
            last or then,
        )
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, items: Items) -> tuple[int, Any]:
        with self._lock:
            number, self.num_batches = self.num_batches, self.num_batches + 1
            self.num_graded += len(items) if number < self._num_honest else 0
        late = self._then if number < self._num_honest + 3 else self._last
        return (honest if number < self._num_honest else late)(items)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        domains = {name: {"ready": True} for name in DOMAINS}
        report = {
            "ready": True,
            "protocol": PROTOCOL_VERSION,
            "version": "1",
            "workers": 2,
            "sandbox": "none",
        }
        self.reply(200, {**report, "domains": domains})

    def do_POST(self) -> None:
        lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
        verdict = {"status": "graded", "verdict": "scripted", "details": {}, "version": "1"}
        items = [
            verdict
            | {"request_id": item["request_id"], "score": item["task"]["scores"][int(item["response"])]}
            for item in map(json.loads, lines)
        ]
        self.reply(*self.server.answer(items))

    def reply(self, status: int, body: Any) -> None:
        self.server.dead = self.server.dead or status == 0
        if self.server.dead:
            self.connection.close()
            return
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ValueError, OSError):  # the connection that `reply` has closed
            self.close_connection = True

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*arguments: Any) -> Server:
        servers.append(Server(*arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def step(*servers: Server, patience_s: float = 3.0, scores: Any = MIXED, **config: Any) -> Collection:
    """Returns the groups of one step through the real client, with small batches and short timeouts."""
    urls = [server.url for server in servers]
    with RewardClient(urls=urls, request_timeout_s=patience_s, max_attempts=3, batch_items=2) as client:
        client.wait_until_ready(30)
        made = make_config(prompts_per_step=NUM_PROMPTS, max_rounds=1, **config)
        prompts = make_prompts(*[scores] * NUM_PROMPTS)
        return make_collector(made, prompts, grader=ServiceGrader(client, None)).collect(new_state())


def assert_dropped_not_zeroed(collection: Collection, num_dropped: int) -> None:
    """Asserts that graded rollouts have their scripted scores and that the others are counted."""
    for group in collection.sampled:
        assert all(member.reward == MIXED[member.rollout.sibling] for member in group.members)
        assert len(group.members) + group.num_failed == NUM_ROLLOUTS
    assert sum(group.num_failed for group in collection.sampled) == num_dropped


def changed(**fields: Any) -> Answer:
    return lambda items: honest([item | fields for item in items])


GARBAGE: dict[str, Answer] = {
    "http 404": lambda items: (404, "no"),
    "too many": lambda items: honest([*items, items[0]]),
    "a score for a failure": changed(status="infra_error", score=0.0),
    "unknown status": changed(status="fine"),
    "score of NaN": changed(score=float("nan")),
    "another version": changed(version="2"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_stops_the_run_unless_the_service_recovers(start: Callable[..., Server], name: str) -> None:
    server = start(0, GARBAGE[name])
    with pytest.raises(RewardServiceFailing, match=r"failed on 24 of 24 rollouts.*infra_error"):
        step(server)
    assert server.num_batches > NUM_PROMPTS * NUM_ROLLOUTS / 2, "every batch was sent more than once"
    assert_dropped_not_zeroed(step(start(0, GARBAGE[name], honest), patience_s=60.0), 0)


def test_a_service_that_dies_and_stays_dead_stops_the_run(start: Callable[..., Server]) -> None:
    server = start(3, dies)
    with pytest.raises(RewardServiceFailing, match=r"of 24 rollouts.*http://127\.0\.0\.1") as caught:
        step(server)
    assert f"failed on {24 - server.num_graded} of 24" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("then", [dies, changed(version="2")], ids=["dead", "replaced by another version"])
def test_what_a_service_left_ungraded_is_dropped_and_counted(
    start: Callable[..., Server], then: Answer
) -> None:
    server = start(3, then)
    collection = step(server, max_failed_share=1.0, min_fill=0.0)
    assert_dropped_not_zeroed(collection, 24 - server.num_graded)
    assert all(len(set(group.rewards)) == 2 for group in collection.groups)


def test_another_server_takes_over_from_a_dead_one(start: Callable[..., Server]) -> None:
    dying, healthy = start(1, dies), start(0, honest)
    collection = step(dying, healthy, patience_s=60.0)
    assert uids(collection.groups) == [f"p{index}" for index in range(NUM_PROMPTS)]
    assert_dropped_not_zeroed(collection, 0)
    assert healthy.num_batches > 0


def test_a_service_that_hangs_stops_the_run(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waits 35 s longer for a batch than a request may take, for requests that a worker has begun; here
    0.5 s in all."""
    patient, ended = aiohttp.ClientTimeout, threading.Event()
    monkeypatch.setattr(
        aiohttp, "ClientTimeout", lambda total, **rest: patient(total=total and min(total, 0.5), **rest)
    )
    server = start(3, lambda items: (ended.wait(60), None))
    with pytest.raises(RewardServiceFailing, match=r"of 24 rollouts.*Timeout") as caught:
        step(server, patience_s=1.0, max_failed_share=0.5)
    ended.set()
    assert f"failed on {24 - server.num_graded} of 24" in str(caught.value)


def test_an_honest_0_is_a_0(start: Callable[..., Server]) -> None:
    """A score of 0 that the service did give counts."""
    collection = step(start(0, honest), scores=WRONG, enabled=False)
    assert {group.rewards for group in collection.groups} == {tuple(WRONG)}
