"""Measures how long a process has computed, waited for a processor, and slept, so that grading does not depend on load.

Wall time depends on how busy a machine is. Programs are limited by the time that they compute and the time that they
sleep (neither compute nor wait for a processor), whose sum is the wall time on an idle machine.
"""

from __future__ import annotations

import os
import time

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
        folder = f"/proc/{self._parent}/task/{self._parent}"
        try:
            with open(f"{folder}/children") as stream:
                children = [int(word) for word in stream.read().split()]
        except FileNotFoundError:  # the parent is gone, or the kernel lacks CONFIG_PROC_CHILDREN
            return None if os.path.exists(folder) else self._total()
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
