"""What benchmarks on small policies share: their training runs, each made once, and how their curves are drawn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.demo import BASE
from nemo_prorl.demo.build import is_built
from nemo_prorl.storage import replace_text
from nemo_prorl.training.telemetry import read_metrics

Records = Sequence[Mapping[str, Any]]
UNCLAMPED = ("algorithm.kl_clamp_log_ratio=0", "algorithm.kl_clamp_value=0")
"""The runs recorded in docs/ were made before the KL estimate could be clamped; with these they can be repeated."""
ROLLOUTS = "num_rollouts"
"""Training rollouts sampled until then, kept or not; computed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart over steps, or over another metric that grows."""

    metric: str
    title: str
    over: str = "step"
    over_title: str = "step"


def build_tiny_policy() -> None:
    """What conf/laptop.yaml starts from, unless it is there."""
    if not is_built(BASE):
        subprocess.run([sys.executable, "-m", "nemo_prorl.demo.build", str(BASE)], check=True)


def train(
    folder: Path,
    url: str,
    overrides: Sequence[str],
    *,
    config_name: str = "laptop",
    num_ranks: int = 1,
    stage: str = "",
) -> Records:
    """One stage of conf/CONFIG_NAME.yaml in processes of its own, unless the folder holds it already; the records of
    all stages in the folder so far. `stage`: its name, where a folder has several.

    Ends with a sentence when the folder holds a run with other options, or the run was paused.
    """
    wanted, recorded = json.dumps(list(overrides)), folder / f"overrides{stage and '-' + stage}.json"
    if recorded.is_file() and recorded.read_text(encoding="utf-8") != wanted:
        sys.exit(f"error: {folder} was trained with other options: write another --out, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(recorded, wanted)
    torchrun = ["torch.distributed.run", "--nproc-per-node", str(num_ranks), "-m"] if num_ranks > 1 else []
    command = [
        sys.executable,
        "-m",
        *torchrun,
        "nemo_prorl",
        "train",
        "--config-name",
        config_name,
        *overrides,
    ]
    command += [f"reward.urls=[{url}]", f"exp_manager.explicit_log_dir={folder}"]
    subprocess.run(
        command, check=True, env={"OMP_NUM_THREADS": "1", **os.environ}
    )  # as our own ranks; torchrun warns
    if not any(folder.glob(f"stages/{stage or '*'}.done")):
        sys.exit(f"error: {folder} was paused before its end: the same command goes on.")
    return with_rollouts(read_metrics(folder / "metrics.jsonl"))


def with_rollouts(records: Records) -> Records:
    """The records, each with what the run had cost until then."""
    total, found = 0.0, []
    for record in records:
        total += sum(
            value for key, value in record.items() if key.startswith("reward/") and key.endswith(ROLLOUTS)
        )
        found.append({**record, ROLLOUTS: total})
    return found


def points(records: Records, metric: str, over: str = "step") -> dict[float, float]:
    """(x, value) where both were recorded."""
    return {record[over]: record[metric] for record in records if over in record and metric in record}


def reset_steps(records: Records) -> list[int]:
    """Steps after which the policy became the reference."""
    return [record["step"] for record in records if record.get("controller", {}).get("action") == "reset"]


def draw(
    path: Path,
    title: str,
    panels: Sequence[Panel],
    arms: Mapping[str, Sequence[Records]],
    colours: Sequence[str],
) -> None:
    """The panels beside each other: a line a run, a colour an arm, and a dot where a run was reset."""
    with charts(path, title, [(panel.title, panel.over_title) for panel in panels]) as axes:
        for axis, panel in zip(axes, panels, strict=True):
            for (arm, runs), colour in zip(arms.items(), colours, strict=False):
                for number, records in enumerate(runs):
                    found = points(records, panel.metric, panel.over)
                    look = {"color": colour, "linewidth": 1.5, "alpha": 1 - 0.25 * number}
                    axis.plot(found.keys(), found.values(), **look, label=arm if number == 0 else None)
                    resets = reset_steps(records)
                    marks = points([r for r in records if r["step"] in resets], panel.metric, panel.over)
                    axis.plot(marks.keys(), marks.values(), "o", color=colour, markersize=6)


@contextmanager
def charts(path: Path, title: str, titles: Sequence[tuple[str, str]]) -> Iterator[Sequence[Any]]:
    """Axes beside each other, one for each (title, title of x), to draw on; the picture is written at the end. They
    begin at 0, but for those that were made logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(titles), figsize=(5.5 * len(titles), 4), constrained_layout=True)
    yield axes
    for axis, (of_axis, of_x) in zip(axes, titles, strict=True):
        axis.set_title(of_axis, fontsize=10)
        axis.set_xlabel(of_x)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_yscale() == "linear":
            axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)
