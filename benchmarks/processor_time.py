"""CPU seconds of the reward service by kind of process. Unlike rates they are comparable between runs on a machine that
others use too, though caches and hyper-threads that are shared make them larger."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(service: int) -> Counter[str]:
    """CPU seconds since their start of the service with this process id: its `front`, `graders` and `judges`, the
    `programs` that these run, and this process, the `client`. Processes that have ended count with the kind of the one
    that waited for them."""
    spent = Counter(client=time.process_time())
    todo = [(service, "front")]
    while todo:
        pid, kind = todo.pop()
        with contextlib.suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own, waited_for = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
            spent[kind] += (own + (0 if kind == "front" else waited_for)) / _TICKS_PER_S
            todo += [(child, _kind(child, kind)) for child in _children(pid)]
    return spent


def _kind(pid: int, parents: str) -> str:
    if parents == "front":
        return "judges" if b"sandbox.judge" in Path(f"/proc/{pid}/cmdline").read_bytes() else "graders"
    return "programs" if parents == "judges" else parents


def _children(pid: int) -> list[int]:
    """Those that any thread of the process started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]
