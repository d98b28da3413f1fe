"""Logic puzzles: a Reasoning Gym 0.1.25 entry, scored by the library's own verifier, with four corrections.

The answer stands in the last <answer> tags after the reasoning. Scores are the library's, from 0 to 1, including the
0.01 to 0.05 that some tasks give to a well-formed wrong answer. What differs from the library:

* game_of_life_halting: the library compares `bool(answer)`, so any text at all scores 1 ("False" is truthy). Here
  the answer must equal True or False, letter case aside. task {"library_scores": true} switches this off.
* arc_agi, rearc: the library compares lists with the tuples that JSON turned into lists, so the right grid scores
  0.05. Here the grids of an entry become tuples again.
* Nine scorers evaluate the answer as Python. Four (`LITERAL_TASKS`) expect a list: here the answer must be a Python
  literal. Five (`EXPRESSION_TASKS`) hand it to sympy's `parse_expr`: here it must be harmless arithmetic
  (reward.graders.safe_expression). Anything else reaches the scorer as an empty answer.
* A scorer that raises on odd text (prime_factorization, boxnet, game_of_life) gives 0, verdict `scorer_error`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from reward.extract import answer_tag
from reward.graders.grade import Grade, require
from reward.graders.safe_expression import is_cheap, is_harmless

LITERAL_TASKS = frozenset({"spiral_matrix", "string_insertion", "binary_matrix", "n_queens"})
EXPRESSION_TASKS = frozenset(
    {"countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication"}
)
_OLD_NAMES = {
    "palindrome": "palindrome_generation"
}  # renamed after reasoning-gym 0.1.13, the paper's version
_ARC_GRIDS = frozenset({"arc_agi", "rearc"})
_UNGRADABLE = frozenset({"composite"})  # scores by a configuration that is not part of the entry


def paper_tasks() -> tuple[str, ...]:
    """The 96 tasks of the paper: all of reasoning-gym 0.1.13."""
    return tuple(files("reward").joinpath("data/reasoning_gym_96_tasks.txt").read_text().split())


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    name, entry = task.get("task"), task.get("entry")
    require(isinstance(name, str), 'the task needs "task", the name of a Reasoning Gym task')
    known = _OLD_NAMES.get(str(name), name) in DATASETS and name not in _UNGRADABLE
    require(known, f"there is no Reasoning Gym task {str(name)[:80]!r}")
    require(isinstance(entry, dict), 'the task needs "entry", the Reasoning Gym entry')
    assert isinstance(entry, dict)
    require("answer" in entry, 'the Reasoning Gym entry lacks "answer"')
    require(isinstance(entry.get("metadata", {}), dict), 'the entry\'s "metadata" must be an object')
    require(
        isinstance(task.get("library_scores", False), bool),
        'the task\'s "library_scores" must be true or false',
    )


def grade(text: str, task: Mapping[str, Any]) -> Grade:
    """The library's score of the last <answer>; no tags, no score."""
    name = _OLD_NAMES.get(task["task"], task["task"])
    answer = answer_tag(text)
    if answer is None:
        return Grade(score=0.0, verdict="no_answer")
    details = {"extracted": answer[:500]}
    entry = _restored(name, task["entry"])
    if name == "game_of_life_halting" and not task.get("library_scores", False):
        score = float(answer.strip().lower() == str(entry["answer"]).strip().lower())
    else:
        if not _is_safe(name, answer):
            return Grade(score=0.0, verdict="refused_answer", details=details)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # `bf` prints
                score = float(_scorer(name).score_answer(answer, entry))
        except Exception as error:  # the library's scorers assume well-formed answers
            return Grade(
                score=0.0, verdict="scorer_error", details={**details, "error": type(error).__name__}
            )
    if not 0.0 <= score <= 1.0:  # also NaN
        return Grade(score=0.0, verdict="scorer_error", details={**details, "error": f"score {score}"})
    verdict = "correct" if score == 1.0 else "wrong" if score < 0.1 else "partial"
    return Grade(score=score, verdict=verdict, details=details)


def _is_safe(name: str, answer: str) -> bool:
    if name in LITERAL_TASKS:
        # the scorers compare the plain text first; only what looks like Python is evaluated to something useful
        return _is_literal(answer) or re.fullmatch(r"[\w\s,-]*", answer) is not None
    if name in EXPRESSION_TASKS:
        return is_harmless(answer) and is_cheap(answer)
    return True


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _restored(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The entry as the library made it, before JSON turned its tuples into lists."""
    if name not in _ARC_GRIDS:
        return entry
    metadata = dict(entry["metadata"])
    metadata |= {key: _tuples(metadata[key]) for key in ("input", "output") if key in metadata}
    return {**entry, "metadata": metadata}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


@cache
def _scorer(name: str) -> Any:
    """A dataset object of the task: scorers are its methods. One item, default configuration."""
    return reasoning_gym.create_dataset(name, size=1, seed=0)


def warm_up() -> None:
    """Builds the scorers that are cheap to build, so that forked workers share them."""
    for name in paper_tasks():
        _scorer(_OLD_NAMES.get(name, name))
