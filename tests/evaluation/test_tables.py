"""Tests that results stand in the paper's tables, and that those of a part of a benchmark are marked everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_prorl.evaluation import results
from nemo_prorl.evaluation.tables import ABSENT, MARK, as_markdown, as_text, tables
from tests.evaluation.test_comparison import GAMES, LOGIC, MAZE, result


def test_tables_stand_as_in_the_paper() -> None:
    found = {"aime2024": result("aime2024", [8, 4]), "gpqa_diamond": result("gpqa_diamond", [0, 8])}
    math, other, details = tables(found, "mine")
    assert math.columns == ("Model", "AIME24", "AIME25", "AMC", "Math", "Minerva", "Olympiad", "Avg")
    assert math.rows[0][0] == "DeepSeek-R1-Distill-Qwen-1.5B"
    assert math.rows[0][1:] == ("28.54", "22.71", "62.58", "82.90", "26.38", "43.58", "44.45")
    assert math.rows[-1] == ("mine", "75.00", *[ABSENT] * 6), "no average of a part"
    assert other.rows[-1][:2] == ("mine", "50.00")
    assert any("below the 25 %" in note for note in other.notes), "the benchmark's remark"
    assert details.rows[0][-2:] == ("28.54", "48.13")
    assert len({len(line) for line in list(as_text(math))[1:]}) <= 2
    assert next(line for line in as_markdown(math) if line.startswith("|---")).count("|") == 9


def test_a_part_of_a_benchmark_is_marked_in_every_table() -> None:
    whole, part = result("aime2024", [8, 4], num_expected=2), result("aime2025", [8, 4], num_expected=30)
    math, details = tables({"aime2024": whole, "aime2025": part}, "mine")
    assert math.rows[-1][:3] == ("mine", "75.00", f"75.00{MARK}")
    assert [row[1] for row in details.rows] == ["2", f"2{MARK}"]
    note = f"{MARK} aime2025: 2 problems instead of 30 (two exams of 15)"
    for table in (math, details):
        assert note in table.notes
        assert f"{note}." in list(as_markdown(table))


def test_an_average_over_a_part_is_marked_too() -> None:
    names = ["aime2024", "aime2025", "amc", "math", "minerva", "olympiadbench"]
    found = {name: result(name, [8]) for name in names}
    assert tables(found, "mine")[0].rows[-1][-1] == "100.00"
    found["amc"] = result("amc", [8], num_expected=83)
    assert tables(found, "mine")[0].rows[-1][-1] == f"100.00{MARK}"


@pytest.mark.parametrize(
    ("correct", "num_expected", "games", "logic", "mark"),
    [
        ({GAMES: [8, 0, 8, 8], MAZE: [0], LOGIC: [8]}, 0, "37.50", "100.00", ""),
        ({GAMES: [8, 0], LOGIC: [8]}, 9600, "50.00", "100.00", MARK),
        ({GAMES: [8, 0]}, 0, "50.00", ABSENT, ""),
    ],
    ids=["means over tasks", "some of the puzzles", "one puzzle"],
)
def test_categories_are_means_over_their_tasks(
    correct: dict[str, list[int]], num_expected: int, games: str, logic: str, mark: str
) -> None:
    found = result("reasoning_gym", correct, num_expected=num_expected)
    table = next(one for one in tables({"reasoning_gym": found}, "mine") if "by category" in one.title)
    row = dict(zip(table.columns, table.rows[-1], strict=True))
    assert (row["games"], row["algebra"]) == (games + mark, ABSENT)
    assert row["logic"] == (logic if logic == ABSENT else logic + mark)
    assert row["Avg"].endswith(mark)


def test_every_part_has_its_row_and_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = result("reasoning_gym", {GAMES: [0, 4], LOGIC: [8, 8]})
    results.write(tmp_path / results.RESULTS, {"key": "k"}, [found])
    assert results.read(tmp_path) == ({"key": "k"}, {"reasoning_gym": found})
    table = next(one for one in tables({"reasoning_gym": found}, "mine") if "by part" in one.title)
    assert table.columns[-1] == "pass@4"
    assert table.rows[0] == ("games/sudoku", "2", "25.00", "0.00 to 50.00", "25.00", f"{50 * 69 / 70:.2f}")
