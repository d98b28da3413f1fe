"""Tests of which servers clients use and how often they ask, on a clock that jumps from one event to the next."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from reward.discovery import NUM_USED, Servers, preferred, read_folder
from reward.known_server import PERIOD_S
from reward.protocol import PROTOCOL_VERSION

NODES = [f"n{index}" for index in range(64)]


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while it is idle, and then at once."""

    def __init__(self) -> None:
        super().__init__(_NeverWaits(self))
        self.now_s = 1.0

    def time(self) -> float:
        return self.now_s


class _NeverWaits(selectors.SelectSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.now_s += timeout or 0.0
        return super().select(0)


class Job:
    """The servers of a job's nodes as clients see them, and the requests that they get."""

    def __init__(self, num_servers: int) -> None:
        self.urls = {name: f"http://{name}" for name in NODES[:num_servers]}
        self.dead: set[str] = set()
        """URLs."""
        self.sandbox: dict[str, str] = {}
        self.num_reads = 0
        self.asked: Counter[str] = Counter()

    def announced(self) -> dict[str, str]:
        self.num_reads += 1
        return dict(self.urls)

    async def ask(self, url: str) -> tuple[int, bytes]:
        self.asked[url.removesuffix("/readyz")] += 1
        server = url.removesuffix("/readyz")
        if server in self.dead:
            raise ConnectionRefusedError
        sandbox = self.sandbox.get(server, "namespaces")
        domains = {"math": {"ready": True}, "code": {"ready": sandbox != "none"}}
        report = {
            "ready": True,
            "protocol": PROTOCOL_VERSION,
            "version": "v",
            "workers": 8,
            "sandbox": sandbox,
        }
        return 200, json.dumps({**report, "domains": domains}).encode()

    def client(self, **options: Any) -> Servers:
        return Servers(**{"announced": self.announced, "domains": ["math"], **options})

    def forget(self) -> None:
        self.num_reads = 0
        self.asked.clear()


def play(job: Job, clients: list[Servers], *acts: tuple[float, Callable[[], object]]) -> None:
    """Runs the clients; each event happens after its number of seconds."""

    async def main() -> None:
        watching = [asyncio.ensure_future(client.watch(job.ask)) for client in clients]
        for seconds, act in acts:
            await asyncio.sleep(seconds)
            act()
        assert not [task.result() for task in watching if task.done()]
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    loop = JumpingLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def used(client: Servers) -> set[str]:
    return {server.url for server in client.up()}


def test_servers_that_are_up_are_asked_once_in_a_period() -> None:
    """An earlier version asked every server and read the folder every second, from every client."""
    job = Job(4)
    clients = [job.client() for _ in range(8)]
    counts: list[tuple[int, int]] = []
    count = (PERIOD_S, lambda: counts.append((job.num_reads, job.asked.total())))
    play(job, clients, (0.1, job.forget), count, *[count] * 9)
    assert counts[0] <= (8, 8 * 4)
    assert 8 * 8 <= counts[-1][0] <= 8 * 13
    assert 8 * 4 * 8 <= counts[-1][1] <= 8 * 4 * 13


def test_clients_do_not_go_on_in_step() -> None:
    job = Job(4)
    moments: list[float] = []
    ask = job.ask

    async def note(url: str) -> tuple[int, bytes]:
        moments.append(asyncio.get_running_loop().time())
        return await ask(url)

    job.ask = note  # type: ignore[method-assign]
    play(job, [job.client() for _ in range(64)], (0.1, moments.clear), (2 * PERIOD_S, lambda: None))
    seconds = Counter(int(moment) for moment in moments)
    assert max(seconds.values()) < 0.25 * len(moments)


@pytest.mark.medium
def test_of_many_servers_a_client_uses_its_own_and_a_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    job, clients = Job(64), []
    for name in NODES:
        monkeypatch.setenv("SLURMD_NODENAME", name)
        clients += [job.client() for _ in range(4)]
    play(job, clients, (1.0, job.forget), (PERIOD_S, lambda: None))
    assert all(len(used(client)) == NUM_USED for client in clients)
    assert all(f"http://{name}" in used(clients[4 * index]) for index, name in enumerate(NODES))
    loads = Counter(url for client in clients for url in used(client))
    assert len(loads) == 64
    assert max(loads.values()) < 2 * 4 * NUM_USED  # the mean is 4 x NUM_USED
    assert job.asked.total() <= 2 * len(clients) * NUM_USED


def test_an_order_stays_when_servers_come_and_go() -> None:
    order = preferred(NODES, own="n5", client="c")
    assert order[0] == "n5"
    assert sorted(order) == sorted(NODES)
    assert preferred(NODES[:30], own="n5", client="c") == [name for name in order if name in NODES[:30]]
    assert preferred(NODES, own="elsewhere", client="c") != preferred(NODES, own="elsewhere", client="d")


def test_others_take_the_place_of_those_that_are_down_until_they_are_back() -> None:
    job = Job(16)
    client = job.client()

    def kill() -> None:
        job.dead |= used(client)

    def all_others() -> None:
        assert len(used(client)) == NUM_USED
        assert not used(client) & job.dead
        job.dead.clear()

    before: list[set[str]] = []
    acts = [(1.0, lambda: before.append(used(client))), (0.0, kill), (2 * PERIOD_S, all_others)]
    play(job, [client], *acts, (2 * PERIOD_S, lambda: before.append(used(client))))
    assert before[0] == before[1]


def test_a_client_goes_through_all_servers_before_it_gives_up() -> None:
    """Only the last of them can grade code."""
    job = Job(16)
    last = f"http://{preferred(NODES[:16], own='', client='x')[-1]}"
    job.sandbox = {url: "none" for url in job.urls.values() if url != last}
    client = job.client(domains=["code"])
    client._own, client._client = "", "x"
    play(job, [client], (1.0, lambda: None))
    assert used(client) == {last}
    job.sandbox[last] = "none"
    hopeless = job.client(domains=["code"])
    play(job, [hopeless], (1.0, lambda: None))
    assert len(hopeless.used) == 16
    assert all(server.is_hopeless for server in hopeless.used.values())


def test_a_lost_server_is_asked_again_soon_and_its_successor_is_found() -> None:
    """The successor announces itself in the same file, with another URL."""
    job = Job(1)
    client = job.client()

    def die() -> None:
        job.dead.add("http://n0")
        client.lose(client.used["http://n0"], "is gone")
        assert not client.up()
        job.urls["n0"] = "http://n0:2"

    play(job, [client], (1.0, die), (2.0, lambda: None))
    assert used(client) == {"http://n0:2"}


def test_a_dead_server_is_asked_less_and_less_often() -> None:
    job = Job(1)
    job.dead.add("http://n0")
    play(job, [job.client()], (10 * PERIOD_S, lambda: None))
    assert 10 <= job.asked["http://n0"] <= 20


def test_a_folder_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"url": "http://a/"}')
    (tmp_path / "b.json").write_text('{"url"')
    (tmp_path / "c.json").write_text("[]")
    (tmp_path / "token").write_text("x")
    assert read_folder(tmp_path) == {"a": "http://a"}
    assert read_folder(tmp_path / "none") == {}
