"""Logic puzzles: a Reasoning Gym 0.1.25 entry, scored by the library's own verifier, corrected.

The answer is in the last <answer> tags after the reasoning. The task's "credit" decides how the library's score, from 0
to 1, becomes the reward:

* "training", the default: for training a policy. Many scorers give partial credit for part of an answer, for a number
  near the right one, or for the right form, which a policy can earn without solving anything: all zeros get 0.955 in
  game_of_life, everybody a knave 0.618 in knights_knaves. So each task has a *floor* in data/puzzle_constants.json:
  scores up to it become 0, the rest of the scale is stretched to 0 to 1, and with a floor of 1 only right answers
  count. experiments/puzzles measured the floors; its README.md lists them with the measurements.
* "corrected": the library's score, partial credit included, corrected by reward.graders.puzzle_corrections. For
  evaluation.
* "library": the library's score without these corrections.

Differences from the library with every credit:

* arc_agi, rearc: the library compares lists with the tuples that JSON turned into lists, so the right grid scores
  0.05. Here the grids of an entry become tuples again.
* Nine scorers evaluate the answer as Python. Four (`LITERAL_TASKS`) expect a list: here the answer must be a Python
  literal. Five (`EXPRESSION_TASKS`) pass it to sympy's `parse_expr`: here it must be harmless arithmetic
  (reward.graders.safe) with names of functions and variables only, since `Integral(f, x)` does not answer an
  integral; the reference answer's own text is accepted. In two of them (`NUMBER_TASKS`) the answer may contain only
  integers, + - * / and brackets, because `1e2` and `x/x` would get numbers for free. Anything else is refused.
* The answer is scored as it stands and in plain spellings (`puzzle_corrections.spellings`), not for "library"; the best
  score counts.
* A scorer that raises on odd text (prime_factorization, boxnet) gives 0, verdict `scorer_error`.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from reward.extract import answer_tag, is_literal
from reward.graders.grade import Grade, InvalidTask, require
from reward.graders.puzzle_corrections import correct_score, spellings
from reward.graders.safe import has_known_names, is_cheap, is_harmless

LITERAL_TASKS = frozenset({"spiral_matrix", "string_insertion", "binary_matrix", "n_queens"})
EXPRESSION_TASKS = frozenset(
    {"countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication"}
)
NUMBER_TASKS = frozenset({"countdown", "puzzle24"})
CREDITS = ("training", "corrected", "library")
# Renamed after reasoning-gym 0.1.13, the paper's version.
_OLD_NAMES = {"palindrome": "palindrome_generation"}
_ARC_GRIDS = frozenset({"arc_agi", "rearc"})
_UNGRADABLE = frozenset({"composite"})  # scores by a configuration that is not part of the entry


def paper_tasks() -> tuple[str, ...]:
    """Returns the 96 tasks of the paper: all of reasoning-gym 0.1.13."""
    return tuple(files("reward").joinpath("data/reasoning_gym_96_tasks.txt").read_text().split())


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    name, entry = task.get("task"), task.get("entry")
    require(isinstance(name, str), 'the task needs "task", the name of a Reasoning Gym task')
    known = _OLD_NAMES.get(str(name), name) in DATASETS and name not in _UNGRADABLE
    require(known, f"there is no Reasoning Gym task {str(name)[:80]!r}")
    if not isinstance(entry, dict):
        raise InvalidTask('the task needs "entry", the Reasoning Gym entry')
    require("answer" in entry, 'the Reasoning Gym entry lacks "answer"')
    require(isinstance(entry.get("metadata", {}), dict), 'the entry\'s "metadata" must be an object')
    require(
        task.get("credit", "training") in CREDITS,
        'the task\'s "credit" must be "training", "corrected" or "library"',
    )


def grade(text: str, task: Mapping[str, Any]) -> Grade:
    """Returns the reward for the last <answer>, computed as the task's "credit" says; 0 without tags."""
    name = _OLD_NAMES.get(task["task"], task["task"])
    answer = answer_tag(text)
    if answer is None:
        return Grade(score=0.0, verdict="no_answer")
    details: dict[str, Any] = {"extracted": answer[:500]}
    credit, entry = task.get("credit", "training"), task["entry"]
    texts = [answer] if credit == "library" else spellings(name, answer)
    texts = [text for text in texts if _is_safe(name, text, entry)]
    if not texts:
        return Grade(score=0.0, verdict="refused_answer", details=details)
    library = scorer(name).score_answer
    if name in _ARC_GRIDS:  # before JSON turned the library's tuples into lists
        grids = {key: entry["metadata"][key] for key in ("input", "output") if key in entry["metadata"]}
        tuples = {key: tuple(map(tuple, grid)) for key, grid in grids.items()}
        entry = {**entry, "metadata": {**entry["metadata"], **tuples}}
    correct = library if credit == "library" else partial(correct_score, name, library)
    score = -1.0
    for text in texts:
        # the library's scorers assume well-formed answers, and `bf` prints
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            score = max(score, float(correct(text, entry)))
        if score == 1.0:
            break
    if not 0.0 <= score <= 1.0:
        return Grade(score=0.0, verdict="scorer_error", details=details)
    if credit == "training":
        details["library_score"] = score
        score = training_credit(score, floors().get(name, 1.0))
    verdict = "correct" if score == 1.0 else "wrong" if score < 0.1 else "partial"
    return Grade(score=score, verdict=verdict, details=details)


def _is_safe(name: str, answer: str, entry: Mapping[str, Any]) -> bool:
    if name in LITERAL_TASKS:
        # The scorers compare the plain text first; they evaluate only text that looks like Python.
        return is_literal(answer) or re.fullmatch(r"[\w\s,-]*", answer) is not None
    if name in NUMBER_TASKS:
        is_plain = re.fullmatch(r"[\d\s+\-*/()]*", answer, re.ASCII) and not re.search(
            r"\*\s*\*|/\s*/", answer
        )
        return bool(is_plain) and is_cheap(answer)
    if name in EXPRESSION_TASKS and answer != entry["answer"]:
        return is_harmless(answer) and has_known_names(answer) and is_cheap(answer)
    return True


@cache
def scorer(name: str) -> Any:
    """Returns a dataset object of the task, with one item and the default configuration; its methods are the
    scorers."""
    return reasoning_gym.create_dataset(name, size=1, seed=0)


def warm_up() -> None:
    """Builds the scorers that are quick to build, so that forked workers share them."""
    for name in paper_tasks():
        scorer(_OLD_NAMES.get(name, name))


def training_credit(score: float, floor: float) -> float:
    """max(0, (score - floor) / (1 - floor)), and 1 for a right answer whatever the floor. Everything is from 0 to 1."""
    if score == 1.0 or floor >= 1.0:
        return float(score == 1.0)
    return max(0.0, (score - floor) / (1.0 - floor))


@cache
def floors() -> Mapping[str, float]:
    """Returns the floor of each task that was measured, by its present name; for others only right answers count."""
    text = files("reward").joinpath("data/puzzle_constants.json").read_text(encoding="utf-8")
    return {task: measured["floor"] for task, measured in json.loads(text)["tasks"].items()}
