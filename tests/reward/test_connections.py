"""Tests of half-sent requests, endless ones, and too many connections, on a server with short time limits."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from reward.connections import Connection, raise_descriptor_limit

pytestmark = pytest.mark.medium  # they wait until the server gives up

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Stream]]


class Impatient(Connection):
    arrival_s = 0.3


class Narrow(Connection):
    max_connections = 2


async def echo(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
    """Answers with the body, after four times the server's time limit if the path is /slow; with 401 at once for
    /closed."""
    body, more = b"", scope["path"] != "/closed"
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/slow":
        await asyncio.sleep(4 * Impatient.arrival_s)
    headers = [(b"content-length", str(len(body)).encode())]
    status = 401 if scope["path"] == "/closed" else 200
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving(protocol: type[Connection]) -> AsyncIterator[Connect]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            echo, http=protocol, log_level="critical", lifespan="off", timeout_keep_alive=60
        )
        server = uvicorn.Server(config)
        running = asyncio.create_task(server._serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield lambda: asyncio.open_connection(*listener.getsockname())
        server.should_exit = server.force_exit = True
        await running


def check(protocol: type[Connection], use: Callable[[Connect], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving(protocol) as connect, asyncio.timeout(60):
            await use(connect)

    asyncio.run(run())


async def answer(stream: Stream) -> bytes:
    """Returns the body of the next answer, whose headers give its length."""
    head = await stream[0].readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    return await stream[0].readexactly(length)


@pytest.mark.parametrize(
    "begun", [b"", b"PO", HEAD, HEAD + b"X-Never: ", HEAD + b"\r\n", HEAD + b"\r\nhel", b"\r\n"]
)
@pytest.mark.parametrize("after_another", [False, True])
def test_half_a_request_is_cut_off(begun: bytes, after_another: bool) -> None:
    async def use(connect: Connect) -> None:
        reader, writer = stream = await connect()
        if after_another:
            writer.write(HEAD + b"\r\nfirst")
            assert await answer(stream) == b"first"
        if begun or not after_another:
            writer.write(begun)
            assert await reader.read() == b""
        else:  # idle between two requests: that is no half request
            await asyncio.sleep(3 * Impatient.arrival_s)
            writer.write(HEAD + b"\r\nagain")
            assert await answer(stream) == b"again"

    check(Impatient, use)


@pytest.mark.parametrize("drip", [b"X: y\r\n", b"\r\n"])
def test_a_request_that_drips_in_is_cut_off(drip: bytes) -> None:
    async def use(connect: Connect) -> None:
        reader, writer = stream = await connect()
        writer.write(HEAD + b"\r\nfirst")
        assert await answer(stream) == b"first"
        writer.write(HEAD if drip != b"\r\n" else b"")
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(drip)
                await writer.drain()
                await asyncio.sleep(0.05)

    check(Impatient, use)


def test_a_refused_request_whose_body_never_ends_is_cut_off() -> None:
    async def use(connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(b"POST /closed HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1 << 16), 0.01)

    check(Impatient, use)


def test_a_long_body_that_keeps_coming_is_read() -> None:
    async def use(connect: Connect) -> None:
        _, writer = stream = await connect()
        part = b"x" * (64 << 10)  # allows it one more second each
        writer.write(HEAD.replace(b" 5\r", b" %d\r" % (8 * len(part))) + b"\r\n")
        for _ in range(8):
            writer.write(part)
            await asyncio.sleep(0.5 * Impatient.arrival_s)
        assert await answer(stream) == 8 * part

    check(Impatient, use)


def test_a_long_wait_for_an_answer_is_the_servers_own_and_pipelined_requests_wait_too() -> None:
    async def use(connect: Connect) -> None:
        _, writer = stream = await connect()
        slow = HEAD.replace(b"/", b"/slow", 1) + b"\r\n"
        writer.write(slow + b"first" + slow + b"other" + HEAD)
        assert await answer(stream) == b"first"
        assert await answer(stream) == b"other"
        writer.write(b"\r\nthird")
        assert await answer(stream) == b"third"

    check(Impatient, use)


def test_connections_beyond_the_limit_are_told_to_come_back() -> None:
    async def use(connect: Connect) -> None:
        held = [await connect(), await connect()]
        for _, writer in held:
            writer.write(HEAD + b"\r\nhello")
        assert [await answer(stream) for stream in held] == [b"hello"] * 2
        third = await connect()
        refused = await third[0].read()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after" in refused.lower()
        held[0][1].close()
        while True:  # until the server has seen it
            reader, writer = stream = await connect()
            writer.write(HEAD + b"\r\nhello")
            with contextlib.suppress(ConnectionError):
                if (await reader.readline()).startswith(b"HTTP/1.1 200 "):
                    assert await answer(stream) == b"hello"
                    break

    check(Narrow, use)


def test_there_are_descriptors_for_connections_and_for_workers() -> None:
    import resource

    room = raise_descriptor_limit()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 32 <= room <= 16_384
    assert room + 512 <= soft or room == 32
