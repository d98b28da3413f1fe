"""Trains the runs of benchmarks on small policies, each only once, and draws their curves."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.cluster import local_ranks
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.storage import replace_text

Records = Sequence[Mapping[str, Any]]
ROLLOUTS = "num_rollouts"
"""Metric computed here: training rollouts sampled so far, whether they were kept or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart of a metric over steps, or over another increasing metric."""

    metric: str
    title: str
    over: str = "step"
    over_title: str = "step"
    is_logarithmic: bool = False


COLOURS = ("#3f6fa3", "#b0413e", "#4f8a57", "#d99a3d", "#7b5ea7", "#8a8a8a")
"""One for each arm of a comparison."""


def build_tiny_policy() -> None:
    """Builds the policy of conf/laptop.yaml, unless it exists."""
    subprocess.run([sys.executable, "-m", "nemo_prorl.demo.build"], check=True)


def train(
    folder: Path,
    url: str,
    overrides: Sequence[str],
    *,
    config_name: str = "laptop",
    num_ranks: int = 1,
    stage: str = "",
) -> Records:
    """Trains one stage of conf/CONFIG_NAME.yaml in processes of its own, unless the folder already has it, and returns
    the records of all stages in the folder. stage: its name, if the folder has several.

    Exits with an error message if the folder holds a run with other options, or the run failed or was paused.
    """
    wanted, recorded = json.dumps(list(overrides)), folder / f"overrides{stage and '-' + stage}.json"
    if recorded.is_file() and recorded.read_text(encoding="utf-8") != wanted:
        sys.exit(f"error: {folder} was trained with other options: write another --out, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(recorded, wanted)
    words = ["train", "--config-name", config_name, *overrides]
    words += [f"reward.urls=[{url}]", f"exp_manager.explicit_log_dir={folder}"]
    if code := local_ranks.run_ranks(["nemo_prorl", *words], num_ranks=num_ranks):
        sys.exit(code)
    if not any(folder.glob(f"stages/{stage or '*'}.done")):
        sys.exit(f"error: {folder} was paused before its end: repeat the same command to continue.")
    return with_rollouts(read_metrics(folder / "metrics.jsonl"))


def with_rollouts(records: Records) -> Records:
    """Returns the records, each with the number of rollouts sampled so far."""
    total, found = 0.0, []
    for record in records:
        total += sum(
            value for key, value in record.items() if key.startswith("reward/") and key.endswith(ROLLOUTS)
        )
        found.append({**record, ROLLOUTS: total})
    return found


def points(records: Records, metric: str, over: str = "step") -> dict[float, float]:
    """Returns x -> value of the records that have both."""
    return {record[over]: record[metric] for record in records if over in record and metric in record}


def reset_steps(records: Records) -> list[int]:
    """Returns the steps after which the controller reset the reference."""
    return [record["step"] for record in records if record.get("controller", {}).get("action") == "reset"]


def draw(path: Path, title: str, panels: Sequence[Panel], runs: Mapping[str, Sequence[Records]]) -> None:
    """Draws the panels, three in a row, with a colour per arm, a line per run, a bold one for their mean where all have
    a value, and a dot at each reset. Linear axes begin at 0."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    num_columns, num_rows = min(3, len(panels)), -(-len(panels) // 3)
    size = (5.5 * num_columns, 4 * num_rows)
    figure, grid = plt.subplots(num_rows, num_columns, figsize=size, squeeze=False, constrained_layout=True)
    for axis, panel in zip(grid.flat, panels, strict=False):
        for (arm, of_arm), colour in zip(runs.items(), COLOURS, strict=False):
            lines = [points(records, panel.metric, panel.over) for records in of_arm]
            common = sorted(set.intersection(*map(set, lines)))
            look = {"linewidth": 0.8, "alpha": 0.45} if len(common) > 1 else {"linewidth": 1.4}
            for records, line in zip(of_arm, lines, strict=True):
                axis.plot(line.keys(), line.values(), color=colour, **look)
                resets = [record for record in records if record["step"] in reset_steps(records)]
                marks = points(resets, panel.metric, panel.over)
                axis.plot(marks.keys(), marks.values(), "o", color=colour, markersize=4)
            means = [statistics.fmean(line[x] for line in lines) for x in common]
            axis.plot(common, means, color=colour, linewidth=2.2, label=arm)
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(panel.over_title)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if panel.is_logarithmic:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
    grid.flat[0].legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)
