"""Tests of what the demo says about each size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nemo_prorl.demo import levels
from nemo_prorl.demo.tasks import GROUPS, TASKS

SAMPLES = 5


def counts(*rights: int, level: str = "sum/5") -> dict[str, tuple[int, int]]:
    return {f"{level}/held_out/{number}#0": (SAMPLES, right) for number, right in enumerate(rights)}


def a_summary(right_before: int = 0, right_after: int = SAMPLES) -> dict[str, Any]:
    """Summarises one problem of every measured level."""
    names = [f"{name}/{size}" for name, task in TASKS.items() for size in task.measured]
    before, after = dict[str, tuple[int, int]](), dict[str, tuple[int, int]]()
    for name in names:
        before |= counts(right_before, level=name)
        after |= counts(right_after, level=name)
    return levels.summarise(before, after, SAMPLES)


def test_a_summary_has_every_level_once_and_the_groups_hold_them() -> None:
    summary = a_summary()
    measured = [(name, size) for name, task in TASKS.items() for size in task.measured]
    assert sorted((level["task"], level["size"]) for level in summary["levels"]) == sorted(measured)
    assert list(summary["groups"]) == list(GROUPS)
    for group, change in summary["groups"].items():
        of_group = [level for level in summary["levels"] if level["group"] == group]
        assert change["newly_solved"] == sum(level["newly_solved"] for level in of_group) == len(of_group)
    assert (summary["problems"], summary["k"], summary["samples_per_problem"]) == (len(measured), 5, 5)
    json.dumps(summary)


@pytest.mark.parametrize("ends", [(0, 5), (5, 5), (0, 0)])
def test_the_table_fits_80_columns_and_has_each_group_and_task(ends: tuple[int, int]) -> None:
    lines = levels.table(a_summary(*ends)).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split("  ")[0] for line in lines[2:6]] == list(levels.GROUP_TITLES.values())
    assert [line.split()[0] for line in lines[8:] if " before" in line] == list(levels.SHOWN)
    for line in lines[8:]:
        assert line.split()[-1] == str(20 * ends["after" in line])


def test_the_sentences_say_the_numbers() -> None:
    solved, reset = levels.sentences(a_summary())
    assert "27 of the 27 held-out problems that none of 5 samples" in solved
    assert "from 0.00 to 1.00" in solved
    assert "reset" in reset
