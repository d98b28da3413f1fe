"""A fork server: imports once, sets up confinement, and then forks confined children on demand.

It is started by `Zygote` (reward.sandbox.launch) as a fresh single-threaded interpreter and never reads untrusted
text. Messages on its socket (SEQPACKET, JSON) are answered one by one:

    {"op": "spawn"} with file descriptors  -> {"pid": n}
    {"op": "end", "pid": n}                -> {"signal": s}   kills the child and all below it; s is the signal that
                                              had ended it, 9 if it still ran, or 0

    When its socket closes, it kills its children and exits; when it is killed, its children die with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from importlib import import_module

from reward.sandbox.cell import Level, PreparedLevel

ChildMain = Callable[[PreparedLevel, list[int]], None]


def main(control_fd: int) -> None:
    """Body of the zygote's process; ends it."""
    control = socket.socket(fileno=control_fd)
    config = json.loads(control.recv(1 << 16))
    try:
        # What children of the role run, and further folders that they must be able to read, such as those of plug-ins.
        if config["role"] == "code":
            program, folders = import_module("reward.sandbox.runner"), ()
            program.preload(config["packages"])
        else:
            program = import_module("reward.worker")
            folders = program.preload(config["domains"])
        prepared = PreparedLevel.prepare(Level(config["level"]), [*config["read"], *folders])
    except BaseException as error:
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        os._exit(1)
    control.send(b'{"ready": true}')
    gc.collect()
    gc.freeze()  # so that children write to fewer shared pages
    _serve(control, prepared, program.main)


def _serve(control: socket.socket, prepared: PreparedLevel, child_main: ChildMain) -> None:
    children: set[int] = set()
    while True:
        message, fds, _flags, _address = socket.recv_fds(control, 4096, 4)
        if not message:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        request = json.loads(message)
        if request["op"] == "spawn":
            pid = prepared.fork()
            if pid == 0:
                _run_child(control, prepared, child_main, fds)
            children.add(pid)
            for fd in fds:
                os.close(fd)
            control.send(json.dumps({"pid": pid}).encode())
        else:
            pid = request["pid"]
            children.remove(pid)
            # Kills the child and its process group, and waits for all of them. Without a pid namespace, the processes
            # that it leaves behind are reparented to us, the subreaper.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-pid, 0)
            control.send(json.dumps({"signal": max(-os.waitstatus_to_exitcode(status), 0)}).encode())


def _run_child(
    control: socket.socket, prepared: PreparedLevel, child_main: ChildMain, fds: list[int]
) -> None:
    try:
        control.close()
        prepared.enter()
        child_main(prepared, fds)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(70)
