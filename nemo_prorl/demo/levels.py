"""What the demo's training changed, by task and size of the puzzle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_prorl.demo import solved
from nemo_prorl.demo.solved import Counts, compare, compare_parts
from nemo_prorl.demo.tasks import GROUPS, TASKS, Level, group_of, level_of


def by_level(counts: Counts) -> dict[Level, dict[str, tuple[int, int]]]:
    """Returns the counts by level, sorted."""
    found = defaultdict[Level, dict[str, tuple[int, int]]](dict)
    for uid, of_problem in counts.items():
        found[level_of(uid)][uid] = of_problem
    return dict(sorted(found.items()))


def summarise(before: Counts, after: Counts, k: int) -> dict[str, Any]:
    """Returns the part of summary.json about solved problems: `compare` of all problems, of each group of levels, and
    of each level.

    Raises ValueError if the two measurements are not of the same problems.
    """
    whole = compare(before, after, k)
    levels = compare_parts(before, after, k, level_of, by_level(before))
    groups = compare_parts(before, after, k, lambda uid: group_of(level_of(uid)), GROUPS)
    return {
        "k": k,
        "samples_per_problem": min(total for total, _ in before.values()),
        **whole,
        "groups": groups,
        "levels": [
            {"task": level[0], "size": level[1], "group": group_of(level), **change}
            for level, change in levels.items()
        ],
    }


def table(summary: Mapping[str, Any]) -> str:
    """Returns the change of each group of levels, with intervals, and pass@1 of each level, in at most 80 columns."""
    lines = solved.table(
        {GROUP_TITLES[group]: change for group, change in summary["groups"].items()}, summary["k"]
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
