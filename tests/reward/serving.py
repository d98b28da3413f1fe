"""A real service for tests: started as users start it, spoken to over HTTP with the standard library."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
PYTHON = sys.executable
START_TIMEOUT_S = 180


SPENDS_ALL_ITS_TIME = {
    "10_fork_bomb", "15_stderr_flood", "16_sleep", "18_ignore_signals", "19_catch_timeout_then_print", "30_stop_parent",
    "40_deep_recursion", "49_inode_bomb", "54_hang_at_exit", "55_nondaemon_thread", "63_sigxcpu_handler",
    "12_memory_bomb",
}  # fmt: skip
"""The attacks of hostile.jsonl that end only at a limit of time."""


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def request(domain: str, response: str, task: dict[str, Any], request_id: str = "r") -> dict[str, Any]:
    return {"request_id": request_id, "domain": domain, "response": response, "task": task}


def boxed(answer: str, gold: str, request_id: str = "r") -> dict[str, Any]:
    return request("math", f"<think>so</think> \\boxed{{{answer}}}", {"answer": gold}, request_id)


def program(source: str) -> str:
    return f"<think>so</think>\n```python\n{source}\n```"


def json_lines(items: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


class Address:
    """A running service at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: Any = None, token: str = "") -> tuple[int, dict[str, str], bytes]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        message = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(message, timeout=500) as reply:
                return reply.status, dict(reply.headers), reply.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def score(self, body: Any) -> dict[str, Any]:
        return json.loads(self.call("/v1/score", body)[2])

    def batch(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return json.loads(self.call("/v1/score_batch", json_lines(items))[2])["items"]


class Server(Address):
    """`python -m reward serve` as a child process."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="reward-test-")
        self.ready_file = Path(self._folder.name) / "ready.json"
        self.log = Path(self._folder.name) / "log"
        self._arguments, self._env = arguments, env
        self.start()

    def start(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "reward", "serve", "--ready-file", str(self.ready_file), *self._arguments],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(self._env or {})},
                text=True,
            )
        limit = time.monotonic() + START_TIMEOUT_S
        while not self.ready_file.exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit, self.log.read_text()
            time.sleep(0.05)
        self.ready = json.loads(self.ready_file.read_text())
        self.url = self.ready["url"]

    def descendants(self) -> list[int]:
        """Returns the pids of the server's descendants."""
        return descendants(self.process.pid)

    def footprint(self) -> tuple[int, int, int]:
        """Returns (processes, descriptors of the server, KiB of all processes). Counts anonymous memory,
        proportionally: memory for files depends on who else on the machine has them open."""
        pids = [self.process.pid, *self.descendants()]
        kib = 0
        for pid in pids:
            with contextlib.suppress(OSError):
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                kib += int((rollup.partition("Pss_Anon:")[2] or rollup.partition("Pss:")[2]).split()[0])
        return len(pids), len(os.listdir(f"/proc/{self.process.pid}/fd")), kib

    def kill(self) -> None:
        """Kills the server as the kernel's out-of-memory killer would."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stops the server with a signal, by default SIGHUP for a server that ends with its parent, and returns its
        exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def children(pid: int) -> list[int]:
    """Returns the processes that any thread of a process has started."""
    found = []
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process has started, those that they have started, and so on."""
    found, todo = [], [pid]
    while todo:
        below = children(todo.pop())
        found += below
        todo += below
    return found


def alive(pids: list[int]) -> list[int]:
    """Returns those of the processes that still run (zombies do not)."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.append(pid)
    return running


def wait_until(condition: Any, seconds: float = 60) -> bool:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True
