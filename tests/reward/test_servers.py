"""Tests of how often clients look for servers and ask them, on a clock that jumps from one event to the next."""

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

from reward.protocol import PROTOCOL_VERSION
from reward.server import write_atomically
from reward.servers import PERIOD_S, Servers, read_folder


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


class Nodes:
    """The servers of some nodes as clients see them, and the requests that they get."""

    def __init__(self, folder: Path, num_servers: int) -> None:
        self.folder = folder
        for index in range(num_servers):
            self.announce(f"n{index}", f"http://n{index}")
        self.dead: set[str] = set()
        """URLs."""
        self.asked: Counter[str] = Counter()
        self.moments_s: list[float] = []

    def announce(self, name: str, url: str) -> None:
        write_atomically(self.folder / f"{name}.json", json.dumps({"url": url}))

    async def ask(self, url: str) -> tuple[int, bytes]:
        server = url.removesuffix("/readyz")
        self.asked[server] += 1
        self.moments_s.append(asyncio.get_running_loop().time())
        if server in self.dead:
            raise ConnectionRefusedError
        report = {
            "protocol": PROTOCOL_VERSION,
            "version": "v",
            "workers": 8,
            "domains": {"math": {"ready": True}},
        }
        return 200, json.dumps(report).encode()

    def client(self) -> Servers:
        return Servers(folder=self.folder)

    def forget(self) -> None:
        self.asked.clear()
        self.moments_s.clear()


def play(nodes: Nodes, clients: list[Servers], *acts: tuple[float, Callable[[], object]]) -> None:
    """Runs the clients; each act comes after its number of seconds."""

    async def main() -> None:
        watching = [asyncio.ensure_future(client.watch(nodes.ask)) for client in clients]
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


def up(client: Servers) -> list[str]:
    return [server.url for server in client.up()]


def test_servers_that_are_up_are_asked_once_in_a_period_and_clients_do_not_stay_in_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, reads = Nodes(tmp_path, 4), []
    monkeypatch.setattr("reward.servers.read_folder", lambda folder: reads.append(1) or read_folder(folder))
    play(nodes, [nodes.client() for _ in range(64)], (0.1, nodes.forget), (10 * PERIOD_S, lambda: None))
    assert len(reads) == 64, "a folder that does not change is read once"
    assert all(64 * 8 <= count <= 64 * 13 for count in nodes.asked.values())
    late = Counter(int(moment_s) for moment_s in nodes.moments_s if moment_s > 4 * PERIOD_S)
    assert max(late.values()) < 0.1 * late.total()


def test_the_server_of_ones_own_node_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(tmp_path, 4)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    client = nodes.client()
    play(nodes, [client], (1.0, lambda: None))
    assert up(client) == ["http://n2", "http://n0", "http://n1", "http://n3"]


def test_a_lost_server_is_asked_again_soon_and_its_successor_is_found(tmp_path: Path) -> None:
    """The successor announces itself in the same file, with another URL. Those that are up are left in peace."""
    nodes = Nodes(tmp_path, 2)
    client = nodes.client()

    def die() -> None:
        nodes.forget()
        nodes.dead.add("http://n0")
        client.mark_down(client.used["http://n0"], "is gone")
        assert up(client) == ["http://n1"]
        nodes.announce("n0", "http://n0:2")

    play(nodes, [client], (1.0, die), (2.0, lambda: None))
    assert up(client) == ["http://n0:2", "http://n1"]
    assert nodes.asked["http://n1"] == 0


def test_a_server_that_comes_later_is_used(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1)
    client = nodes.client()
    play(nodes, [client], (1.0, lambda: nodes.announce("n1", "http://n1")), (2 * PERIOD_S, lambda: None))
    assert up(client) == ["http://n0", "http://n1"]


def test_a_server_that_leaves_stays_until_its_requests_are_answered(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1)
    client = nodes.client()

    def leave() -> None:
        client.used["http://n0"].outstanding = 1
        (tmp_path / "n0.json").unlink()

    def answer() -> None:
        assert up(client) == ["http://n0"]
        client.used["http://n0"].outstanding = 0

    play(nodes, [client], (1.0, leave), (2 * PERIOD_S, answer), (2 * PERIOD_S, lambda: None))
    assert client.used == {}


def test_a_dead_server_is_asked_less_and_less_often(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1)
    nodes.dead.add("http://n0")
    play(nodes, [nodes.client()], (10 * PERIOD_S, lambda: None))
    assert 10 <= nodes.asked["http://n0"] <= 20


def test_a_folder_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    for name, text in {
        "a.json": '{"url": "http://a/"}',
        "b.json": '{"url"',
        "c.json": "[]",
        "token": "x",
    }.items():
        (tmp_path / name).write_text(text)
    assert read_folder(tmp_path) == {"a": "http://a"}
    assert read_folder(tmp_path / "none") == {}
