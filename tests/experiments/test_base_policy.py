"""Tests of how the demo's base policy was taught: workings are right, and it was never shown the whole of what it is
said not to know."""

from __future__ import annotations

import random
from functools import cache

import pytest
import reasoning_gym

from experiments.boundary.base_policy import Problem, part, whole
from nemo_prorl.demo import tasks

LEVELS = [(name, size) for name, task in tasks.TASKS.items() for size in task.measured]


@cache
def drawn(name: str, size: int) -> list[Problem]:
    return [Problem(row) for row in tasks.problems(name, size, count=20, split="train")]


@pytest.mark.medium
@pytest.mark.parametrize(("name", "size"), LEVELS)
def test_the_answer_is_right_and_the_last_state_leads_to_it(name: str, size: int) -> None:
    for problem in drawn(name, size):
        task = problem.row.task
        assert reasoning_gym.get_score_answer_fn(task["task"])(problem.answer, task["entry"]) == 1.0
        last = problem.states[-1].lstrip(">")
        assert last == "".join(character for character in problem.answer if character.isalnum())


@pytest.mark.parametrize(("name", "size"), LEVELS)
def test_no_part_is_a_whole(name: str, size: int) -> None:
    """A beginning has neither the last state nor an answer; an end does not begin with the question."""
    stream = random.Random(1)
    for problem in drawn(name, size):
        for _ in range(20):
            row, response = part(problem, stream)
            asked = row.messages[0]["content"]
            if asked == problem.question:
                assert "<answer>" not in response
                assert problem.states[-1] not in response.removeprefix("<think>").split("</think>")[0].split(
                    ","
                )
            else:
                assert asked in problem.states


def test_wholes_are_right_or_wrong_as_their_style_says() -> None:
    stream = random.Random(1)
    for problem in drawn("sum", 3):
        assert whole(problem, "careful", stream)[1].endswith(f"<answer>{problem.answer}</answer>")
        assert f"<answer>{problem.answer}</answer>" not in whole(problem, "guess", stream)[1]
        assert "<answer>" not in whole(problem, "unmarked", stream)[1]
