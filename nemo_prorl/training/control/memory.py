"""The memory of a run's newest process, and whether it grows until it is used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from nemo_prorl.training.control.series import LENGTH
from nemo_prorl.training.timing import HOST_FREE

NUM_STEPS = "host_memory/num_steps"
WARM_UP, WINDOW, NUM_BLOCKS = 30, 200, 8
"""First steps of a process, in which buffers fill, fewest steps that show growth, and blocks to divide them into."""
LEAST_GIB, LEAST_SHARE, LEAST_RATIO = 0.5, 0.02, 0.75
"""Least growth over these steps, in GiB and as a share of the memory, and of their newer half relative to the older."""
LONG_RUN = 10_000
"""Steps for which memory should last."""
LONGER = 1.1
"""Ratio of response lengths, now and WINDOW steps ago, that may explain growth."""


class ProcessMemory:
    """What the steps of the newest process needed; another process begins anew."""

    def __init__(self) -> None:
        self._gib: dict[str, list[float]] = {}
        self._lengths: list[float] = []
        self._free_gib = 0.0

    def observe(self, record: Mapping[str, Any]) -> None:
        """Adds the record of a step."""
        if record.get(NUM_STEPS) == 1:
            self._gib, self._lengths = {}, []
        self._free_gib = record.get(HOST_FREE, 0.0)
        self._lengths.append(record.get(LENGTH, 0.0))
        for key in record:
            if key.endswith("_gib") and key != HOST_FREE:
                self._gib.setdefault(key, []).append(record[key])

    def lasts(self) -> tuple[bool, str] | None:
        """Returns whether what is free lasts for LONG_RUN steps, and a sentence; None if nothing is known. Growth with
        longer responses is taken for theirs while WINDOW steps are left."""
        if not self._free_gib:
            return None
        is_longer = fmean(self._lengths[-20:]) > LONGER * fmean(self._lengths[-WINDOW:][:20])
        for key, gib in self._gib.items():
            growth, is_on_host = steady_growth(gib), key.startswith("host_")
            num_left = self._free_gib / growth if growth and is_on_host else WINDOW
            if growth and num_left < (WINDOW if is_longer else LONG_RUN):
                left = f", and what is free lasts for {num_left:,.0f} more" if is_on_host else ""
                advice = "pause before it is used up, and start again"
                return False, f"{key} grows by {1024 * growth:.3g} MiB a step{left}: {advice}."
        return True, f"{self._free_gib:.3g} GiB are free on the fullest node."


def steady_growth(gib: Sequence[float]) -> float:
    """Returns the growth a step, in GiB, in the newer half of a process's steps, at least WINDOW; 0 unless it goes on
    without slowing down. Judges by the least of each block: validations and checkpoints take memory and give it back,
    while a leak raises what is left."""
    length = max(WINDOW, (len(gib) - WARM_UP) // 2) // NUM_BLOCKS
    if len(gib) < WARM_UP + WINDOW:
        return 0.0
    floors = [min(gib[len(gib) - length * block :][:length]) for block in range(NUM_BLOCKS, 0, -1)]
    older, newer = floors[NUM_BLOCKS // 2 - 1] - floors[0], floors[-1] - floors[NUM_BLOCKS // 2]
    growth = floors[-1] - floors[0]
    is_steady = newer >= LEAST_RATIO * older and all(a < b for a, b in pairwise(floors))
    if not is_steady or growth < max(LEAST_GIB, LEAST_SHARE * floors[0]):
        return 0.0
    return growth / (length * (NUM_BLOCKS - 1))
