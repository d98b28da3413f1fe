"""Seconds and memory per phase of a step, and how much of the grading hid behind other work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall-clock seconds by name; nested phases each count their own full time. Notes the largest amount of
    memory that each phase has held, too."""

    def __init__(
        self,
        on_phase: Callable[[str], None] = lambda phase: None,
        peak_gib: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`on_phase` is told the name of a phase that begins. `peak_gib` returns the largest amount of
        device memory that was held since it was last called; 0 if there is nothing to measure."""
        self._on_phase, self._peak_gib = on_phase, peak_gib
        self._running: list[str] = []
        self.restart()

    def restart(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peak_gib: dict[str, float] = {}
        """By the same names as `seconds`."""
        self._start = time.perf_counter()

    def begin(self, phase: str) -> None:
        """Something begins that is not measured here."""
        self._on_phase(phase)

    def elapsed_s(self) -> float:
        """Since the start, without pauses."""
        return time.perf_counter() - self._start

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What is counted elsewhere."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._start += time.perf_counter() - start

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        self.begin(name.removesuffix("_s"))
        self._note_memory()  # what came before this phase began
        self._running.append(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            self._note_memory()
            self._running.pop()

    def metrics(self) -> dict[str, float]:
        """time/PHASE_s and, where there is memory to measure, memory/PHASE_gib."""
        memory = {f"memory/{name.removesuffix('_s')}_gib": peak for name, peak in self.peak_gib.items()}
        return {f"time/{name}": seconds for name, seconds in self.seconds.items()} | memory

    def _note_memory(self) -> None:
        if peak := self._peak_gib():
            for name in self._running:
                self.peak_gib[name] = max(peak, self.peak_gib.get(name, 0.0))


def union_s(intervals: list[tuple[float, float]]) -> float:
    """Seconds covered by at least one of the (start, end) intervals."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        if end > reached:
            covered += end - max(start, reached)
            reached = end
    return covered
