"""Seconds per phase of a step, and how much of the grading hid behind other work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall-clock seconds by name; nested phases each count their own full time."""

    def __init__(self, on_phase: Callable[[str], None] = lambda phase: None) -> None:
        """`on_phase` is told the name of a phase that begins."""
        self._on_phase = on_phase
        self.restart()

    def restart(self) -> None:
        self.seconds: dict[str, float] = {}
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
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def union_s(intervals: list[tuple[float, float]]) -> float:
    """Seconds covered by at least one of the (start, end) intervals."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        if end > reached:
            covered += end - max(start, reached)
            reached = end
    return covered
