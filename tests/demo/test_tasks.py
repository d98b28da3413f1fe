"""Tests of the demo's puzzles: they are solved again by the library's graders, and the base policy is never shown the
whole of what it is said not to know."""

from __future__ import annotations

import random
from functools import cache

import pytest
import reasoning_gym

from nemo_prorl.demo import tasks

LEVELS = [(name, size) for name, task in tasks.TASKS.items() for size in task.measured]


@cache
def drawn(name: str, size: int) -> list[tasks.Problem]:
    return tasks.problems(name, size, count=20, split="train")


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
            row, response = tasks.part(problem, stream)
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
        assert tasks.whole(problem, "careful", stream)[1].endswith(f"<answer>{problem.answer}</answer>")
        assert f"<answer>{problem.answer}</answer>" not in tasks.whole(problem, "guess", stream)[1]
        assert "<answer>" not in tasks.whole(problem, "unmarked", stream)[1]


def test_every_level_has_one_group_and_each_group_has_levels() -> None:
    groups = {level: tasks.group_of(level) for level in LEVELS}
    assert set(groups.values()) == {*tasks.GROUPS, ""}
    assert [level for level, group in groups.items() if group == ""] == [
        ("reverse", 3), ("reverse", 4), ("add", 2),
    ]  # fmt: skip
    expected = {("sum", 3): tasks.SHOWN_WHOLE, ("sum", 4): tasks.TRAINED, ("sum", 8): tasks.LARGER,
                ("sort", 6): tasks.TRAINED, ("reverse", 5): tasks.OTHER_TASK}  # fmt: skip
    assert {level: groups[level] for level in expected} == expected
