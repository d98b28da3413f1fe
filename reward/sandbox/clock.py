"""How long a process has computed, waited for a processor, and slept: what makes verdicts independent of load.

Wall time says how busy a machine is. A program is judged by the time that it computes, and by the time that it
sleeps (neither computing nor waiting for a processor), which on an idle machine would be its wall time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float | None:
    """CPU seconds of a process, None if it is gone."""
    fields = _stat(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class SleepMeter:
    """Sums up how long the children of one process have slept. To be sampled often: what a child slept after the
    last sample before its end is not counted.

    A child may have to wait for its parent, which feeds it, reads what it writes and takes note of its end. So the time
    that the parent computes or waits for a processor is not the child's sleep, and neither is that after its end."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._slept_s: dict[tuple[int, str], float] = {}
        self._parent_busy_s: dict[tuple[int, str], float] = {}
        """Of the parent, when a child was first seen."""

    def sample(self) -> float | None:
        """Seconds slept by all children so far; None where the kernel does not tell."""
        try:
            children = _children(f"/proc/{self._parent}/task/{self._parent}")
        except _ChildrenUnknown:
            return None
        except FileNotFoundError:
            return self._total()
        parent_busy_s = _busiest_thread_s(self._parent) or 0.0
        for child in children:
            fields = _stat(child)
            busy_s = _busiest_thread_s(child)
            if fields is None or busy_s is None or fields[0] == "Z":
                continue  # it has ended
            key = (child, fields[19])
            busy_s += parent_busy_s - self._parent_busy_s.setdefault(key, parent_busy_s)
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / _TICKS_PER_S
            self._slept_s[key] = max(0.0, age_s - busy_s)
        return self._total()

    def _total(self) -> float:
        return sum(self._slept_s.values())


class StallMeter:
    """For how long a process and all below it have been doing nothing, without a break. To be sampled often.

    Doing nothing is to sleep: neither to compute, nor to wait for a processor or for the disk, nor to be stopped. So a
    busy machine does not make a process stall, unless the process waits for another one that is kept from computing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stalled_s, self._sampled_at_s = 0.0, time.monotonic()
        self._busy_s: dict[int, float] = {}
        """Of each thread, at the last sample."""

    def sample(self) -> float:
        """Seconds of the present stall. Always 0 where the kernel does not tell how long threads have waited, or which
        processes are below this one."""
        now = time.monotonic()
        passed_s, self._sampled_at_s = now - self._sampled_at_s, now
        before, self._busy_s = self._busy_s, {}
        asleep = True
        try:
            for thread, state, busy_s in _threads(self._pid):
                self._busy_s[thread] = busy_s
                asleep &= state == "S" and busy_s - before.get(thread, -1.0) < _BUSY_SHARE * passed_s
        except _ChildrenUnknown:
            asleep = False
        if asleep and self._busy_s and self._busy_s.keys() == before.keys():
            # No more than a gap: who samples late may have been kept from computing as well.
            self._stalled_s += min(passed_s, _MAX_GAP_S)
        else:
            self._stalled_s = 0.0
        return self._stalled_s


_BUSY_SHARE = 0.02
_MAX_GAP_S = 0.5


def _threads(pid: int) -> Iterator[tuple[int, str, float]]:
    """(thread, state, seconds of computing and of waiting for a processor) of a process and all below it, but not of
    those that have ended. Nothing where the kernel does not tell. Raises _ChildrenUnknown."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            folder = f"/proc/{pid}/task/{thread}"
            with open(f"{folder}/stat") as stat, open(f"{folder}/schedstat") as schedstat:
                state = stat.read().rpartition(")")[2].split()[0]
                computed_ns, waited_ns, _slices = map(int, schedstat.read().split())
            if state not in "ZX":
                yield int(thread), state, (computed_ns + waited_ns) / 1e9
            for child in _children(folder):
                yield from _threads(child)
    except (FileNotFoundError, ProcessLookupError):
        pass


class _ChildrenUnknown(Exception):
    """A kernel without CONFIG_PROC_CHILDREN: a process that waits for one below it would look asleep."""


def _children(folder: str) -> list[int]:
    """Of a thread, by its folder in /proc. Raises FileNotFoundError or ProcessLookupError if it is gone, and
    _ChildrenUnknown if it is there and the kernel does not tell."""
    try:
        with open(f"{folder}/children") as stream:
            return [int(word) for word in stream.read().split()]
    except FileNotFoundError:
        if os.path.exists(folder):
            raise _ChildrenUnknown from None
        raise


def _busiest_thread_s(pid: int) -> float | None:
    """Computing plus waiting for a processor, of the thread that did most of it; None if the process is gone."""
    busiest = None
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as stream:
                computed_ns, waited_ns, _slices = map(int, stream.read().split())
            busiest = max(busiest or 0.0, (computed_ns + waited_ns) / 1e9)
    except (FileNotFoundError, ProcessLookupError):
        pass
    return busiest


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the third (state) on."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
