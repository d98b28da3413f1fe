"""Tests of what the demo says about each size, against counts of every subset of the samples."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.demo import levels
from nemo_prorl.demo.tasks import GROUPS, TASKS

K, SAMPLES = 3, 5


def solved_share(total: int, right: int, k: int) -> Fraction:
    """Returns the share of all subsets of k samples that hold a right one."""
    samples = [index < right for index in range(total)]
    subsets = list(combinations(samples, k))
    return Fraction(sum(any(subset) for subset in subsets), len(subsets))


def counts(*rights: int, level: str = "sum/5") -> dict[str, tuple[int, int]]:
    return {f"{level}/held_out/{number}#0": (SAMPLES, right) for number, right in enumerate(rights)}


@pytest.mark.parametrize(
    ("before", "after"), [((0, 1, 5), (2, 0, 5)), ((0, 0, 0), (0, 0, 4)), ((1, 2, 3), (3, 2, 1))]
)
def test_pass_rates_are_those_of_all_subsets(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    found = levels.compare(counts(*before), counts(*after), K)
    for when, rights in (("before", before), ("after", after)):
        for name, k in (("pass_at_1", 1), ("pass_at_k", K)):
            shares = [solved_share(SAMPLES, right, k) for right in rights]
            assert found[f"{name}_{when}"] == pytest.approx(float(sum(shares) / len(shares)), abs=1e-4)
            low, high = found[f"{name}_{when}_interval"]
            assert float(min(shares)) - 1e-4 <= low <= found[f"{name}_{when}"] <= high
            assert high <= float(max(shares)) + 1e-4


def test_newly_solved_are_those_that_no_sample_solved_before_and_one_does_now() -> None:
    found = levels.compare(counts(0, 0, 0, 2, 5), counts(1, 0, 5, 0, 5), K)
    assert (found["problems"], found["unsolved_before"], found["newly_solved"]) == (5, 3, 2)
    assert found["no_longer_solved"] == 1


def test_only_full_scores_count(tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    scored = [("sum/2/held_out/0", 1.0), ("sum/2/held_out/0", 0.5), ("sum/10/held_out/3", 0.0)]
    samples.write_text("".join(json.dumps({"uid": uid, "score": score}) + "\n" for uid, score in scored))
    assert levels.by_level(levels.count(samples)) == {
        ("sum", 2): {"sum/2/held_out/0": (2, 1)},
        ("sum", 10): {"sum/10/held_out/3": (1, 0)},
    }


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


def test_measurements_of_other_problems_are_not_compared() -> None:
    with pytest.raises(ValueError, match="1 problems"):
        levels.summarise(counts(0), counts(0, 1), 2)


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
