"""Counters and latencies in the Prometheus text format, version 0.0.4. Standard library only."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)


class Counter:
    """A monotonic counter with labels."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.values: dict[tuple[str, ...], int] = defaultdict(int)

    def add(self, *labels: str) -> None:
        self.values[tuple(map(str, labels))] += 1

    def render(self) -> list[str]:
        lines = [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} counter"]
        for key, count in sorted(self.values.items()):
            labels = ",".join(f'{name}="{value}"' for name, value in zip(self.labels, key, strict=True))
            lines.append(f"{self.name}{{{labels}}} {count}")
        return lines


class Histogram:
    """A histogram of seconds with one label."""

    def __init__(self, name: str, text: str, label: str) -> None:
        self.name, self.text, self.label = name, text, label
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = defaultdict(float)

    def observe(self, label: str, seconds: float) -> None:
        counts = self._counts.setdefault(label, [0] * (len(_BUCKETS_S) + 1))
        counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self._sums[label] += seconds

    def render(self) -> list[str]:
        lines = [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} histogram"]
        for label, counts in sorted(self._counts.items()):
            total = 0
            for bound, count in zip((*map(str, _BUCKETS_S), "+Inf"), counts, strict=True):
                total += count
                lines.append(f'{self.name}_bucket{{{self.label}="{label}",le="{bound}"}} {total}')
            lines.append(f'{self.name}_sum{{{self.label}="{label}"}} {self._sums[label]:.6f}')
            lines.append(f'{self.name}_count{{{self.label}="{label}"}} {total}')
        return lines


class Metrics:
    """The metrics that /metrics shows, except the gauges, which the server reads from its pools."""

    def __init__(self) -> None:
        self.verdicts = Counter(
            "reward_verdicts_total", "Responses by outcome.", ("domain", "status", "verdict")
        )
        self.kills = Counter(
            "reward_worker_deaths_total", "Workers that were killed or died.", ("pool", "cause")
        )
        self.seconds = Histogram(
            "reward_request_seconds", "From receipt to result, the queue included.", "domain"
        )

    def render(self, gauges: dict[str, dict[str, float]]) -> str:
        lines = [*self.verdicts.render(), *self.kills.render(), *self.seconds.render()]
        for name, values in gauges.items():
            lines.append(f"# TYPE {name} gauge")
            lines += [f'{name}{{pool="{pool}"}} {value:g}' for pool, value in sorted(values.items())]
        return "\n".join(lines) + "\n"
