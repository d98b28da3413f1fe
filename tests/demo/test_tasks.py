"""Tests of the groups of the demo's puzzles. tests/experiments has those of their workings."""

from __future__ import annotations

from nemo_prorl.demo import tasks

LEVELS = [(name, size) for name, task in tasks.TASKS.items() for size in task.measured]


def test_every_level_has_one_group_and_each_group_has_levels() -> None:
    groups = {level: tasks.group_of(level) for level in LEVELS}
    assert set(groups.values()) == {*tasks.GROUPS, ""}
    assert [level for level, group in groups.items() if group == ""] == [
        ("reverse", 3), ("reverse", 4), ("add", 2),
    ]  # fmt: skip
    expected = {("sum", 3): tasks.SHOWN_WHOLE, ("sum", 4): tasks.TRAINED, ("sum", 8): tasks.LARGER,
                ("sort", 6): tasks.TRAINED, ("reverse", 5): tasks.OTHER_TASK}  # fmt: skip
    assert {level: groups[level] for level in expected} == expected
