"""Tables from the benchmark's results. numbers.md beside this file consists of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from experiments.boundary import figures, measure
from experiments.boundary.arms import ARMS, CONTROL
from experiments.boundary.results import Results, Run, from_json, to_json
from nemo_prorl.demo.levels import by_level
from nemo_prorl.demo.solved import Counts
from nemo_prorl.demo.tasks import GROUPS, Level, group_of, level_of
from nemo_prorl.evaluation.comparison import correlation
from nemo_prorl.run_folder.storage import replace_text

TITLES = {
    **{name: arm.title for name, arm in ARMS.items()},
    CONTROL: "control: fine-tuned on its own correct samples",
}
SMOOTHED = 10
"""Steps at the end of a run over which its metrics are averaged."""


def write(out: Path, results: Results) -> str:
    """Writes numbers.md, results.json and the figures into a folder. Returns the text of numbers.md."""
    kept = to_json(results)
    written = text(from_json(kept))  # of the rounded numbers, so that the file gives the same page again
    replace_text(out / "results.json", kept)
    replace_text(out / "numbers.md", written)
    figures.draw_boundary(results.start, results.runs, results.k, out / "boundary.png")
    for run in results.runs.get("resets", {}).values():
        if len(run.checkpoints) > 1:
            figures.draw_curves(results.start, run.checkpoints, out / "curves.png")
            break
    figures.draw_rates(results.start, results.runs, out / "rates.png")
    if any(run.training for of in results.runs.values() for run in of.values()):
        figures.draw_training(results.runs, out / "training.png")
    return written


def text(results: Results) -> str:
    """Returns all tables as Markdown."""
    k, start = results.k, results.start
    heads = ["base policy", *(TITLES[arm] for arm in results.runs)]
    seeds = "; ".join(f"{arm}: {', '.join(map(str, of)) or 'none'}" for arm, of in results.runs.items())
    tables = {
        f"Groups of levels: pass@1 / pass@{k}": _table(["levels", *heads], group_rows(results)),
        f"Groups of levels, every seed: pass@1 / pass@{k}": _table(
            ["levels", *heads[1:]], group_seed_rows(results)
        ),
        "New solutions": solved_table(results),
        "Levels: pass@1": _table(["level", "base: right of all samples", *heads], level_rows(results, 1)),
        f"Levels: pass@{k}": _table(["level", "base: right of all samples", *heads], level_rows(results, k)),
        "The papers' three kinds": kind_table(results),
        f"The base policy at other temperatures: pass@1 / pass@{k}": temperature_table(results),
        "Distance from the base policy": distance_table(results),
        "Creativity": creativity_table(results),
        "Runs of RL": run_table(results),
    }
    return (
        f"""# Numbers of the boundary benchmark

The benchmark writes this page; [README.md](README.md) explains it. Square brackets are 95 % intervals over problems
(bootstrap; each problem counts with its mean over seeds).

Date: {results.date}. Seeds: {seeds}. Samples of a problem: {_samples(start)} from the base policy, {k} from every run;
{len(start)} problems.

"""
        + "\n\n".join(f"## {title}\n\n{table}" for title, table in tables.items())
        + "\n"
    )


def _samples(counts: Counts) -> int:
    return next(total for total, _ in counts.values())


def _chosen(counts: Counts, group: str) -> Counts:
    return {uid: of for uid, of in counts.items() if group_of(level_of(uid)) == group}


def _value(of: Sequence[Counts], k: int) -> str:
    """Returns the mean of pass@k over runs and problems, and its interval."""
    low, high = measure.interval(of, k)
    return f"{fmean(measure.at(counts, k) for counts in of):.3f} [{low:.2f}, {high:.2f}]"


def group_rows(results: Results) -> list[list[str]]:
    """Returns a row a group of levels: the base, then the end of every arm."""
    rows = []
    for group in GROUPS:
        columns = [[results.start], *([run.end for run in of.values()] for of in results.runs.values())]
        chosen = [[_chosen(counts, group) for counts in of] for of in columns]
        rows.append([group, *(" / ".join(_value(of, at) for at in (1, results.k)) for of in chosen)])
    return rows


def group_seed_rows(results: Results) -> list[list[str]]:
    """Returns a row a group of levels: the values of every arm's seeds in order."""
    rows = []
    for group in GROUPS:
        cells = []
        for of in results.runs.values():
            ends = [_chosen(run.end, group) for run in of.values()]
            cells.append(
                " / ".join(", ".join(f"{measure.at(end, at):.3f}" for end in ends) for at in (1, results.k))
            )
        rows.append([group, *cells])
    return rows


def level_rows(results: Results, k: int) -> list[list[str]]:
    """Returns a row a level: the base's right samples, then pass@k of the base and of the end of every arm."""
    rows = []
    for level, problems in by_level(results.start).items():
        total, right = (sum(column) for column in zip(*problems.values(), strict=True))
        cells = [_value([problems], k)]
        for of in results.runs.values():
            cells.append(_value([by_level(run.end)[level] for run in of.values()], k))
        rows.append([_name(level), f"{right:,} of {total:,}", *cells])
    return rows


def solved_table(results: Results) -> str:
    """A row an arm: problems that no sample of the base solves, and what became of them."""
    start = results.start
    never = [uid for uid, (_, right) in start.items() if right == 0]
    rows = []
    for name, of in results.runs.items():
        ends = [run.end for run in of.values()]
        once = [sum(end[uid][1] > 0 for uid in never) for end in ends]
        mostly = [sum(2 * end[uid][1] >= end[uid][0] for uid in never) for end in ends]
        lost = [sum(right > 0 and end[uid][1] == 0 for uid, (_, right) in start.items()) for end in ends]
        rows.append([TITLES[name], *(", ".join(map(str, values)) for values in (once, mostly, lost))])
    heads = [
        "a number a seed",
        f"solved at least once, of the {len(never)} that the base never solves",
        "in at least half of the samples",
        f"no longer solved, of the {len(start) - len(never)} others",
    ]
    return _table(heads, rows)


def kind_table(results: Results) -> str:
    """Levels of the papers' three kinds in arms with checkpoints in between, those that were only sharpened, and the
    correlation of the start's pass@k with the gain over levels (ProRL, figure 3)."""
    rows = []
    for name, of in results.runs.items():
        for seed, run in of.items():
            if len(run.checkpoints) < 2:
                continue
            changes = {
                level: measure.change(
                    [problems, *(by_level(counts)[level] for counts in run.checkpoints)], results.k
                )
                for level, problems in by_level(results.start).items()
            }
            of_kind = {
                kind: [_name(level) for level, one in changes.items() if one.name == kind]
                for kind in ("plateau", "sustained")
            }
            kinds = Counter(change.name for change in changes.values())
            sharpened = [_name(level) for level, one in changes.items() if one.sharpened]
            related = correlation(
                [measure.at(problems, results.k) for problems in by_level(results.start).values()],
                [change.at_k for change in changes.values()],
            )
            rows.append(
                [
                    f"{TITLES[name]}, {seed}",
                    str(kinds["diminish"]),
                    ", ".join(sharpened) or "none",
                    *(f"{len(found)}: {', '.join(found) or 'none'}" for found in of_kind.values()),
                    "none" if related is None else f"{related:.2f}",
                ]
            )
    sharpened_head = "of these only sharpened: pass@1 rises, pass@k does not"
    heads = ["arm, seed", "diminish", sharpened_head, "plateau", "sustained", "correlation of start and gain"]
    return _table(heads, rows)


def temperature_table(results: Results) -> str:
    """Pass@1 and pass@k of the base by group of levels."""
    rows = [
        [
            group,
            *(
                " / ".join(_value([_chosen(counts, group)], at) for at in (1, results.k))
                for counts in results.base.values()
            ),
        ]
        for group in GROUPS
    ]
    return _table(["levels", *(f"T = {temperature}" for temperature in results.base)], rows)


def run_table(results: Results) -> str:
    """A row a run of RL: steps, resets, the last KL and entropy, and minutes."""
    rows = []
    for name, of in results.runs.items():
        for seed, run in of.items():
            if run.training is not None:
                values = run.training.curves.values()
                rows.append(
                    [
                        f"{TITLES[name]}, {seed}",
                        str(max(map(len, values))),
                        f"{run.training.rollouts:,}",
                        ", ".join(map(str, run.training.resets)) or "none",
                        *(f"{fmean(one[-SMOOTHED:]):.3f}" for one in values),
                        f"{run.training.minutes:.0f}",
                    ]
                )
    titles = [f"{title}, last {SMOOTHED} steps" for title in figures.METRICS.values()]
    return _table(["arm, seed", "steps", "rollouts", "reset after steps", *titles, "minutes of steps"], rows)


def distance_table(results: Results) -> str:
    """KL divergence from the base policy / entropy of every arm's end by task, the mean over seeds."""

    def mean(runs: Iterable[Run], task: str, metric: str) -> str:
        return f"{fmean(run.distances[task][metric] for run in runs):.3f}"

    rows = [
        [
            TITLES[name],
            *(
                " / ".join(mean(of.values(), task, metric) for metric in ("kl_to_base", "entropy"))
                for task in figures.SHOWN
            ),
        ]
        for name, of in results.runs.items()
    ]
    return _table(["KL to the base / entropy, nats a token", *figures.SHOWN], rows)


def creativity_table(results: Results) -> str:
    """Creativity index (`Run.creativity`) of every run's end."""
    rows = [
        [
            TITLES[name],
            ", ".join(
                "not measured" if run.creativity is None else f"{run.creativity:.2f}" for run in of.values()
            ),
        ]
        for name, of in results.runs.items()
    ]
    return _table(["", "index, a number a seed"], rows)


def _name(level: Level) -> str:
    return "{} {}".format(*level)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])
