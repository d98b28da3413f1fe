"""Tests of counts of right samples before and after training, against counts of every subset of the samples."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import pytest

from nemo_prorl.demo import solved

K, SAMPLES = 3, 5


def solved_share(total: int, right: int, k: int) -> Fraction:
    """Returns the share of all subsets of k samples that hold a right one."""
    samples = [index < right for index in range(total)]
    subsets = list(combinations(samples, k))
    return Fraction(sum(any(subset) for subset in subsets), len(subsets))


def counts(*rights: int) -> dict[str, tuple[int, int]]:
    return {f"problem/{number}": (SAMPLES, right) for number, right in enumerate(rights)}


@pytest.mark.parametrize(
    ("before", "after"), [((0, 1, 5), (2, 0, 5)), ((0, 0, 0), (0, 0, 4)), ((1, 2, 3), (3, 2, 1))]
)
def test_pass_rates_are_those_of_all_subsets(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    found = solved.compare(counts(*before), counts(*after), K)
    for when, rights in (("before", before), ("after", after)):
        for name, k in (("pass_at_1", 1), ("pass_at_k", K)):
            shares = [solved_share(SAMPLES, right, k) for right in rights]
            assert found[f"{name}_{when}"] == pytest.approx(float(sum(shares) / len(shares)), abs=1e-4)
            low, high = found[f"{name}_{when}_interval"]
            assert float(min(shares)) - 1e-4 <= low <= found[f"{name}_{when}"] <= high
            assert high <= float(max(shares)) + 1e-4


def test_newly_solved_are_those_that_no_sample_solved_before_and_one_does_now() -> None:
    found = solved.compare(counts(0, 0, 0, 2, 5), counts(1, 0, 5, 0, 5), K)
    assert (found["problems"], found["unsolved_before"], found["newly_solved"]) == (5, 3, 2)
    assert found["no_longer_solved"] == 1


def test_the_change_is_paired_by_problem() -> None:
    found = solved.compare(counts(0, 5, 0, 5), counts(1, 5, 1, 5), K)
    low, high = found["pass_at_1_change_interval"]
    assert found["pass_at_1_change"] == pytest.approx(0.1)
    assert 0 <= low <= 0.1 <= high <= 0.2
    assert solved.compare(counts(2, 4), counts(3, 5), K)["pass_at_1_change_interval"] == [0.2, 0.2]


def test_only_full_scores_count(tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    scored = [("sum/2/held_out/0", 1.0), ("sum/2/held_out/0", 0.5), ("sum/10/held_out/3", 0.0)]
    samples.write_text("".join(json.dumps({"uid": uid, "score": score}) + "\n" for uid, score in scored))
    assert solved.count(samples) == {"sum/2/held_out/0": (2, 1), "sum/10/held_out/3": (1, 0)}


def test_measurements_of_other_problems_are_not_compared() -> None:
    with pytest.raises(ValueError, match="1 problems"):
        solved.compare(counts(0), counts(0, 1), 2)


def test_the_table_has_a_row_for_each_group_and_fits_80_columns() -> None:
    change = solved.compare(counts(0, 1, 5), counts(2, 0, 5), K)
    lines = solved.table({"one rule": change, "all": change}, K)
    assert max(map(len, lines)) <= 80
    assert [line.split("  ")[0] for line in lines[2:]] == ["one rule", "all"]
    assert lines[2].endswith("1 of 1")
