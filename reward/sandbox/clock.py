"""Measures how long a process has computed, waited for a processor, and slept, so that grading does not depend on load.

Wall time depends on how busy a machine is. Programs are limited by the time that they compute and the time that they
sleep (neither compute nor wait for a processor), whose sum is the wall time on an idle machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float | None:
    """CPU seconds of a process; None if it is gone."""
    fields = _stat(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class SleepMeter:
    """Sums up how long the children of one process have slept. Must be sampled often: sleep between a child's last
    sample and its end is not counted.

    A child may have to wait for its parent, which feeds it, reads its output and collects its exit. So time in which
    the parent computes or waits for a processor is not the child's sleep, and neither is time after the child's end."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._slept_s: dict[tuple[int, str], float] = {}
        self._parent_busy_s: dict[tuple[int, str], float] = {}
        """Busy seconds of the parent when a child was first seen."""

    def sample(self) -> float | None:
        """Returns the seconds slept by all children so far; None where the kernel does not report it."""
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
    """Measures for how long a process and all below it have done nothing, without a break. Must be sampled often.

    Doing nothing means sleeping: not computing, not waiting for a processor or the disk, not stopped. So a busy machine
    does not make a process stall, unless the process waits for another one that is kept from computing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stalled_s, self._sampled_at_s = 0.0, time.monotonic()
        self._busy_s: dict[int, float] = {}
        """Busy seconds of each thread at the last sample."""

    def sample(self) -> float:
        """Returns the seconds of the present stall; always 0 where the kernel does not report how long threads have
        waited, or which processes are below this one."""
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
            # At most one gap per sample: a sampler that is late may have been kept from computing as well.
            self._stalled_s += min(passed_s, _MAX_GAP_S)
        else:
            self._stalled_s = 0.0
        return self._stalled_s


_BUSY_SHARE = 0.02
_MAX_GAP_S = 0.5


def _threads(pid: int) -> Iterator[tuple[int, str, float]]:
    """Yields (thread, state, seconds of computing and of waiting for a processor) for a process and all below it,
    except those that have ended. Yields nothing where the kernel does not report it. Raises _ChildrenUnknown."""
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
    """Returns the children of a thread, given its folder in /proc. Raises FileNotFoundError or ProcessLookupError if
    the thread is gone, and _ChildrenUnknown if the kernel does not report them."""
    try:
        with open(f"{folder}/children") as stream:
            return [int(word) for word in stream.read().split()]
    except FileNotFoundError:
        if os.path.exists(folder):
            raise _ChildrenUnknown from None
        raise


def _busiest_thread_s(pid: int) -> float | None:
    """Returns the seconds that the busiest thread computed or waited for a processor; None if the process is gone."""
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
    """Fields of /proc/<pid>/stat from the third (state) on; None if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
