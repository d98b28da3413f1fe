"""What micro-benchmarks are made of: CPU and wall seconds and peak memory of one piece of work, and their table."""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table."""

    part: str
    work: str
    form: str
    """`ours`, or what it is compared with."""
    cpu_s: float
    wall_s: float
    peak_mib: float
    note: str = ""


def print_table(figures: list[dict[str, Any]]) -> None:
    """One line a figure; ratios are of CPU seconds to those of the first form of the same work."""
    print(f"{'work':<56}{'form':<34}{'CPU s':>9}{'ratio':>7}{'wall s':>9}{'peak MiB':>10}  note")
    for _, lines in itertools.groupby(figures, key=lambda f: (f["part"], f["work"])):
        group = list(lines)
        for line in group:
            ratio = line["cpu_s"] / group[0]["cpu_s"] if group[0]["cpu_s"] else float("nan")
            peak = f"{line['peak_mib']:.0f}" if line["peak_mib"] else ""
            print(
                f"{line['part'] + ': ' + line['work']:<56}{line['form']:<34}{line['cpu_s']:>9.3f}{ratio:>7.2f}"
                f"{line['wall_s']:>9.3f}{peak:>10}  {line['note']}"
            )


def measure(part: str, work: str, form: str, run: Callable[[], Any], repeats: int, note: str = "") -> Figure:
    """The least CPU and wall seconds of so many runs, and the most that the process grew by in one."""
    cpu, wall, peak = [], [], []
    for _ in range(repeats):
        before = reset_peak()
        cpu_start, start = time.process_time(), time.perf_counter()
        result = run()
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - start)
        peak.append((status("VmHWM") - before) / 1024)
        del result
    return Figure(
        part=part, work=work, form=form, cpu_s=min(cpu), wall_s=min(wall), peak_mib=max(peak), note=note
    )


def reset_peak() -> int:
    """KiB in use now, from which the peak is counted."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(key: str) -> int:
    """KiB, of this process."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


def split(small: Figure, large: Figure, small_gib: float, large_gib: float) -> Iterator[Figure]:
    """Two lines of two measurements of the same work on little and on much: what it costs on nothing, and what each GiB
    adds, if time and memory grow in a straight line."""

    def slope(name: str) -> float:
        return float(getattr(large, name) - getattr(small, name)) / (large_gib - small_gib)

    quantities = ("cpu_s", "wall_s", "peak_mib")
    each = {name: slope(name) for name in quantities}
    fixed = {name: max(0.0, getattr(small, name) - each[name] * small_gib) for name in quantities}
    yield dataclasses.replace(large, work=f"{large.work}, fixed", **fixed)
    yield dataclasses.replace(large, work=f"{large.work}, per GiB", **each)
