"""Finds which level works here: tried with real attacks at start, never derived from a version number."""

from __future__ import annotations

import os
import socket
import tempfile

from reward.sandbox.cell import SYSTEM_LIBRARIES, Level, mounts
from reward.sandbox.execution import Sandbox
from reward.sandbox.launch import ZygoteError, read_paths

_ATTACKS = """
import os
held = []
try:
    open({canary!r}).read(); held.append("read a host file")
except OSError: pass
try:
    open({canary!r}, "w").write("x"); held.append("wrote a host file")
except OSError: pass
try:
    open({written!r}, "w").write("x"); held.append("created a host file")
except OSError: pass
try:
    name = os.path.dirname(os.__file__) + "/reward_probe"
    open(name, "w"); held.append("wrote to the interpreter's files"); os.unlink(name)
except OSError: pass
for place in {read_only!r}:  # by its mount: who does not own the files cannot write to them anyway
    if os.path.exists(place) and not os.statvfs(place).f_flag & os.ST_RDONLY:
        held.append("finds " + place + " mounted for writing")
try:
    if os.listdir("/proc"): held.append("sees processes in /proc")
except OSError: pass
try:
    import socket
    socket.create_connection(("127.0.0.1", {port}), 1); held.append("reached the network")
except OSError: pass
try:
    pid = os.fork()
    if pid == 0: os._exit(0)
    held.append("forked")
except OSError: pass
try:
    os.execv("/bin/true", ["true"])
except OSError: pass
try:
    os.kill(os.getppid(), 0); held.append("could signal its parent")
except OSError: pass
if os.getuid() == 0: held.append("runs as root")
if "REWARD_PROBE_SECRET" in os.environ: held.append("sees the environment")
import fractions, colorsys
print(held)
"""


def strongest(allow_none: bool = False) -> tuple[Level | None, list[str]]:
    """Returns the strongest level that holds, and a sentence for every stronger one that does not.

    The level is None if none holds: code must then be refused, unless `allow_none` accepts resource limits alone.
    """
    reasons: list[str] = []
    for level in (Level.namespaces, Level.landlock, Level.namespaces_only):
        failure = failure_of(level)
        if failure is None:
            return level, reasons
        reasons.append(f"sandbox level {level.value} does not hold here: {failure}")
    if allow_none:
        reasons.append("programs run WITHOUT a sandbox, because --unsafe-no-sandbox was given")
        return Level.none, reasons
    reasons.append("no sandbox holds on this machine, so code rewards are refused")
    return None, reasons


def failure_of(level: Level) -> str | None:
    """Returns None if a harmless program works at this level and every attack fails; else what happened."""
    sandbox = Sandbox(level)
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as listener:
        canary = os.path.join(directory, "canary")
        with open(canary, "w") as stream:
            stream.write("secret")
        os.environ["REWARD_PROBE_SECRET"] = "secret"
        try:
            source = _ATTACKS.format(
                canary=canary,
                written=os.path.join(directory, "new"),
                read_only=_read_only() if level.has_namespaces else [],
                port=listener.getsockname()[1],
            )
            execution = sandbox.run(source, [""])
        except (ZygoteError, OSError) as error:
            return str(error)
        finally:
            del os.environ["REWARD_PROBE_SECRET"]
            sandbox.close()
    if execution.ends != ["exit"]:
        return f"an honest program did not run ({execution.ends or execution.compiled or 'no word from it'})"
    if (held := execution.outputs[0].decode(errors="replace").strip()) != "[]":
        return f"a program inside {held}"
    return None


def _read_only() -> list[str]:
    """The places in a cell with namespaces that must be mounted read-only: its root, what programs can read, and every
    mount below that."""
    places = ["/"]
    for path in (*SYSTEM_LIBRARIES, *read_paths("code")):
        real = os.path.realpath(path)  # mounts are listed by it
        places += [path, *(path + place[len(real) :] for place in mounts() if place.startswith(f"{real}/"))]
    return places
