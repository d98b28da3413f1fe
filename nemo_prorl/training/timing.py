"""Wall-clock seconds and peak memory per phase of a step, and the host's memory."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

HOST_FREE = "host_memory/free_gib"


class Stopwatch:
    """Adds up the wall-clock seconds of each phase and records its peak memory. Each of nested phases counts its
    full time."""

    def __init__(
        self,
        on_phase: Callable[[str], None] = lambda phase: None,
        peak_gib: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """on_phase: is called with the name of each phase when it begins. peak_gib: returns the peak of the device
        memory since it was last called, in GiB; 0 if there is nothing to measure."""
        self._on_phase, self._peak_gib = on_phase, peak_gib
        self._running: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Sets everything to zero, for the next step."""
        self.seconds: dict[str, float] = {}
        """Phase, such as "sampling_s" -> seconds."""
        self.peak_gib: dict[str, float] = {}
        """GiB under the same keys."""
        self._start = time.perf_counter()

    def begin(self, phase: str) -> None:
        """Announces a phase that is not measured here."""
        self._on_phase(phase)

    def elapsed_s(self) -> float:
        """Returns seconds since the last restart."""
        return time.perf_counter() - self._start

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Measures the body as a phase, under a name that ends in _s."""
        self.begin(name.removesuffix("_s"))
        self._note_memory()  # resets the peak, which until here belongs to the enclosing phases
        self._running.append(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            self._note_memory()
            self._running.pop()

    def metrics(self) -> dict[str, float]:
        """Returns time/PHASE_s and, if there is memory to measure, memory/PHASE_gib."""
        memory = {f"memory/{name.removesuffix('_s')}_gib": peak for name, peak in self.peak_gib.items()}
        return {f"time/{name}": seconds for name, seconds in self.seconds.items()} | memory

    def _note_memory(self) -> None:
        if peak := self._peak_gib():
            for name in self._running:
                self.peak_gib[name] = max(peak, self.peak_gib.get(name, 0.0))


def host_memory() -> dict[str, float]:
    """Returns the resident memory, in GiB, of this process and of the user's other processes on the node together, and
    what the node has free, by the names of the metrics. What processes share counts for each of them."""
    pages = {}
    for file in Path("/proc").glob("[0-9]*/statm"):
        with suppress(OSError):  # it has ended
            if file.stat().st_uid == os.getuid():
                pages[int(file.parent.name)] = int(file.read_text().split()[1])
    own, page_gib = pages.pop(os.getpid(), 0), resource.getpagesize() / 2**30
    return {
        "host_memory/rank_gib": own * page_gib,
        "host_memory/others_gib": sum(pages.values()) * page_gib,
        HOST_FREE: psutil.virtual_memory().available / 2**30,
    }


def union_s(intervals: list[tuple[float, float]]) -> float:
    """Returns the seconds that at least one of the (start, end) intervals covers."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        if end > reached:
            covered += end - max(start, reached)
            reached = end
    return covered
