"""The charts of the report, which panels.yaml lists: their metrics, their units, and how to read them.

To add a chart, add it to a section there; the page, the pictures, comparisons and alternative texts follow. A chart is
left out if a run has no numbers for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from nemo_prorl.run_folder.difficulty import BANDS
from nemo_prorl.run_folder.run import OTHER, OUTSIDE_STEP, PHASES


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart."""

    name: str
    title: str
    unit: str
    series: Mapping[str, str]
    """Metric -> label, the most important first. {} in a metric stands for every name found there, {} in the label for
    that name: {"reward/{}/mean": "{}"} is one line per domain."""
    reading: str
    """What the chart shows, what is good and what is bad: a sentence or two."""
    log: bool = False
    has_forecast: bool = False
    """Whether a single run's chart goes on with `report.forecast`, as a band; its metric is the panel's first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelSection:
    """A heading with its charts."""

    name: str
    title: str
    intro: str
    panels: tuple[Panel, ...]


MADE_HERE = {"phases": {**PHASES, OTHER: "other", **OUTSIDE_STEP}, "pass_rate_bands": BANDS}
"""Series of the charts for which panels.yaml has none."""


@cache
def sections() -> tuple[PanelSection, ...]:
    """Returns the sections of panels.yaml, in the order of the page."""
    content = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return tuple(
        PanelSection(
            name=name,
            title=section["title"],
            intro=section["intro"],
            panels=tuple(
                Panel(name=key, **{"unit": "", "series": MADE_HERE.get(key), **entry})
                for key, entry in section["panels"].items()
            ),
        )
        for name, section in content.items()
    )


def expand(panel: Panel, metrics: Iterable[str]) -> list[tuple[str, str]]:
    """Returns (metric, label) for every series of the panel among these metrics."""
    known = set(metrics)
    found = []
    for pattern, label in panel.series.items():
        if "{}" in pattern:
            names = names_in(pattern, known)
            found += [(pattern.replace("{}", name), label.replace("{}", name)) for name in names]
        elif pattern in known:
            found.append((pattern, label))
    return found


def names_in(pattern: str, metrics: Iterable[str]) -> list[str]:
    """Returns what {} stands for in the metrics that fit the pattern, numerically or alphabetically sorted."""
    regex = re.compile(re.escape(pattern).replace(r"\{\}", "([^/]+)"))
    names = {match.group(1) for metric in metrics if (match := regex.fullmatch(metric))}
    return sorted(names, key=lambda name: (int(name), "") if name.isdigit() else (0, name))
