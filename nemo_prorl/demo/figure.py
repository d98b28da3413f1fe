"""The training dynamics of a run as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

mpl.use("Agg")

_RESET = "#b0413e"
_PANELS: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (
    (
        "reward of training rollouts",
        (("reward/mean", "all"), ("reward/math/mean", "math"), ("reward/logic/mean", "logic")),
    ),
    ("KL to the reference (nats a token)", (("objective/kl_to_reference", ""),)),
    ("entropy (nats a token)", (("objective/entropy", ""),)),
    (
        "response length (tokens)",
        (("response/tokens_mean", "mean"), ("response/tokens_p99", "99th percentile")),
    ),
    ("informative prompts (share of sampled)", (("dynamic_sampling/informative_share", ""),)),
)


def draw_training(records: Sequence[dict[str, Any]], path: Path, *, title: str) -> None:
    """Draws six panels over steps, with a dashed line where the reference was reset. Writes a PNG."""
    figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), constrained_layout=True)
    _draw_held_out(axes[0][0], records)
    for axis, (name, series) in zip(axes.flat[1:], _PANELS, strict=True):
        for key, label in series:
            points = [(record["step"], record[key]) for record in records if key in record]
            if points:
                axis.plot(*zip(*points, strict=True), label=label, linewidth=1.6)
        axis.set_title(name, fontsize=10)
        if any(label for _, label in series):
            axis.legend(fontsize=8, frameon=False)
    for axis in axes.flat:
        for step in reset_steps(records):
            axis.axvline(step, color=_RESET, linestyle="--", linewidth=1)
        axis.set_xlabel("step", fontsize=9)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    for axis in (axes[0][0], axes[0][1], axes[1][2]):
        axis.set_ylim(0, 1)  # shares and scores: always on the same scale
    figure.suptitle(title + ("   (dashed: hard reset)" if reset_steps(records) else ""), fontsize=12)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def reset_steps(records: Sequence[dict[str, Any]]) -> list[int]:
    """Returns the steps after which the policy became the reference."""
    return [
        before["step"] for before, after in pairwise(records) if after["num_resets"] > before["num_resets"]
    ]


def _draw_held_out(axis: Any, records: Sequence[dict[str, Any]]) -> None:
    validated = [record for record in records if "validation/reward" in record]
    for key, label, style in (
        ("validation/reward", "reward", "-"),
        ("validation/pass_at_1", "pass@1", ":"),
        ("validation/pass_at_16", "pass@16", "-"),
    ):
        points = [(record["step"], record[key]) for record in validated if key in record]
        if points:
            axis.plot(*zip(*points, strict=True), style, marker="o", markersize=4, label=label, linewidth=1.6)
    axis.set_title("held-out prompts", fontsize=10)
    if validated:
        axis.legend(fontsize=8, frameon=False)
