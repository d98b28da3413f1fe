"""What training changed, by task and size: counts of right samples of every held-out problem before and after it."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_prorl.algorithm.pass_at_k import bootstrap_interval, pass_at_k
from nemo_prorl.demo.tasks import GROUPS, TASKS, Level, group_of, level_of

Counts = Mapping[str, tuple[int, int]]
"""Problem's uid -> (samples, right ones)."""


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Reads what `evaluate --samples` wrote, a sample at a time."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def count(samples: Path) -> dict[str, tuple[int, int]]:
    """Returns the counts of a file of samples. Only a full score counts as right."""
    found = defaultdict[str, list[int]](lambda: [0, 0])
    for record in read_samples(samples):
        found[record["uid"]][0] += 1
        found[record["uid"]][1] += record["score"] == 1.0
    return {uid: (n, c) for uid, (n, c) in found.items()}


def by_level(counts: Counts) -> dict[Level, dict[str, tuple[int, int]]]:
    """Returns the counts by level, sorted."""
    found = defaultdict[Level, dict[str, tuple[int, int]]](dict)
    for uid, of_problem in counts.items():
        found[level_of(uid)][uid] = of_problem
    return dict(sorted(found.items()))


def compare(before: Counts, after: Counts, k: int) -> dict[str, Any]:
    """Returns pass@1 and pass@k before and after, each with its 95 % bootstrap interval over problems, and the numbers
    of problems that no sample solved before and of those that some sample solves after."""
    found: dict[str, Any] = {"problems": len(before)}
    for name, at in (("pass_at_1", 1), ("pass_at_k", k)):
        for when, counts in (("before", before), ("after", after)):
            values = [pass_at_k(*of_problem, at) for of_problem in counts.values()]
            low, high = bootstrap_interval(values, num_resamples=1000, seed=0)
            found[f"{name}_{when}"] = round(statistics.fmean(values), 4)
            found[f"{name}_{when}_interval"] = [round(low, 4), round(high, 4)]
    unsolved = [uid for uid, (_, right) in before.items() if right == 0]
    found["unsolved_before"] = len(unsolved)
    found["newly_solved"] = sum(after[uid][1] > 0 for uid in unsolved)
    found["no_longer_solved"] = sum(right > 0 and after[uid][1] == 0 for uid, (_, right) in before.items())
    return found


def summarise(before: Counts, after: Counts, k: int) -> dict[str, Any]:
    """Returns the part of summary.json about solved problems: `compare` of all problems, of each group of levels, and
    of each level.

    Raises ValueError if the two measurements are not of the same problems.
    """
    if before.keys() != after.keys():
        raise ValueError(
            f"{len(before.keys() ^ after.keys())} problems were measured only before or only after"
        )
    afters = by_level(after)
    levels = [
        {"task": level[0], "size": level[1], "group": group_of(level), **compare(counts, afters[level], k)}
        for level, counts in by_level(before).items()
    ]
    groups = {}
    for group in GROUPS:
        chosen = [uid for uid in before if group_of(level_of(uid)) == group]
        if chosen:
            groups[group] = compare({u: before[u] for u in chosen}, {u: after[u] for u in chosen}, k)
    return {
        "k": k,
        "samples_per_problem": min(total for total, _ in before.values()),
        **compare(before, after, k),
        "groups": groups,
        "levels": levels,
    }


def table(summary: Mapping[str, Any]) -> str:
    """Returns the change of each group of levels, with intervals, and pass@1 of each level, in at most 80 columns."""
    k = summary["k"]
    lines = [f"{'':<23}{'pass@1':^14}{f'pass@{k} [95 % interval]':^34}{'newly':>9}",
             f"{'':<23}{'before  after':^14}{'before':^17}{'after':^17}{'solved':>9}"]  # fmt: skip
    for group, change in summary["groups"].items():
        low_high = [
            "{:.2f} [{:.2f} {:.2f}]".format(
                change[f"pass_at_k_{when}"], *change[f"pass_at_k_{when}_interval"]
            )
            for when in ("before", "after")
        ]
        at_1 = f"{change['pass_at_1_before']:.2f}   {change['pass_at_1_after']:.2f}"
        newly = f"{change['newly_solved']} of {change['unsolved_before']}"
        lines.append(
            f"{GROUP_TITLES[group]:<23}{at_1:^14}{''.join(f'{text:^17}' for text in low_high)}{newly:>9}"
        )
    sizes = sorted({level["size"] for level in summary["levels"]})
    lines += ["", f"{'pass@1 in %':<18}{'size':>6}" + "".join(f"{size:>6}" for size in sizes)]
    for task in SHOWN:
        of_task = {level["size"]: level for level in summary["levels"] if level["task"] == task}
        for when in ("before", "after"):
            cells = [
                f"{100 * of_task[size][f'pass_at_1_{when}']:>6.0f}" if size in of_task else " " * 6
                for size in sizes
            ]
            name = f"{task} ({UNITS[task]})" if when == "before" else ""
            lines.append(f"{name:<18}{when:>6}{''.join(cells)}".rstrip())
    return "\n".join(lines)


GROUP_TITLES = dict(zip(GROUPS, ("sizes shown whole", "larger, trained", "larger, not trained", "task not trained"),
                        strict=True))  # fmt: skip
SHOWN = tuple(name for name in TASKS if name != "add")
UNITS = {"sum": "terms", "legs": "animals", "sort": "digits", "reverse": "letters"}


def sentences(summary: Mapping[str, Any]) -> Sequence[str]:
    """Returns what the table shows, and what the reset between the stages is for."""
    trained = summary["groups"].get(GROUPS[1], summary)
    n = summary["samples_per_problem"]
    return (
        f"{summary['newly_solved']} of the {summary['unsolved_before']} held-out problems that none of {n} samples of "
        f"the base policy solved are solved now in at least one of {n}; on the larger sizes that RL trains on, pass@1 "
        f"went from {trained['pass_at_1_before']:.2f} to {trained['pass_at_1_after']:.2f}.",
        "The hard reset between the stages made the trained policy the new reference of the KL penalty and cleared the "
        "optimizer's moments: it lets a run of weeks go on when that penalty or a stalled validation holds it back, "
        "which a run of minutes does not need.",
    )
