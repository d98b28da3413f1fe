"""Turns a run's difficulty files into metrics per step: how many of its prompts were solved how often, and how those
that had been sampled before did then."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nemo_prorl.run_folder.difficulty import difficulty_files, read_difficulty

BANDS = {
    "difficulty/num_never": "no rollout",
    "difficulty/num_seldom": "up to 1/4",
    "difficulty/num_sometimes": "up to 3/4",
    "difficulty/num_mostly": "over 3/4",
    "difficulty/num_always": "every rollout",
}
"""Metric -> the range of pass rates that it counts."""
NOW, BEFORE = "difficulty/revisited_pass_rate", "difficulty/previous_pass_rate"
"""Mean over a step's prompts that were sampled before: at this visit, and at the previous one."""


def difficulty_metrics(run_dir: Path) -> tuple[dict[int, dict[str, float]], list[str]]:
    """Returns (the metrics by step, names of files that cannot be read); both empty for a run without difficulty
    files."""
    if not difficulty_files(run_dir).all():
        return {}, []
    table, damaged = read_difficulty(run_dir)
    if not table.num_rows:
        return {}, damaged
    steps, rates = table["step"].to_numpy(), table["pass_rate"].to_numpy()
    prompts = table["uid"].combine_chunks().dictionary_encode().indices.to_numpy()
    numbers, position = np.unique(steps, return_inverse=True)
    bands = np.select([rates == 0, rates <= 0.25, rates <= 0.75, rates < 1], [0, 1, 2, 3], default=4)
    counts = np.zeros((len(numbers), len(BANDS)))
    np.add.at(counts, (position, bands), 1)
    rows = (dict(zip(BANDS, map(float, row), strict=True)) for row in counts)
    found = dict(zip(map(int, numbers), rows, strict=True))
    order = np.argsort(prompts, kind="stable")  # the table is ordered by step
    again = np.flatnonzero(prompts[order][1:] == prompts[order][:-1]) + 1
    now, before = order[again], order[again - 1]
    num_again = np.bincount(position[now], minlength=len(numbers))
    for metric, visits in ((NOW, now), (BEFORE, before)):
        sums = np.bincount(position[now], weights=rates[visits], minlength=len(numbers))
        for index in np.flatnonzero(num_again):
            found[int(numbers[index])][metric] = float(sums[index] / num_again[index])
    return found, damaged
