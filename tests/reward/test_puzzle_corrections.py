"""Tests answers that the library's scorers take for right or wrong, and the corrections do not (puzzle_cases.jsonl)."""

import json
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym")

from reward.graders import grade
from reward.graders.puzzle_corrections import FORMS, ONLY_SAME, OUTLINES, SCORES

LINES = (Path(__file__).parent / "data" / "puzzle_cases.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [json.loads(line) for line in LINES]
"""Entries, cut to what their scorers read, with right and wrong answers; "partial": answer -> score."""
IDS = [f"{case['task']}-{number}" for number, case in enumerate(CASES)]


def score(case: dict, answer: str, credit: str) -> float:
    task = {"task": case["task"], "entry": case["entry"], "credit": credit}
    return grade("logic", f"<answer>{answer}</answer>", task).score


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_right_answers_earn_1_and_wrong_ones_nothing(case: dict) -> None:
    for answer in case["right"]:
        assert score(case, answer, "training") == score(case, answer, "corrected") == 1, answer
    for answer in case["wrong"]:
        assert score(case, answer, "training") == 0, answer
        assert score(case, answer, "corrected") < 1, answer
    for answer, share in case.get("partial", {}).items():
        assert score(case, answer, "corrected") == pytest.approx(share), answer


def test_every_correction_corrects_the_library() -> None:
    corrected = {
        case["task"]
        for case in CASES
        for answer in [*case["right"], *case["wrong"], *case.get("partial", {})]
        if (score(case, answer, "library") == 1) is (answer in case["wrong"])
        or score(case, answer, "library") != pytest.approx(score(case, answer, "corrected"))
    }
    assert corrected >= {*FORMS, *OUTLINES, *ONLY_SAME, *SCORES}


def test_blanks_at_the_ends_of_lines_do_not_matter() -> None:
    rows = ["1 2 3 4", "3 4 1 2", "2 1 4 3", "4 3 2 1"]
    metadata = {"solution": [[int(cell) for cell in row.split()] for row in rows]}
    case = {"task": "mini_sudoku", "entry": {"answer": "\n".join(rows), "metadata": metadata}}
    assert score(case, "  \n".join(rows), "training") == 1
    assert score(case, "  \n".join(rows), "library") < 1


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("gsm_symbolic", "1e999999999"),
        ("decimal_arithmetic", "1e-999999999"),
        ("gsm_symbolic", "1" * 100_000),
        ("rubiks_cube", "a" * 100_000 + "!"),
        ("rush_hour", "A+4" * 30_000 + "!"),
        ("polynomial_equations", "1 , " * 30_000 + "x"),
        ("chain_sum", "1,111" * 30_000),
        ("quantum_lock", "A → " * 30_000 + "x"),
        *(("simple_integration", sign * 30_000 + "x") for sign in ("*", "1", "12.", "$", ". ")),
        *(("dice", sign * 30_000 + "x") for sign in (" ", "\\frac{", "\\text{", "```\n", "a = ")),
        *(("rubiks_cube", sign * 30_000 + "!") for sign in (", ", "F", "\n")),
        *(("tower_of_hanoi", sign * 30_000 + "x") for sign in ("\n", "1. ", "- ", ".")),
    ],
)
def test_long_answers_take_no_long_time(task: str, answer: str) -> None:
    entry = {"answer": "1", "question": "", "metadata": {"solution": 1}}
    assert grade("logic", f"<answer>{answer}</answer>", {"task": task, "entry": entry}).score == 0
