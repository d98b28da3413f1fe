"""A reward service that dies, hangs or answers garbage in mid-step: the real client against scripted servers.

The client retries rollouts; then they are dropped and counted; then the run stops and says why. A failure is never a
reward of 0.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nemo_prorl.reward_sources.service import ServiceGrader
from nemo_prorl.training.sampling.collector import Collection
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from reward.client import RewardClient, RewardServiceError
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
Behaviour = Callable[["ScriptedServer", int, Items], Awaitable[web.StreamResponse]]
"""(server, how many batches it was sent before this one, the batch) -> the answer."""


class ScriptedServer:
    """A server that speaks the reward service's protocol, and lies, hangs or dies as its behaviour says."""

    def __init__(self, behaviour: Behaviour, *, version: str = "1") -> None:
        self.version = version
        self.num_batches = 0
        self._behaviour = behaviour
        self._dead = False
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), daemon=True
        )
        self._thread.start()
        assert self._started.wait(30)

    async def _serve(self) -> None:
        application = web.Application()
        application.router.add_get("/readyz", self._ready)
        application.router.add_post("/v1/score_batch", self._score)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._ended = asyncio.Event()
        self._started.set()
        await self._ended.wait()
        await self._runner.cleanup()

    async def _ready(self, request: web.Request) -> web.Response:
        self._hang_up_if_dead(request)
        domains = {name: {"ready": True} for name in DOMAINS}
        report = {"ready": True, "protocol": PROTOCOL_VERSION, "version": self.version, "workers": 2}
        return web.json_response({**report, "sandbox": "none", "domains": domains})

    async def _score(self, request: web.Request) -> web.StreamResponse:
        self._hang_up_if_dead(request)
        items = [json.loads(line) for line in (await request.read()).splitlines()]
        number, self.num_batches = self.num_batches, self.num_batches + 1
        answer = await self._behaviour(self, number, items)
        self._hang_up_if_dead(request)
        return answer

    def _hang_up_if_dead(self, request: web.Request) -> None:
        if self._dead:
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError

    def die(self) -> None:
        """Breaks all connections from the next request on, and those of requests in progress."""
        self._dead = True

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)


def verdicts(server: ScriptedServer, items: Items) -> Items:
    """Returns what an honest server answers."""
    return [
        {
            "request_id": item["request_id"],
            "status": "graded",
            "score": item["task"]["scores"][int(item["response"])],
            "verdict": "scripted",
            "details": {},
            "version": server.version,
        }
        for item in items
    ]


def answer(results: Items) -> web.Response:
    return web.json_response({"items": results})


async def honest(server: ScriptedServer, number: int, items: Items) -> web.StreamResponse:
    return answer(verdicts(server, items))


def spoiled(spoil: Callable[[Items], Any]) -> Behaviour:
    """Returns the honest answer, changed."""

    async def behave(server: ScriptedServer, number: int, items: Items) -> web.StreamResponse:
        return web.Response(text=json.dumps(spoil(verdicts(server, items))))

    return behave


def http(status: int, text: str = "no") -> Behaviour:
    async def behave(server: ScriptedServer, number: int, items: Items) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    return behave


def first(count: int, bad: Behaviour, then: Behaviour = honest) -> Behaviour:
    """Returns a behaviour that applies to the first batches, and another one after them."""

    async def behave(server: ScriptedServer, number: int, items: Items) -> web.StreamResponse:
        return await (bad if number < count else then)(server, number, items)

    return behave


async def hangs(server: ScriptedServer, number: int, items: Items) -> web.StreamResponse:
    await asyncio.sleep(600)
    raise AssertionError


async def dies(server: ScriptedServer, number: int, items: Items) -> web.StreamResponse:
    server.die()
    return answer([])


async def overloaded(server: ScriptedServer, number: int, items: Items) -> web.StreamResponse:
    refused = {"status": "overloaded", "score": None, "verdict": "overloaded"}
    return answer([{**result, **refused} for result in verdicts(server, items)])


async def becomes_another_version(server: ScriptedServer, number: int, items: Items) -> web.StreamResponse:
    server.version = "2"
    return await honest(server, number, items)


Start = Callable[..., ScriptedServer]
Step = Callable[..., Collection]


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[ScriptedServer] = []

    def start(behaviour: Behaviour, **options: Any) -> ScriptedServer:
        servers.append(ScriptedServer(behaviour, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


class Run:
    """One step through the real client, with small batches and short timeouts."""

    def __init__(self, *servers: ScriptedServer, patience_s: float = 1.0, **config: Any) -> None:
        self.client = RewardClient(
            urls=[server.url for server in servers],
            request_timeout_s=patience_s,
            max_attempts=3,
            batch_items=2,
        )
        self.client.wait_until_ready(30)
        self.config = make_config(prompts_per_step=NUM_PROMPTS, max_rounds=1, **config)

    def step(self) -> Collection:
        try:
            prompts = make_prompts(*[MIXED] * NUM_PROMPTS)
            return make_collector(self.config, prompts, grader=ServiceGrader(self.client, None)).collect(
                new_state()
            )
        finally:
            self.client.close()


def assert_complete(collection: Collection) -> None:
    """Asserts that everything was graded as scripted."""
    assert uids(collection.groups) == [f"p{index}" for index in range(NUM_PROMPTS)]
    assert {group.rewards for group in collection.groups} == {tuple(MIXED)}


def assert_dropped_not_zeroed(collection: Collection) -> int:
    """Asserts that graded rollouts have their scripted scores and that the others are counted. Returns the number of
    others."""
    for group in collection.sampled:
        for member in group.members:
            assert member.reward == MIXED[member.rollout.sibling]
        assert len(group.members) + group.num_failed == NUM_ROLLOUTS
    return sum(group.num_failed for group in collection.sampled)


GARBAGE: dict[str, Behaviour] = {
    "http 500": http(500, "Internal Server Error"),
    "http 404": http(404),
    "html": http(200, "<html>proxy error</html>"),
    "nothing": http(200, ""),
    "a number": spoiled(lambda items: 7),
    "no items": spoiled(lambda items: {"results": items}),
    "too few": spoiled(lambda items: {"items": items[:-1]}),
    "too many": spoiled(lambda items: {"items": [*items, items[0]]}),
    "other ids": spoiled(lambda items: {"items": [{**item, "request_id": "x"} for item in items]}),
    "score of 7": spoiled(lambda items: {"items": [{**item, "score": 7.0} for item in items]}),
    "score of NaN": spoiled(lambda items: {"items": [{**item, "score": float("nan")} for item in items]}),
    "score as text": spoiled(lambda items: {"items": [{**item, "score": "right"} for item in items]}),
    "graded without a score": spoiled(lambda items: {"items": [{**item, "score": None} for item in items]}),
    "a score for a failure": spoiled(
        lambda items: {"items": [{**item, "status": "infra_error", "score": 0.0} for item in items]}
    ),
    "unknown status": spoiled(lambda items: {"items": [{**item, "status": "fine"} for item in items]}),
    "infra errors": spoiled(
        lambda items: {"items": [{**item, "status": "infra_error", "score": None} for item in items]}
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_tried_again_and_then_stops_the_run(start: Start, name: str) -> None:
    server = start(GARBAGE[name])
    run = Run(server)
    with pytest.raises(
        RewardServiceFailing, match=f"failed on {4 * NUM_PROMPTS} of {4 * NUM_PROMPTS}"
    ) as caught:
        run.step()
    assert "infra_error" in str(caught.value)
    assert run.client.statistics.num_retries > 0
    assert server.num_batches > NUM_PROMPTS * NUM_ROLLOUTS / 2, "every batch was sent more than once"


@pytest.mark.parametrize("name", GARBAGE)
def test_a_service_that_recovers_costs_nothing(start: Start, name: str) -> None:
    run = Run(start(first(2, GARBAGE[name])), patience_s=60.0)
    assert_complete(run.step())
    assert run.client.statistics.num_retries > 0
    assert run.client.statistics.num_missing == 0


@pytest.mark.parametrize("busy", [http(429, "busy"), overloaded], ids=["http 429", "overloaded"])
def test_a_busy_service_is_waited_for(start: Start, busy: Behaviour) -> None:
    run = Run(start(first(3, busy)), patience_s=60.0)
    assert_complete(run.step())
    assert run.client.statistics.num_retries >= 3


def test_a_service_that_dies_and_stays_dead_stops_the_run(start: Start) -> None:
    run = Run(start(first(3, honest, then=dies)), patience_s=3.0)
    with pytest.raises(RewardServiceFailing) as caught:
        run.step()
    assert "failed on 18 of 24 rollouts" in str(caught.value)
    assert "http://127.0.0.1" in str(caught.value), "it says which server"
    assert "\n" not in str(caught.value)


def test_what_a_dead_service_left_ungraded_is_dropped_and_counted(start: Start) -> None:
    run = Run(start(first(3, honest, then=dies)), patience_s=3.0, max_failed_share=1.0, min_fill=0.0)
    collection = run.step()
    assert assert_dropped_not_zeroed(collection) == 18
    assert all(len(set(group.rewards)) == 2 for group in collection.groups)


def test_another_server_takes_over_from_a_dead_one(start: Start) -> None:
    dying, healthy = start(first(1, honest, then=dies)), start(honest)
    run = Run(dying, healthy, patience_s=60.0)
    assert_complete(run.step())
    assert healthy.num_batches > 0


def test_a_service_that_hangs_stops_the_run(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits 35 s longer for a batch than a request may take, for requests that a worker has begun; here
    0.5 s in all."""
    patient = aiohttp.ClientTimeout
    monkeypatch.setattr(
        aiohttp, "ClientTimeout", lambda total, **rest: patient(total=total and min(total, 0.5), **rest)
    )
    run = Run(start(first(3, honest, then=hangs)), max_failed_share=0.5)
    with pytest.raises(RewardServiceFailing, match=r"failed on 18 of 24 rollouts.*Timeout"):
        run.step()


def test_a_server_of_another_version_is_not_listened_to(start: Start) -> None:
    """The server was replaced in mid-step, so its scores may have another meaning."""
    run = Run(start(first(3, honest, then=becomes_another_version)), max_failed_share=1.0, min_fill=0.0)
    collection = run.step()
    assert assert_dropped_not_zeroed(collection) == 18
    seen = {member.verdict.version for group in collection.sampled for member in group.members}
    assert seen == {"1"}


def test_servers_that_differ_in_version_are_one_sentence(start: Start) -> None:
    with pytest.raises(RewardServiceError, match="differ in version") as caught:
        Run(start(honest), start(honest, version="2"))
    assert "\n" not in str(caught.value)


def test_an_honest_0_is_a_0(start: Start) -> None:
    """A score of 0 that the service did give counts."""
    run = Run(start(honest), enabled=False)
    prompts = make_prompts(*[WRONG] * NUM_PROMPTS)
    collection = make_collector(run.config, prompts, grader=ServiceGrader(run.client, None)).collect(
        new_state()
    )
    run.client.close()
    assert {group.rewards for group in collection.groups} == {tuple(WRONG)}
