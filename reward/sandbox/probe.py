"""Finds which level works here: tried with real attacks at start, never derived from a version number."""

from __future__ import annotations

import os
import socket
import tempfile
from importlib.resources import files

from reward.sandbox.cell import SYSTEM_LIBRARIES, Level, mounts
from reward.sandbox.execution import Sandbox
from reward.sandbox.launch import ZygoteError, read_paths

_ATTACKS = files("reward").joinpath("data/attacks.txt").read_text(encoding="utf-8")
"""The format of a program that tries every way out, and prints a list of those that were open."""


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
        secret = os.path.join(directory, "secret")
        with open(secret, "w") as stream:
            stream.write("secret")
        os.environ["REWARD_PROBE_SECRET"] = "secret"
        try:
            source = _ATTACKS.format(
                secret=secret,
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
    """Returns the places in a cell with namespaces that must be mounted read-only: its root, what programs can read,
    and every mount below that."""
    places = ["/"]
    for path in (*SYSTEM_LIBRARIES, *read_paths("code")):
        real = os.path.realpath(path)  # mounts are listed by it
        places += [path, *(path + place[len(real) :] for place in mounts() if place.startswith(f"{real}/"))]
    return places
