"""The meaning of every metric of metrics.jsonl, as metric_docs.yaml says it, for the report and the generated
docs/reference/metrics.md."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

METRICS: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Name of a metric, or pattern of names (a word in capitals stands for any name) -> its meaning, in Markdown."""
METRICS |= {
    name.replace("/", "/DOMAIN/"): f"`{name}` of one domain."
    for name in METRICS
    if name.startswith("validation/") and name != "validation/domain_mean_score"
}


def metric_doc(name: str) -> str:
    """Returns the meaning of a metric, in Markdown; empty if it is not documented (in a run of another version)."""
    if name in METRICS:
        return METRICS[name]
    of_patterns = (
        text for key, text in METRICS.items() if re.fullmatch(re.sub("[A-Z]+", "[^/]+", key), name)
    )
    return next(of_patterns, "")
