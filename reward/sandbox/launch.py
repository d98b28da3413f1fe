"""Starts fork servers and judges. On the trusted side this is the only file that starts a process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from reward.sandbox.cell import Level

_PROJECT = str(Path(__file__).resolve().parents[2])
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore::SyntaxWarning",  # or Python 3.12 writes one to the service's log for each "\d" in a text
    "HOME": "/tmp",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "agg",
    "MPLCONFIGDIR": "/tmp",
}

_LAST_MOMENT_S = 1.0
"""Seconds to wait for the end of a judge's process after it has closed its socket."""


class ZygoteError(RuntimeError):
    """The fork server died or refused; the operation was not done."""


class Zygote:
    """A fork server for `role` (`code` or `graders`) at a level. Thread-safe; calls block for milliseconds."""

    def __init__(self, role: str, level: Level, domains: Collection[str] = ()) -> None:
        """`domains`: those whose graders the fork server of graders loads. Raises ZygoteError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Untrusted programs get no site-packages, and an interpreter outside any virtual environment.
        python = [os.path.realpath(sys.executable), "-S"] if role == "code" else [sys.executable]
        self._lock = threading.Lock()
        self._socket = ours
        with theirs:
            self._process = _start_isolated(python, theirs, "reward.sandbox.zygote")
        try:
            start: dict[str, object] = {
                "role": role,
                "level": level.value,
                "read": list(read_paths(role)),
                "packages": sysconfig.get_path("purelib"),
                "domains": list(domains),
            }
            self._ask(start, [])
        except ZygoteError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def spawn(self, fds: Sequence[int]) -> int:
        """Forks a confined child that gets copies of the descriptors. Returns its pid as the fork server sees it."""
        return int(self._ask({"op": "spawn"}, fds)["pid"])

    def end(self, pid: int) -> int:
        """Kills the child and everything below it. Returns the signal that ended it (9 if it still ran), or 0."""
        return int(self._ask({"op": "end", "pid": pid}, [])["signal"])

    def close(self) -> None:
        """Ends the fork server and its children, and waits for it."""
        self._socket.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, message: dict[str, object], fds: Sequence[int]) -> dict[str, int]:
        with self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(message).encode()], list(fds))
                answer = self._socket.recv(1 << 16)
            except OSError as error:
                raise ZygoteError(f"the sandbox's fork server is gone ({error})") from error
        if not answer:
            raise ZygoteError("the sandbox's fork server died")
        reply: dict[str, int] = json.loads(answer)
        if "error" in reply:
            raise ZygoteError(str(reply["error"]))
        return reply


def read_paths(role: str) -> tuple[str, ...]:
    """Returns the paths that can be read inside the cell besides the system's libraries: the interpreter and, for
    graders, their packages. A path through symbolic links is there under both names, because sys.path has the first
    and the links do not exist in a cell."""
    paths = [sys.base_prefix]
    if role == "graders":
        # A virtual environment on top of another one has that one's packages on its path.
        packages = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
        paths += [sys.prefix, *packages, os.path.join(_PROJECT, "reward")]
    names = dict.fromkeys(name for path in paths for name in (path, os.path.realpath(path)))
    return tuple(name for name in names if not name.startswith(("/usr/", "/lib/")))


class Judge:
    """A judge process (reward.judge) with its socket; implements reward.pool.Worker."""

    def __init__(self, level: Level) -> None:
        self.socket, theirs = socket.socketpair()
        self._line = self.socket.dup()  # stays open when the event loop closes `socket`
        with theirs:
            self._process = _start_isolated([sys.executable, "-S"], theirs, "reward.judge", level.value)
        self.pid = self._process.pid

    def end(self) -> int:
        """Kills the judge; its fork server and everything below it end too, because their sockets close. Returns the
        signal that ended the judge, or 0 if it ended by itself. A judge that has closed its socket is about to end, and
        gets _LAST_MOMENT_S to do so."""
        self.socket.close()
        poll = select.poll()
        poll.register(self._line, 0)  # a hang-up of the judge's end is always reported
        if poll.poll(0):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_LAST_MOMENT_S)
        self._line.close()
        if self._process.poll() is None:
            self._process.kill()
        return max(-self._process.wait(), 0)


def _start_isolated(
    python: list[str], theirs: socket.socket, module: str, *arguments: object
) -> subprocess.Popen[bytes]:
    """Runs main(descriptor, *arguments) of a module in an interpreter that inherits only the socket."""
    call = ", ".join(map(repr, (theirs.fileno(), *arguments)))
    source = f"import sys; sys.path.insert(0, {_PROJECT!r}); from {module} import main; main({call})"
    environment = dict(_ENVIRONMENT)
    paths = os.environ.get("PYTHONPATH")
    if paths and "-S" not in python:  # lets graders find the same plug-ins
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths.split(os.pathsep)))
    # As -I, but without -E: that would ignore PYTHONHASHSEED, and each fork server would order sets differently.
    return subprocess.Popen(
        [*python, "-s", "-P", "-B", "-c", source],
        pass_fds=[theirs.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
