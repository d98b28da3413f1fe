"""The tail of sampling as a picture: how long a batch takes, and how much of the engines' time is tail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.planning.tail import Sampling, Scheduling

COLOURS = {
    Scheduling.prompts: "#b0413e",
    Scheduling.rollouts: "#2a6f97",
    Scheduling.queue: "#9a8c98",
    Scheduling.ahead: "#6a994e",
}
LABELS = {
    Scheduling.prompts: "groups dealt",
    Scheduling.rollouts: "rollouts dealt (this trainer)",
    Scheduling.queue: "groups from one queue",
    Scheduling.ahead: "queue, one batch ahead (off-policy)",
}


def draw_tail(results: Sequence[tuple[str, dict[Scheduling, Sampling]]], path: Path) -> None:
    """Two panels over the cases: seconds of sampling relative to dealing groups out, and where engine time goes in the
    way that this trainer takes. Writes a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    width = 0.8 / len(Scheduling)
    for offset, scheduling in enumerate(Scheduling):
        heights = [
            samplings[scheduling].seconds / samplings[Scheduling.prompts].seconds for _, samplings in results
        ]
        places = [case + (offset - 1.5) * width for case in range(len(results))]
        bars = left.bar(places, heights, width * 0.92, color=COLOURS[scheduling], label=LABELS[scheduling])
        left.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    left.set_title("seconds of sampling, relative to dealing groups", fontsize=10)
    left.set_ylim(0, 1.35)
    left.legend(fontsize=8, frameon=False, ncols=2, loc="upper center")
    names = [name for name, _ in results]
    for scheduling, side in ((Scheduling.prompts, -0.2), (Scheduling.rollouts, 0.2)):
        waiting = [samplings[scheduling].waiting_share for _, samplings in results]
        half = [samplings[scheduling].half_empty_share for _, samplings in results]
        places = [case + side for case in range(len(names))]
        right.bar(
            places, half, 0.36, color=COLOURS[scheduling], alpha=0.35, label=f"{LABELS[scheduling]}: tail"
        )
        right.bar(places, waiting, 0.36, color=COLOURS[scheduling], label="of it waiting, with nothing to do")
    right.set_title("share of engine time with less than half of the sequences", fontsize=10)
    right.set_ylim(0, 1)
    right.legend(fontsize=8, frameon=False, loc="upper center", ncols=2)
    for axis in (left, right):
        axis.set_xticks(range(len(names)), names, fontsize=8)
        axis.set_axisbelow(True)
        axis.grid(axis="y", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
