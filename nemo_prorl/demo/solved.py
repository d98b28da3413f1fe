"""What training changed: counts of right samples of every held-out problem before and after it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nemo_prorl.algorithm.pass_at_k import bootstrap_interval, pass_at_k
from nemo_prorl.run_folder.metrics_file import read_metrics

T = TypeVar("T")

Counts = Mapping[str, tuple[int, int]]
"""Problem's uid -> (samples, right ones)."""


def count(samples: Path) -> dict[str, tuple[int, int]]:
    """Returns the counts of a file of samples. Only a full score counts as right."""
    found = defaultdict[str, list[int]](lambda: [0, 0])
    for record in read_metrics(samples):
        found[record["uid"]][0] += 1
        found[record["uid"]][1] += record["score"] == 1.0
    return {uid: (n, c) for uid, (n, c) in found.items()}


def compare(before: Counts, after: Counts, k: int) -> dict[str, Any]:
    """Returns pass@1 and pass@k before and after and their change, each with its 95 % bootstrap interval over problems,
    and the numbers of problems that no sample solved before and of those that some sample solves after.

    Raises ValueError if the two measurements are not of the same problems."""
    if before.keys() != after.keys():
        raise ValueError(
            f"{len(before.keys() ^ after.keys())} problems were measured only before or only after"
        )
    found: dict[str, Any] = {"problems": len(before)}
    for name, at in (("pass_at_1", 1), ("pass_at_k", k)):
        values = {
            "before": [pass_at_k(*of_problem, at) for of_problem in before.values()],
            "after": [pass_at_k(*after[uid], at) for uid in before],
        }
        values["change"] = [a - b for b, a in zip(values["before"], values["after"], strict=True)]
        for when, of_problems in values.items():
            low, high = bootstrap_interval(of_problems, num_resamples=1000, seed=0)
            found[f"{name}_{when}"] = round(statistics.fmean(of_problems), 4)
            found[f"{name}_{when}_interval"] = [round(low, 4), round(high, 4)]
    unsolved = [uid for uid, (_, right) in before.items() if right == 0]
    found["unsolved_before"] = len(unsolved)
    found["newly_solved"] = sum(after[uid][1] > 0 for uid in unsolved)
    found["no_longer_solved"] = sum(right > 0 and after[uid][1] == 0 for uid, (_, right) in before.items())
    return found


def compare_parts(
    before: Counts, after: Counts, k: int, part_of: Callable[[str], T], parts: Iterable[T]
) -> dict[T, dict[str, Any]]:
    """Returns `compare` of each of the parts that has problems. part_of: returns the part of a problem's uid."""
    found = {}
    for part in parts:
        if chosen := [uid for uid in before if part_of(uid) == part]:
            found[part] = compare({u: before[u] for u in chosen}, {u: after[u] for u in chosen}, k)
    return found


def table(changes: Mapping[str, Mapping[str, Any]], k: int) -> list[str]:
    """Returns the change of each group of problems, with intervals, as lines of at most 80 columns. changes: title of a
    group -> `compare`."""
    lines = [f"{'':<23}{'pass@1':^14}{f'pass@{k} [95 % interval]':^34}{'newly':>9}",
             f"{'':<23}{'before  after':^14}{'before':^17}{'after':^17}{'solved':>9}"]  # fmt: skip
    for title, change in changes.items():
        low_high = [
            "{:.2f} [{:.2f} {:.2f}]".format(
                change[f"pass_at_k_{when}"], *change[f"pass_at_k_{when}_interval"]
            )
            for when in ("before", "after")
        ]
        at_1 = f"{change['pass_at_1_before']:.2f}   {change['pass_at_1_after']:.2f}"
        newly = f"{change['newly_solved']} of {change['unsolved_before']}"
        lines.append(f"{title:<23}{at_1:^14}{''.join(f'{text:^17}' for text in low_high)}{newly:>9}")
    return lines
