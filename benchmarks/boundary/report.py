"""What the benchmark found: numbers.json, numbers.md and the figures."""

from __future__ import annotations

import datetime
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.boundary import distance, figures, measure
from benchmarks.boundary.arms import ARMS, CONTROL
from benchmarks.boundary.base import read_samples
from benchmarks.boundary.measure import Counts, Runs
from benchmarks.boundary.tasks import TASKS, Level, level_of
from nemo_prorl.evaluation.comparison import correlation
from nemo_prorl.evaluation.creativity import creativity_indices, mean_index
from nemo_prorl.run_folder.storage import replace_text
from nemo_prorl.run_folder.telemetry import read_metrics

TITLES = {
    "base": "base policy",
    **{name: arm.title for name, arm in ARMS.items()},
    CONTROL: "control: fine-tuned on its own correct samples",
}


def write(out: Path, starts: Mapping[float, Counts], runs: Runs, k: int) -> None:
    """Writes everything into the benchmark's folder. `starts`: temperature -> the base policy's counts."""
    start = starts[measure.TEMPERATURE]
    sections = [
        f"{datetime.date.today()}; k = {k}; seeds: "
        + "; ".join(f"{arm} {', '.join(map(str, of))}" for arm, of in runs.items()),
        "## Levels\n\n" + level_table(start, runs, k),
        "## Groups of levels\n\n" + group_table(start, runs, k),
        "## New solutions\n\n" + solved_table(start, runs),
        "## Kinds\n\n" + kind_table(start, runs, k),
        "## Base policy at other temperatures\n\n" + temperature_table(starts, k),
        "## Creativity\n\n" + creativity_table(out, runs),
        "## Distance from the base policy\n\n" + distance_table(out, runs),
        "## Runs\n\n" + run_table(out, runs),
    ]
    replace_text(out / "numbers.md", "\n\n".join(sections) + "\n")
    replace_text(out / "numbers.json", json.dumps(as_json(starts, runs, k), indent=1) + "\n")
    figures.draw_boundary(start, runs, k, out / "boundary.png")
    if "resets" in runs:
        figures.draw_curves(start, next(iter(runs["resets"].values())), out / "curves.png")
    figures.draw_rates(start, runs, out / "rates.png")
    figures.draw_training(out, runs, out / "training.png")
    print("\n\n".join(sections))
    print(f"\nin {out}: figures (*.png), numbers.md, numbers.json")


def group_of(level: Level) -> str:
    """Returns how a level relates to what the policy has seen."""
    task, size = level
    if not TASKS[task].trained:
        return "seen in the warm start only" if size in TASKS[task].wholes else "task that RL never sees"
    if size in TASKS[task].wholes:
        return "size that the warm start shows whole"
    return "size of RL" if size in TASKS[task].trained else "size that RL never sees"


GROUPS = (
    "size that the warm start shows whole",
    "size of RL",
    "size that RL never sees",
    "task that RL never sees",
)


def _chosen(counts: Counts, group: str) -> Counts:
    return {uid: of for uid, of in counts.items() if group_of(level_of(uid)) == group}


def level_table(start: Counts, runs: Runs, k: int) -> str:
    """A row a level: correct samples of the base, then pass@1 and pass@k of the base and of the end of every arm."""
    heads = ["level", "base: right of all samples", *(f"{TITLES[name]}" for name in ("base", *runs))]
    rows = []
    for level, problems in measure.levels(start).items():
        total, right = (sum(column) for column in zip(*problems.values(), strict=True))
        cells = [f"{measure.at(problems, 1):.3f} / {measure.at(problems, k):.3f}"]
        for of in runs.values():
            ends = [measure.levels(checkpoints[-1])[level] for checkpoints in of.values()]
            cells.append(" / ".join(_spread([measure.at(end, at) for end in ends]) for at in (1, k)))
        rows.append([f"{level[0]} {level[1]}", f"{right:,} of {total:,}", *cells])
    return _markdown(heads, rows)


def group_table(start: Counts, runs: Runs, k: int) -> str:
    """A row a group of levels: pass@1 and pass@k, over problems."""
    rows = []
    for group in GROUPS:
        before = _chosen(start, group)
        cells = [f"{measure.at(before, 1):.3f} / {measure.at(before, k):.3f}"]
        for of in runs.values():
            ends = [_chosen(checkpoints[-1], group) for checkpoints in of.values()]
            cells.append(" / ".join(_spread([measure.at(end, at) for end in ends]) for at in (1, k)))
        rows.append([group, *cells])
    return _markdown(["levels", *(TITLES[name] for name in ("base", *runs))], rows)  # fmt: skip


def solved_table(start: Counts, runs: Runs) -> str:
    """A row an arm: problems that no sample of the base solves, and what became of them."""
    never = [uid for uid, (_, right) in start.items() if right == 0]
    rows = []
    for name, of in runs.items():
        ends = [checkpoints[-1] for checkpoints in of.values()]
        once = [sum(end[uid][1] > 0 for uid in never) for end in ends]
        mostly = [sum(2 * end[uid][1] >= end[uid][0] for uid in never) for end in ends]
        lost = [sum(right > 0 and end[uid][1] == 0 for uid, (_, right) in start.items()) for end in ends]
        rows.append([TITLES[name], *(", ".join(map(str, values)) for values in (once, mostly, lost))])
    heads = [
        "",
        f"solved at least once, of the {len(never)} that the base never solves",
        "in at least half of the samples",
        f"no longer solved, of the {len(start) - len(never)} others",
    ]
    return _markdown(heads, rows) + "\n\nA number a seed."


def kind_table(start: Counts, runs: Runs, k: int) -> str:
    """Levels of the papers' three kinds in arms with checkpoints in between, those that were only sharpened, and the
    correlation of the start's pass@k with the gain over levels (ProRL, figure 3)."""
    rows = []
    for name, of in runs.items():
        for seed, checkpoints in of.items():
            if len(checkpoints) < 2:
                continue
            changes = {
                level: measure.change(
                    [problems, *(measure.levels(counts)[level] for counts in checkpoints)], k
                )
                for level, problems in measure.levels(start).items()
            }
            kinds = Counter(change.name for change in changes.values())
            sharpened = [_name(level) for level, one in changes.items() if one.sharpened]
            related = correlation(
                [measure.at(problems, k) for problems in measure.levels(start).values()],
                [change.at_k for change in changes.values()],
            )
            rows.append(
                [
                    TITLES[name],
                    str(seed),
                    *(str(kinds[kind]) for kind in ("diminish", "plateau", "sustained")),
                    ", ".join(sharpened) or "none",
                    "none" if related is None else f"{related:.2f}",
                ]
            )
    sharpened_head = "only sharpened: pass@1 rises, pass@k does not"
    heads = ["", "seed", "diminish", "plateau", "sustained", sharpened_head, "correlation of start and gain"]
    return _markdown(heads, rows)


def temperature_table(starts: Mapping[float, Counts], k: int) -> str:
    """Pass@1 and pass@k of the base by group of levels."""
    rows = [
        [
            group,
            *(
                " / ".join(f"{measure.at(_chosen(counts, group), at):.3f}" for at in (1, k))
                for counts in starts.values()
            ),
        ]
        for group in GROUPS
    ]
    return _markdown(["levels", *(f"T = {temperature}" for temperature in starts)], rows)


def run_table(out: Path, runs: Runs) -> str:
    """A row a run: steps, resets, the last KL and entropy, and minutes."""
    rows = []
    for name in (arm for arm in runs if arm in ARMS):
        for seed in runs[name]:
            records = [
                one for one in read_metrics(out / f"{name}-{seed}/metrics.jsonl") if "reward/mean" in one
            ]
            means = [
                statistics.fmean(one[metric] for one in records[-10:])
                for metric in ("objective/kl_to_reference", "objective/entropy")
            ]
            minutes = sum(one["time/step_s"] for one in records) / 60
            steps, resets = (str(records[-1][key]) for key in ("step", "num_resets"))
            cells = [*(f"{mean:.3f}" for mean in means), f"{minutes:.0f}"]
            rows.append([TITLES[name], str(seed), steps, resets, *cells])
    heads = ["", "seed", "steps", "resets", "KL, last 10 steps", "entropy, last 10 steps", "minutes of steps"]
    return _markdown(heads, rows)


def distance_table(out: Path, runs: Runs) -> str:
    """KL divergence from the base policy / entropy of every run's end, in nats a token of its own samples, by task."""
    rows = []
    for name, of in runs.items():
        found = [distance.of_run(out, name, seed, len(checkpoints) - 1) for seed, checkpoints in of.items()]
        cells = [
            " / ".join(_spread([one[task][metric] for one in found]) for metric in ("kl_to_base", "entropy"))
            for task in figures.SHOWN
        ]
        rows.append([TITLES[name], *cells])
    return _markdown(["KL to the base / entropy, nats a token", *figures.SHOWN], rows)


def creativity_table(out: Path, runs: Runs) -> str:
    """Mean creativity index of the right samples at the end of every run, against all samples of the base policy: how
    little of them the base ever writes (nemo_prorl.evaluation.creativity); 8 if no run of 5 numbers or words occurs."""
    corpus = out / f"measured/{measure.base_name()}.jsonl"
    rows = []
    for name, of in runs.items():
        found = []
        for seed, checkpoints in of.items():
            samples = out / f"measured/{measure.measured_name(name, seed, len(checkpoints) - 1)}.jsonl"
            texts = [str(one["response"]) for one in read_samples(samples) if one["score"] == 1.0]
            index = mean_index(
                creativity_indices(texts, (str(one["response"]) for one in read_samples(corpus)))
            )
            found.append("none" if index is None else f"{index:.2f}")
        rows.append([TITLES[name], ", ".join(found)])
    return _markdown(["", "index, a number a seed"], rows)


def as_json(starts: Mapping[float, Counts], runs: Runs, k: int) -> dict[str, object]:
    """Returns pass@1 and pass@k with their intervals, level by level."""

    def of_counts(counts: Counts) -> dict[str, object]:
        return {
            _name(level): {
                f"pass_at_{at}": [measure.at(problems, at), *measure.interval(problems, at)] for at in (1, k)
            }
            for level, problems in measure.levels(counts).items()
        }

    return {
        "base": {str(temperature): of_counts(counts) for temperature, counts in starts.items()},
        **{
            name: {
                str(seed): [of_counts(counts) for counts in checkpoints] for seed, checkpoints in of.items()
            }
            for name, of in runs.items()
        },
    }


def _name(level: Level) -> str:
    return "{} {}".format(*level)


def _spread(values: Sequence[float]) -> str:
    """Mean (smallest to largest)."""
    mean = statistics.fmean(values)
    return f"{mean:.3f}" if len(values) == 1 else f"{mean:.3f} ({min(values):.3f} to {max(values):.3f})"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])
