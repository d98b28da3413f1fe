"""Measures the memory of a tree of processes from outside."""

from __future__ import annotations

import threading
from collections.abc import Collection
from types import TracebackType
from typing import Self

import psutil


class PeakMemory:
    """Samples the memory of all descendants of a process in a `with` block and keeps the maximum in `peak_mib`. A page
    that several of them share counts once (PSS)."""

    def __init__(self, root: int, *, leave_out: Collection[int] = (), every_s: float = 2.0) -> None:
        """root: the process id. leave_out: processes that do not count, nor their descendants."""
        self.peak_mib = 0.0
        self._root, self._leave_out, self._every_s = root, frozenset(leave_out), every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak_mib = max(self.peak_mib, held_mib(self._root, self._leave_out))
            if self._done.wait(self._every_s):
                return


def held_mib(root: int, leave_out: Collection[int] = ()) -> float:
    """Returns the memory in MiB of all descendants of process `root`, without `leave_out` and their descendants.
    Processes that end meanwhile do not count."""
    total = 0
    waiting = [psutil.Process(root)]
    while waiting:
        try:
            children = [child for child in waiting.pop().children() if child.pid not in leave_out]
        except psutil.NoSuchProcess:
            continue
        waiting += children
        for child in children:
            try:
                total += child.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
    return total / 2**20
