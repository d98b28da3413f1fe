"""Counters in the Prometheus text format, version 0.0.4. Standard library only."""

from __future__ import annotations

from collections import defaultdict


class Counter:
    """A sum by labels that only grows."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.values: dict[tuple[str, ...], float] = defaultdict(int)

    def add(self, *labels: str, amount: float = 1) -> None:
        self.values[tuple(map(str, labels))] += amount

    def render(self) -> list[str]:
        lines = [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} counter"]
        for key, value in sorted(self.values.items()):
            labels = ",".join(f'{name}="{label}"' for name, label in zip(self.labels, key, strict=True))
            lines.append(f"{self.name}{{{labels}}} {round(value, 6)}")
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
        self.seconds = Counter(
            "reward_request_seconds_total",
            "Sum over responses of the time from receipt to result, the queue included.",
            ("domain",),
        )

    def render(self, gauges: dict[str, dict[str, float]]) -> str:
        lines = [*self.verdicts.render(), *self.kills.render(), *self.seconds.render()]
        for name, values in gauges.items():
            lines.append(f"# TYPE {name} gauge")
            lines += [f'{name}{{pool="{pool}"}} {value:g}' for pool, value in sorted(values.items())]
        return "\n".join(lines) + "\n"
