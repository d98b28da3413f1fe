"""Every benchmark of the papers and a few more, as catalogue.yaml lists them.

`python -m nemo_prorl evaluate --list` prints this catalogue; docs/evaluation.md says how to add to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from nemo_prorl.config import ConfigError, did_you_mean
from nemo_prorl.data.building.source import BOX_SUFFIX, Problem, Record
from nemo_prorl.evaluation.benchmark import Benchmark, ScoreMetric
from nemo_prorl.evaluation.schemas import answers, human_eval, instructions, programs, puzzles

CONVERSIONS: Mapping[str, Callable[[Record], Problem]] = {
    "answers": answers.convert,
    "choices": answers.choices,
    "graphs_by_size": puzzles.sized,
    "human_eval": human_eval.convert,
    "instructions": instructions.convert,
    "programs": programs.convert,
    "puzzles": puzzles.row,
    "puzzles_by_category": puzzles.by_category,
}
"""What `convert` names."""
LIMITED_CONVERSIONS: Mapping[str, Callable[..., Callable[[Record], Problem]]] = {
    "origins": programs.only_from,
    "puzzles_of": puzzles.only,
}
"""What `convert` names with arguments, for a file with problems of several benchmarks."""
_CONTENT = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_MODELS: dict[str, str] = _CONTENT["models"]
MODELS = tuple(_MODELS.values())
"""Rows of the paper's tables, in their order."""
BASE, LARGER, PRORL = (_MODELS[name] for name in ("base", "larger", "prorl"))


def _benchmark(name: str, entry: Mapping[str, Any]) -> Benchmark:
    """Returns the benchmark of an entry of catalogue.yaml."""
    convert = entry["convert"]
    fields = dict(entry)
    if isinstance(convert, list):
        fields["convert"] = LIMITED_CONVERSIONS[convert[0]](*convert[1:])
    else:
        fields["convert"] = CONVERSIONS[convert]
    fields["metric"] = ScoreMetric(entry["metric"])
    fields["files"] = tuple(entry.get("files", ()))
    fields["suffix"] = {"": "", "box": BOX_SUFFIX}[entry.get("suffix", "")]
    fields["generate"] = {"": None, "graphs": puzzles.graphs}[entry.get("generate", "")]
    fields["published"] = {_MODELS[model]: number for model, number in entry.get("published", {}).items()}
    return Benchmark(name=name, **fields)


BENCHMARKS = {name: _benchmark(name, entry) for name, entry in _CONTENT["benchmarks"].items()}

ALIASES = {"aime24": "aime2024", "aime25": "aime2025"}
"""Shorter names, for the command line."""

TABLES = tuple(
    (title, tuple(BENCHMARKS[name] for name in table["columns"]))
    for title, table in _CONTENT["tables"].items()
)
"""Title, and the benchmarks whose columns the table has: the paper's tables 1, 2 and 3."""
WITH_AVERAGE = {title for title, table in _CONTENT["tables"].items() if table["has_average"]}
CATEGORIES: dict[str, list[float]] = _CONTENT["categories"]
"""Reasoning Gym by category: the base model, the 7B model, ProRL's (table 5)."""


def get(name: str) -> Benchmark:
    """Returns the benchmark. Raises ConfigError for an unknown name."""
    name = ALIASES.get(name, name)
    if name not in BENCHMARKS:
        hint = did_you_mean(name, BENCHMARKS, f"there are {', '.join(BENCHMARKS)}.")
        raise ConfigError(f"{name} is not a benchmark: {hint}")
    return BENCHMARKS[name]
