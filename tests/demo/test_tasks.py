"""Tests of the demo's problems and demonstrations, which are solved again from their questions."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest
import reasoning_gym

from nemo_prorl.demo import build, tasks
from nemo_prorl.demo.tasks import Problem

NUM_DRAWN = 200


@cache
def drawn(source: str, split: str = "train") -> tuple[Problem, ...]:
    return tuple(tasks.problems(source, count=NUM_DRAWN, seed=1, split=split))


def total(expression: str) -> int:
    """Evaluates whole numbers with + and - between them; raises ValueError on anything else."""
    compact = expression.replace(" ", "")
    if not re.fullmatch(r"-?\d+([+-]\d+)*", compact):
        raise ValueError(expression)
    return sum(int(term) for term in re.findall(r"[+-]?\d+", compact))


def question_total(problem: Problem) -> int:
    """Returns the answer, computed from the question alone."""
    question = problem.row.messages[0]["content"]
    expression = re.search(r"-?\d+(\s*[+-]\s*\d+)+", question)
    assert expression is not None, question
    return total(expression.group())


@pytest.mark.parametrize("text", ["1+1=3", "2*3", "1+"])
def test_the_oracle_is_strict(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        total(text)


@pytest.mark.parametrize("source", tasks.SOURCES)
def test_every_answer_is_right(source: str) -> None:
    for problem in drawn(source):
        assert int(problem.answer) == question_total(problem)


@pytest.mark.parametrize("source", tasks.SOURCES)
def test_every_line_of_every_thought_is_right(source: str) -> None:
    for problem in drawn(source):
        for equation in problem.thought.split(","):
            left, right = equation.split("=")
            assert total(left) == int(right), problem.thought


def test_the_thought_of_a_sum_leads_to_its_answer() -> None:
    """The thought adds the ones first, then the tens with the carry: the answer is the tens' result followed by the
    ones' last digit."""
    for problem in drawn("sums"):
        ones, tens = problem.thought.split(",")
        assert tens.split("=")[1] + ones[-1] == problem.answer
        carried = tens.split("=")[0].count("+") == 2
        assert carried == (int(ones.split("=")[1]) > 9)


def test_the_thought_of_a_puzzle_leads_to_its_answer() -> None:
    for problem in drawn("basic_arithmetic"):
        steps = problem.thought.split(",")
        assert steps[-1].split("=")[1] == problem.answer
        for before, after in pairwise(steps):
            assert re.match(r"-?\d+", after).group() == before.split("=")[1]  # type: ignore[union-attr]


def test_the_grader_of_the_puzzles_agrees() -> None:
    for problem in drawn("basic_arithmetic"):
        score = reasoning_gym.get_score_answer_fn(problem.row.task["task"])
        assert score(problem.answer, problem.row.task["entry"]) == 1.0
        assert score(str(int(problem.answer) + 1), problem.row.task["entry"]) < 1.0


@pytest.mark.parametrize("source", tasks.SOURCES)
def test_held_out_problems_are_not_trained_on(source: str) -> None:
    """Uses the demo's own sizes and seed."""
    held_out = tasks.problems(source, count=build.NUM_HELD_OUT, seed=build.SEED, split="held_out")
    train = tasks.problems(
        source, count=build.NUM_TRAIN, seed=build.SEED, split="train", exclude=tasks.questions(held_out)
    )
    assert (len(held_out), len(train)) == (build.NUM_HELD_OUT, build.NUM_TRAIN)
    asked = [problem.row.messages[0]["content"] for problem in [*held_out, *train]]
    assert len(set(asked)) == len(asked), "no question twice, within or across"
    assert len({problem.row.uid for problem in [*held_out, *train]}) == len(asked)
    assert {problem.row.split for problem in held_out} == {"held_out"}
    assert {problem.row.split for problem in train} == {"train"}


@pytest.mark.parametrize("source", tasks.SOURCES)
def test_the_seed_decides(source: str) -> None:
    again = tasks.problems(source, count=20, seed=1, split="train")
    assert again == list(drawn(source)[:20])
    assert again != tasks.problems(source, count=20, seed=2, split="train")


@pytest.mark.parametrize("source", tasks.SOURCES)
def test_a_careful_demonstration_is_right_and_the_others_are_what_they_say(source: str) -> None:
    stream = random.Random(1)
    mark = r"\\boxed\{(.*)\}" if source == "sums" else r"<answer>(.*)</answer>"
    for problem in drawn(source):
        written = {style: tasks.demonstration(problem, style, stream) for style in tasks.STYLES}
        marked = {style: re.findall(mark, text.split("</think>")[-1]) for style, text in written.items()}
        thought = f"<think>{problem.thought}</think>"
        assert written["careful"].startswith(thought)
        assert marked["careful"] == [problem.answer]
        assert written["slip"].startswith(thought)
        assert written["guess"].startswith("<think></think>")
        for style in ("slip", "guess"):
            (wrong,) = marked[style]
            assert int(wrong) != question_total(problem)
        assert written["unmarked"].startswith(thought)
        assert problem.answer in written["unmarked"]
        assert marked["unmarked"] == []
        assert "</think>" not in written["endless"]
        assert written["endless"].endswith(tasks.ENDLESS * 2)


def test_styles_come_in_their_shares() -> None:
    assert sum(tasks.STYLES.values()) == pytest.approx(1.0)
    stream = random.Random(1)
    counts = Counter(tasks.draw_style(stream) for _ in range(20_000))
    for style, share in tasks.STYLES.items():
        assert counts[style] / 20_000 == pytest.approx(share, abs=0.015)


def test_the_skill_is_there_some_of_the_time() -> None:
    """The demo needs a policy that sometimes succeeds and can still improve."""
    assert 0.1 < tasks.STYLES["careful"] < 0.5
