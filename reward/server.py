"""The HTTP server, one per node: FastAPI on uvicorn. It checks requests, queues them and answers. It never looks into a
model's response, apart from decoding the JSON that contains it.

    POST /v1/score          one request -> one result (reward.protocol)
    POST /v1/score_batch    one request per line, up to 256 -> {"items": [result, ...]} in order; each line fails alone
    GET  /healthz           200 while the process lives
    GET  /readyz            whether every domain passed its known answers in the last 30 s; sandbox level; version
    GET  /metrics           Prometheus

A single request that is not graded is answered with 429 and Retry-After (overloaded), 400 (invalid) or 503
(infra_error); a batch with 200 and a status in each item. If a token is set, every path but /healthz requires
`Authorization: Bearer`, or `Basic` with the token as the password. Paths for other trainers' clients are in
reward.frontends.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import json
import os
import resource
import secrets
import signal
import socket
import stat
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect

from reward import frames
from reward.protocol import MAX_BATCH_ITEMS, PROTOCOL_VERSION, GradeStatus, ScoreResult
from reward.readiness import Readiness
from reward.requests import InvalidRequest, decode_line, request_of
from reward.service import Service

_MAX_BODY_BYTES = 192 << 20
_RETRY_AFTER_S = 1
_HTTP_STATUS = {
    GradeStatus.graded: 200,
    GradeStatus.overloaded: 429,
    GradeStatus.infra_error: 503,
    GradeStatus.invalid_request: 400,
}
_REMEMBERED = 20_000  # newest results, for repeated requests
_KEEP_ALIVE_S = 75
"""Seconds after which an idle connection is closed, as in nginx. Longer than clients keep one open (aiohttp: 15 s): if
the service closed first, a client could send a request into a connection that is just closing."""
_MAX_CONNECTIONS = 16_384
"""Connections beyond which requests are refused. Our client uses at most one per batch, and has 4 * workers + 32
requests in flight per server."""
_OTHER_DESCRIPTORS = 512
"""File descriptors reserved for workers, which take one each, and for starting them."""


class UserError(Exception):
    """A mistake that the person who started the service can fix; the message is one sentence."""


class Front:
    """Connects HTTP and the service: checks bodies and tokens, and caches recent results by request id."""

    def __init__(self, service: Service, readiness: Readiness, token: str | None) -> None:
        self.service, self.readiness = service, readiness
        self._token = None if token is None else token.encode()
        self._recent: OrderedDict[tuple[str, int], ScoreResult] = OrderedDict()
        self._running: dict[tuple[str, int], asyncio.Task[ScoreResult]] = {}

    def admits(self, request: Request) -> bool:
        """Whether the request carries the token: as `Authorization: Bearer TOKEN`, or as the password of
        `Authorization: Basic`, which HTTP clients derive from a URL such as http://reward:TOKEN@host:8000."""
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:  # the password of RFC 7617
                given = base64.b64decode(given, validate=True).decode("utf-8", "replace").partition(":")[2]
            except ValueError:
                given = ""
        return hmac.compare_digest(given.encode(), self._token)

    async def score_all(self, bodies: Sequence[Any]) -> list[ScoreResult]:
        """Returns a result for each JSON request, in order. A caller that disconnects cancels no equal request."""
        begun = [self._begin(body) for body in bodies]
        if running := [task for task in begun if isinstance(task, asyncio.Task)]:
            await asyncio.wait(running)
        return [one.result() if isinstance(one, asyncio.Task) else one for one in begun]

    def _begin(self, body: Any) -> ScoreResult | asyncio.Task[ScoreResult]:
        """Starts grading a request, unless an equal one (of the same id and content) is being graded or was."""
        try:
            request = request_of(body)
        except InvalidRequest as error:
            return self._invalid(str(error), error.request_id)
        try:
            task_text = json.dumps(request.task)
        except RecursionError:
            return self._invalid('"task" nests too deep', request.request_id)
        content = (request.domain, request.response, request.in_thought, task_text)
        key = (request.request_id, hash(content))
        if key in self._recent:
            return self._recent[key]
        if key not in self._running:
            task = self._running[key] = asyncio.get_running_loop().create_task(self.service.score(request))
            task.add_done_callback(lambda done: self._finish(key, done))
        return self._running[key]

    def _invalid(self, sentence: str, request_id: str) -> ScoreResult:
        details = {"reason": sentence}
        return self.service.result(request_id, GradeStatus.invalid_request, "invalid_request", details)

    def _finish(self, key: tuple[str, int], task: asyncio.Task[ScoreResult]) -> None:
        del self._running[key]
        if not task.cancelled() and task.exception() is None and task.result().status is GradeStatus.graded:
            self._recent[key] = task.result()
            if len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)


def _json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(body), status, dict(headers or {}), "application/json")


async def _require_token(request: Request) -> None:
    if not request.app.state.front.admits(request):
        raise HTTPException(401, "the token is missing or wrong")


async def _body_bytes(request: Request) -> bytearray:
    """Reads the body, up to the size limit. Raises HTTPException."""
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > _MAX_BODY_BYTES:
                raise HTTPException(400, f"the body is longer than {_MAX_BODY_BYTES} bytes")
    except ClientDisconnect as error:  # keeps a traceback out of the log; nobody reads the answer
        raise HTTPException(400, "the connection ended before the body was complete") from error
    return data


async def _json_body(request: Request) -> Any:
    """Reads and decodes the body. Raises HTTPException."""
    data = await _body_bytes(request)
    try:
        return frames.decode(data)
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON that can be read: {error}") from error


async def _json_lines(request: Request) -> list[Any]:
    """Reads the requests of a batch, one per line, with an InvalidRequest in place of each that cannot be decoded.
    Raises HTTPException."""
    lines = [line for line in (await _body_bytes(request)).split(b"\n") if line.strip()]
    if len(lines) > MAX_BATCH_ITEMS:
        raise HTTPException(400, f"a batch has up to {MAX_BATCH_ITEMS} requests, one per line")
    return [decode_line(line) for line in lines]


JsonBody = Annotated[Any, Depends(_json_body)]
"""A route's parameter: the decoded JSON body."""
_JsonLines = Annotated[list[Any], Depends(_json_lines)]


def application(front: Front, routers: Sequence[APIRouter] = ()) -> FastAPI:
    """Builds the app: our own routes, and `routers` for other trainers' clients, behind the same token."""
    app = FastAPI(title="reward", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.front = front
    guarded = APIRouter(dependencies=[Depends(_require_token)])

    @app.exception_handler(RequestValidationError)
    async def bad_option(_request: Request, invalid: RequestValidationError) -> Response:
        reasons = [f"the URL's option {error['loc'][-1]}: {error['msg']}" for error in invalid.errors()]
        return _json({"detail": f"{'; '.join(reasons)} (docs/other_trainers.md has the options)"}, 400)

    @app.get("/healthz")
    async def healthz() -> Response:
        return _json({"status": "alive"})

    @guarded.post("/v1/score")
    async def score(body: JsonBody) -> Response:
        (result,) = await front.score_all([body])
        headers = {"Retry-After": str(_RETRY_AFTER_S)} if result.status is GradeStatus.overloaded else {}
        return _json(result.to_json(), _HTTP_STATUS[result.status], headers)

    @guarded.post("/v1/score_batch")
    async def score_batch(lines: _JsonLines) -> Response:
        results = await front.score_all(lines)
        return _json({"items": [result.to_json() for result in results]})

    @guarded.get("/readyz")
    async def readyz() -> Response:
        report = front.readiness.report()
        return _json(report, 200 if report["ready"] else 503)

    @guarded.get("/metrics")
    async def metrics() -> Response:
        pools = front.service.pools
        gauges = {
            "reward_queue_depth": {name: float(pool.depth) for name, pool in pools.items()},
            "reward_workers": {name: float(len(pool.links)) for name, pool in pools.items()},
        }
        return Response(front.service.metrics.render(gauges), media_type="text/plain; version=0.0.4")

    for router in routers:
        guarded.include_router(router)
    app.include_router(guarded)
    return app


# ------------------------------------------------------------------------------------- the process
def read_token(path: Path | None, host: str) -> str | None:
    """Reads the token; None on a loopback address without a token file. Raises UserError."""
    if path is None:
        with contextlib.suppress(ValueError):
            if host == "localhost" or ipaddress.ip_address(host).is_loopback:
                return None
        raise UserError(
            f"serving on {host} needs --token-file: anybody on the network could have responses graded"
        )
    try:
        mode = path.stat().st_mode
        token = path.read_text().strip()
    except OSError as error:
        raise UserError(f"the token file {path} cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(
            f"the token file {path} can be read by others (mode {stat.S_IMODE(mode):o}); chmod 600 it"
        )
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise UserError(f"the token in {path} must have 16 printable ASCII characters or more")
    return token


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that readers see the old content or the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    temporary.write_text(text)
    os.replace(temporary, path)


async def serve(
    make_service: Callable[[], Service],
    routers: Sequence[APIRouter],
    *,
    host: str,
    port: int,
    ready_file: Path | None,
    token_file: Path | None,
    exit_with_parent: int | None,
) -> None:
    """Serves our own routes and `routers` until SIGTERM, SIGINT or SIGHUP, then leaves nothing behind. Calls
    `make_service`, which takes seconds because it tries the sandbox, only if nothing is wrong with the options.

    token_file: required for any address but loopback. exit_with_parent: the PID of the parent, without which the
    service stops. Only SIGHUP stops it then: the other two go to all processes of a job or terminal that ends, and the
    parent still needs verdicts until it has saved. Raises UserError."""
    if exit_with_parent not in (None, os.getppid()):
        raise UserError(f"process {exit_with_parent}, which was to start this service, is gone")
    token = read_token(token_file, host)
    listener = _listen(host, port)
    max_connections = _set_descriptor_limit()
    service = make_service()
    readiness = Readiness(service)
    await service.open()
    try:
        await readiness.first_round()
        if defect := readiness.defect():
            raise UserError(defect)
        config = uvicorn.Config(
            application(Front(service, readiness, token), routers),
            log_level="warning",
            access_log=False,
            lifespan="off",
            backlog=4096,
            ws="none",
            limit_concurrency=max_connections,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
        )
        server = _UvicornServer(config)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, server.stop)
        for number in (signal.SIGTERM, signal.SIGINT):
            is_for_parent = exit_with_parent is not None
            loop.add_signal_handler(number, (lambda: None) if is_for_parent else server.stop)
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(readiness.keep())]
            if exit_with_parent is not None:
                background.append(tasks.create_task(_stop_without(exit_with_parent, server)))
            background.append(tasks.create_task(_announce(server, service, listener, ready_file)))
            await server.serve(sockets=[listener])
            for task in background:
                task.cancel()
    finally:
        await service.close()


def _set_descriptor_limit() -> int:
    """Sets this process's limit of open files to what it may need, as far as the system allows. Returns the number of
    connections that this leaves room for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_CONNECTIONS + _OTHER_DESCRIPTORS
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(32, allowed - _OTHER_DESCRIPTORS)


class _UvicornServer(uvicorn.Server):
    """A uvicorn server that leaves signals to us: uvicorn's own handler re-raises them before we have cleaned up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True


async def _announce(
    server: uvicorn.Server, service: Service, listener: socket.socket, ready_file: Path | None
) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    sandbox = "none" if service.level is None else service.level.value
    ready = {"url": f"http://{name}:{port}", "protocol": PROTOCOL_VERSION, "sandbox": sandbox}
    line = json.dumps({**ready, "version": service.version})
    if ready_file is not None:
        write_atomically(ready_file, line + "\n")
    with contextlib.suppress(OSError):  # the disk with the log is full; grading needs no log
        print(line, flush=True)


async def _stop_without(parent: int, server: _UvicornServer) -> None:
    """Stops the server when the process that started it is gone.

    Polls, because PR_SET_PDEATHSIG reports the end of the thread that started us, not of the process."""
    while os.getppid() == parent:
        await asyncio.sleep(0.5)
    print("reward: the parent is gone, stopping", file=sys.stderr)
    server.stop()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"cannot serve on {host} port {port}: {error.strerror}") from error
    listener.set_inheritable(False)
    return listener
