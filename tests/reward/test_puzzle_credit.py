"""Tests that answers that ignore the question earn nothing in training, unless they happen to be right."""

import copy
import functools
import itertools
import json
import random
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

reasoning_gym = pytest.importorskip("reasoning_gym")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from experiments.puzzles.constants import Guess, gold, made  # noqa: E402
from experiments.puzzles.guesses import near_misses  # noqa: E402
from reward.graders import grade, puzzle  # noqa: E402
from reward.graders.grade import Grade  # noqa: E402
from reward.graders.puzzle import floors, paper_tasks, training_credit  # noqa: E402

DATA = json.loads((ROOT / "reward/data/puzzle_constants.json").read_text(encoding="utf-8"))
RESCALED = sorted(task for task, value in floors().items() if value < 1)
SLOW_TO_MAKE = {"knight_swap": 8, "futoshiki": 12, "zebra_puzzles": 25, "intermediate_integration": 25}
"""Number of entries to make for tasks that are slow to generate."""
MOST_ENTRIES = 120
"""Number of entries for the others."""
QUICK = {
    *RESCALED,
    *("chain_sum", "circuit_logic", "prime_factorization", "fraction_simplification", "n_queens"),
    *("game_of_life", "knights_knaves", "rectangle_count", "time_intervals", "mini_sudoku", "sudoku"),
}
SEED = 90_210
"""Seed of entries that the search for guesses has not seen."""
SEEDS = {"futoshiki": SEED + 609}
"""Other seeds, with which nothing takes long: a futoshiki of 8 or 9 rows can take the library a minute to make."""


@functools.cache
def _maker(task: str) -> tuple[list[dict], Iterator[dict]]:
    """Returns the entries that have been made so far, and the rest."""
    return [], made(task, SEEDS.get(task, SEED), SLOW_TO_MAKE.get(task, MOST_ENTRIES))


def entries_of(task: str, count: int = MOST_ENTRIES) -> list[dict]:
    """Returns the first `count` entries, or all if there are fewer. All tests share them, because making them takes
    most of the time."""
    known, rest = _maker(task)
    known += itertools.islice(rest, max(0, count - len(known)))
    return copy.deepcopy(known[:count])


def graded(task: str, entry: dict, answer: str, **options: object) -> Grade:
    return grade("logic", f"<answer>{answer}</answer>", {"task": task, "entry": entry, **options})


@pytest.mark.parametrize("low", [0.0, 0.05, 0.3, 0.5, 0.95, 1.0])
def test_the_floor_is_worth_0_and_a_right_answer_1(low: float) -> None:
    credits = [training_credit(score / 1000, low) for score in range(1001)]
    assert credits == sorted(credits)
    assert credits[-1] == 1.0
    assert all(0 <= credit < 1 for credit in credits[:-1])
    assert training_credit(low, low) == float(low == 1.0)
    assert training_credit(low / 2, low) == 0.0
    assert training_credit((1 + low) / 2, low) == pytest.approx(0.5 if low < 1 else 1)


def test_all_tasks_of_the_paper_were_measured_with_the_library_that_is_installed() -> None:
    assert set(DATA["tasks"]) == set(paper_tasks())
    assert DATA["library"] == f"reasoning-gym {version('reasoning-gym')}"
    for task, measured in DATA["tasks"].items():
        assert measured["floor"] == 1 or 0 <= measured["floor"] <= 0.5
        for search in ("library", "training"):
            for one in measured[search].values():
                assert 0 <= one["right"] <= one["mean"] <= 1
        left = max(one["mean"] - one["right"] for one in measured["training"].values())
        assert left <= 0.03, f"{task}: what is left is not what guessing hits"


@pytest.mark.medium
@pytest.mark.parametrize(
    "task",
    [pytest.param(task, marks=[] if task in QUICK else [pytest.mark.slow]) for task in sorted(DATA["tasks"])],
)
def test_recorded_guesses_earn_what_they_hit_on_fresh_entries(task: str) -> None:
    entries = entries_of(task)
    recorded = [one for search in ("library", "training") for one in DATA["tasks"][task][search].values()]
    for name, answers in {(one["name"], json.dumps(one["answers"])) for one in recorded}:
        guess = Guess(name, json.loads(answers))
        grades = [graded(task, entry, guess.answer(entry["question"])) for entry in entries]
        rewards = [grade.score for grade in grades]
        right = [float(grade.details.get("library_score") == 1) for grade in grades]
        if floors()[task] == 1:
            assert rewards == right
        assert sum(rewards) - sum(right) <= 0.05 * len(entries), guess.name


@pytest.mark.medium
@pytest.mark.parametrize("task", RESCALED)
def test_a_nearly_right_answer_gets_a_part(task: str) -> None:
    stream = random.Random(1)
    rewards = []
    for entry in entries_of(task, 20):
        for answer in near_misses(gold(entry), stream).values():
            library = graded(task, entry, answer, credit="corrected").score
            reward = graded(task, entry, answer).score
            assert reward == pytest.approx(training_credit(library, floors()[task]))
            assert reward <= library
            rewards.append(reward)
    assert any(0.2 < reward < 1 for reward in rewards)


def test_right_answers_of_a_puzzle_with_many_of_them() -> None:
    """Entries of other such puzzles are in puzzle_cases.jsonl."""
    for entry in entries_of("propositional_logic", 3):
        assert graded("propositional_logic", entry, gold(entry)).score == 1.0


@pytest.mark.parametrize(
    "task", ["chain_sum", "word_sorting", "sudoku", "game_of_life", "time_intervals", "tsumego"]
)
def test_the_switch_gives_the_librarys_numbers(task: str) -> None:
    library = reasoning_gym.get_score_answer_fn(task)
    entries = entries_of(task, 6)
    for entry, other in itertools.pairwise(entries):
        for answer in (gold(entry), gold(other), gold(entry)[:-1], "7"):
            assert graded(task, entry, answer, credit="library").score == library(answer, entry)


def test_a_task_that_was_not_measured_pays_for_right_answers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puzzle, "floors", dict)
    entries = entries_of(RESCALED[0], 20)
    answers = [
        (entry, answer) for entry in entries for answer in near_misses(gold(entry), random.Random(1)).values()
    ]
    assert {graded(RESCALED[0], entry, answer).score for entry, answer in answers} <= {0.0, 1.0}
    assert graded(RESCALED[0], entries[0], gold(entries[0])).score == 1.0


def test_the_grade_says_what_the_library_scored() -> None:
    (entry,) = entries_of("game_of_life", 1)
    zeros = graded("game_of_life", entry, json.dumps([[0] * 10] * 10))
    assert (zeros.score, zeros.verdict) == (0.0, "wrong")
    assert 0.8 < zeros.details["library_score"] < 1
