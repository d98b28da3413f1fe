"""SandboxFusion's `POST /run_code` for Python: runs one program and returns its output. Clients: verl's
`sandbox_fusion_url`, SkyRL, and SandboxFusion's own.

Protocol (sandbox/server/sandbox_api.py of bytedance/SandboxFusion; verl/utils/reward_score/sandbox_fusion/utils.py):

    {"code", "language", "stdin", "run_timeout", "compile_timeout", "memory_limit_MB", "files", "fetch_files"}
    -> {"status": "Success" | "Failed", "message", "compile_result": null,
        "run_result": {"status": "Finished" | "TimeLimitExceeded", "execution_time", "return_code", "stdout", "stderr"},
        "executor_pod_name": null, "files": {}}

`run_timeout` counts CPU seconds and seconds of sleep, not wall time, up to MAX_CPU_S. `memory_limit_MB` is clamped to
256 to 1,024. Other languages and files are answered with 400: a program that cannot be run here is not wrong.

verl and SkyRL retry on 504 and on no other status, so a program that could not be run in time is answered with 504. It
continues to run, and the next try gets its result.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from dataclasses import astuple
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from reward.frontends.common import MAX_WAIT_S, UrlOptions, bad_request, not_graded, object_in
from reward.graders.code_tests import MAX_CPU_S
from reward.graders.grade import is_number
from reward.sandbox.judge import MEMORY
from reward.sandbox.programs import Program, ProgramRun
from reward.server import JsonBody
from reward.service import NotRun, Service

router = APIRouter()
_DEFAULT_TIMEOUT_S = 10.0
_CLIENT_MARGIN_S = 8.0
"""verl and SkyRL wait compile_timeout + run_timeout + 10 s for an answer."""
_SHORT_MARGIN_S = 1.0
"""A client that sends no compile_timeout may wait only run_timeout + 2 s (SkyRL's sandboxfusion_exec.py)."""
_MAX_SOURCE, _MAX_STDIN = 1 << 20, 32 << 20
_MAX_KEPT = 256
_MAX_RUNNING, _MAX_CHARACTERS_RUNNING = 4096, 1 << 30
"""As many programs as the workers' queue holds, and the text of 32 programs with the longest input."""
_BUSY_PAUSE_S = 0.2


class Runs:
    """Running programs, and results that no client has fetched yet: a client that retries gets the run of its first
    try. Both are bounded, by the number of programs and by the memory of their texts."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: OrderedDict[bytes, asyncio.Task[ProgramRun]] = OrderedDict()
        """Keyed by the program's digest."""
        self._num_running, self._characters_running = 0, 0

    async def result(self, program: Program, wait_s: float) -> ProgramRun | None:
        """Returns the run, or None if it does not end, or finds no room to begin, within `wait_s` seconds. Raises
        NotRun."""
        key, loop = _digest(program), asyncio.get_running_loop()
        ends = loop.time() + wait_s
        while (task := self._tasks.get(key)) is None and self._is_full(program):
            if loop.time() >= ends:
                return None
            await asyncio.sleep(min(_BUSY_PAUSE_S, wait_s))
        if task is None:
            task = self._tasks[key] = self._start(program)
            self._forget()
        await asyncio.wait({task}, timeout=max(0.0, ends - loop.time()))
        if not task.done():
            return None
        if self._tasks.get(key) is task:
            del self._tasks[key]
        return task.result()

    def _is_full(self, program: Program) -> bool:
        """Whether a program has to wait before it may queue for a worker. A program that is alone never has to."""
        characters = self._characters_running + _num_characters(program)
        return self._num_running >= _MAX_RUNNING or (
            self._num_running > 0 and characters > _MAX_CHARACTERS_RUNNING
        )

    def _start(self, program: Program) -> asyncio.Task[ProgramRun]:
        size = _num_characters(program)
        self._num_running += 1
        self._characters_running += size

        def ended(_: asyncio.Task[ProgramRun]) -> None:
            self._num_running -= 1
            self._characters_running -= size

        task = asyncio.get_running_loop().create_task(self._run(program))
        task.add_done_callback(ended)
        return task

    async def _run(self, program: Program) -> ProgramRun:
        """Waits for room in the queue and runs the program. Raises NotRun."""
        while True:
            try:
                return await self._service.run_program(program)
            except NotRun as error:
                if not error.is_busy:
                    raise
            await asyncio.sleep(_BUSY_PAUSE_S)

    def _forget(self) -> None:
        """Drops the oldest results that no client has fetched."""
        ended = [key for key, task in self._tasks.items() if task.done()]
        for key in ended[: max(0, len(ended) - _MAX_KEPT)]:
            task = self._tasks.pop(key)
            task.exception()  # retrieved, so that asyncio does not report it


def _num_characters(program: Program) -> int:
    return len(program.source) + len(program.stdin)


def _digest(program: Program) -> bytes:
    """Returns a digest of the program, because its texts may have megabytes."""
    content = json.dumps(astuple(program)).encode()
    return hashlib.blake2b(content, digest_size=32).digest()


async def _runs(request: Request) -> Runs:
    """Returns the application's Runs, created on first use. A coroutine, so that there are never two."""
    state = request.app.state
    if not hasattr(state, "runs"):
        state.runs = Runs(state.front.service)
    runs: Runs = state.runs
    return runs


@router.post("/run_code")
async def run_code(
    runs: Annotated[Runs, Depends(_runs)], options: UrlOptions, body: JsonBody
) -> dict[str, Any]:
    """Runs one program once and returns the result in SandboxFusion's form."""
    fields = object_in(body)
    program = program_of(fields)
    wait_s = min(options.wait_s or _wait_s(fields), MAX_WAIT_S)
    try:
        ran = await runs.result(program, wait_s)
    except NotRun as error:
        raise not_graded(f"not run: {error}", 504) from error
    if ran is None:
        raise not_graded(f"not run within {wait_s:g} s: the service is busy", 504)
    return answer_of(ran)


def program_of(fields: dict[str, Any]) -> Program:
    """Builds the program that a request asks to run. Raises HTTPException (400)."""
    language, source = fields.get("language", "python"), fields.get("code")
    stdin, memory = fields.get("stdin"), fields.get("memory_limit_MB", -1)
    if language != "python":
        raise bad_request(f"this service runs Python programs only, not {str(language)[:40]!r}")
    if not isinstance(source, str) or len(source) > _MAX_SOURCE:
        raise bad_request(f'"code" must be text of up to {_MAX_SOURCE} characters')
    if stdin is not None and (not isinstance(stdin, str) or len(stdin) > _MAX_STDIN):
        raise bad_request(f'"stdin" must be text of up to {_MAX_STDIN} characters, or null')
    if fields.get("files") or fields.get("fetch_files"):
        raise bad_request(
            '"files" and "fetch_files" must be empty: programs have standard input and output only'
        )
    if not isinstance(memory, int) or isinstance(memory, bool):
        raise bad_request('"memory_limit_MB" must be a whole number')
    return Program(
        source=source,
        stdin=stdin or "",
        cpu_s=min(_seconds(fields, "run_timeout"), MAX_CPU_S),
        memory=memory << 20 if 0 < memory < 1 << 20 else MEMORY,
    )


def answer_of(ran: ProgramRun) -> dict[str, Any]:
    """Returns the run in SandboxFusion's form."""
    return_code, stderr = ran.return_code, ran.stderr
    if ran.end == "output_limit":
        return_code, stderr = 1, f"{stderr}\nThe program wrote more than {len(ran.stdout)} characters.\n"
    return {
        "status": "Success" if return_code == 0 else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": {
            "status": "TimeLimitExceeded" if ran.end == "timeout" else "Finished",
            "execution_time": ran.cpu_s,
            "return_code": return_code,
            "stdout": ran.stdout,
            "stderr": stderr,
        },
        "executor_pod_name": None,
        "files": {},
    }


def _wait_s(fields: dict[str, Any]) -> float:
    """Returns the seconds to wait for a result: slightly less than the client does."""
    run_s = _seconds(fields, "run_timeout")
    if "compile_timeout" in fields:
        return run_s + _seconds(fields, "compile_timeout") + _CLIENT_MARGIN_S
    return run_s + _SHORT_MARGIN_S


def _seconds(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name, _DEFAULT_TIMEOUT_S)
    if not is_number(value) or not 0 < value <= 1e6:
        raise bad_request(f'"{name}" must be a number of seconds above 0')
    return float(value)
