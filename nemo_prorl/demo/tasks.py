"""The demo's problems, and demonstrations of mixed quality for the warm start of a tiny policy.

Two domains with real graders: Reasoning Gym puzzles (logic) and sums with the answer in \\boxed{} (math). The
demonstrations contain the skill but use it only some of the time: some work the answer out, some guess, some slip, some
forget to mark the answer, some never end. Reinforcement learning can sharpen that; a policy that is merely undertrained
has nothing to explore.

The puzzles use the library's partial credit instead of the service's default for training, because the demo and the
findings in docs/ were recorded with it: a wrong answer that contains the right one, such as 17 for 7, gets half.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from nemo_prorl.data.rows import Row

SOURCES = ("sums", "basic_arithmetic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A row, with what is needed to write a demonstration of it."""

    row: Row
    thought: str
    """Correct working, as the demonstrations write it."""
    answer: str


def problems(
    source: str, *, count: int, seed: int, split: str, exclude: frozenset[str] = frozenset()
) -> list[Problem]:
    """Returns `count` different problems of one source, without questions in `exclude`. Raises ValueError if the source
    does not have that many."""
    found: dict[str, Problem] = {}
    for problem in _stream(source, seed, split):
        question = problem.row.messages[0]["content"]
        if question not in exclude:
            found.setdefault(question, problem)
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"{source} has only {len(found)} different problems, not {count}.")


def questions(found: list[Problem]) -> frozenset[str]:
    """Returns the questions, to tell sets of problems apart."""
    return frozenset(problem.row.messages[0]["content"] for problem in found)


def draw_style(random_stream: random.Random) -> str:
    """Draws a style of answering with the frequencies of STYLES."""
    return random_stream.choices(list(STYLES), weights=list(STYLES.values()))[0]


def demonstration(problem: Problem, style: str, random_stream: random.Random) -> str:
    """Returns one response in the given style; only `careful` is fully right."""
    mark = _mark(problem)
    wrong = _slip(problem.answer, random_stream)
    match style:
        case "careful":
            return f"<think>{problem.thought}</think>{mark(problem.answer)}"
        case "guess":
            return f"<think></think>{mark(wrong)}"
        case "slip":
            return f"<think>{problem.thought}</think>{mark(wrong)}"
        case "unmarked":
            return f"<think>{problem.thought}</think>It is {problem.answer}."
        case "endless":
            return f"<think>{problem.thought}" + ENDLESS * 8
        case _:
            raise AssertionError(style)


ENDLESS = ",wait"
"""The text that a demonstration repeats if it never ends."""

STYLES = {"careful": 0.25, "guess": 0.55, "slip": 0.05, "unmarked": 0.1, "endless": 0.05}
"""Fraction of demonstrations in each style."""


def _mark(problem: Problem):  # type: ignore[no-untyped-def]
    if problem.row.domain == "math":
        return lambda answer: f"\\boxed{{{answer}}}"
    return lambda answer: f"<answer>{answer}</answer>"


def _slip(answer: str, random_stream: random.Random) -> str:
    """Returns a wrong answer close to the right one."""
    if answer.lstrip("-").isdigit():
        return str(int(answer) + random_stream.choice([-10, -2, -1, 1, 2, 10]))
    letters = list(answer)
    while "".join(letters) == answer:
        place = random_stream.randrange(len(letters))
        letters[place] = random_stream.choice("abcdefghijklmnopqrstuvwxyz")
    return "".join(letters)


def _stream(source: str, seed: int, split: str) -> Iterator[Problem]:
    return _sums(seed, split) if source == "sums" else _puzzles(source, seed, split)


def _sums(seed: int, split: str) -> Iterator[Problem]:
    """Yields sums of two two-digit numbers, worked out digit by digit with the carry."""
    random_stream = random.Random(f"sums/{split}/{seed}")
    for index in range(100_000):
        a, b = random_stream.randint(10, 99), random_stream.randint(10, 99)
        low = a % 10 + b % 10
        high = f"{a // 10}+{b // 10}" + (f"+{low // 10}" if low > 9 else "")
        yield Problem(
            row=Row(
                uid=f"sums/{split}/{seed}/{index}",
                domain="math",
                source="sums",
                split=split,
                messages=({"role": "user", "content": f"{a}+{b} in \\boxed{{}}?"},),
                task={"answer": str(a + b)},
            ),
            thought=f"{a % 10}+{b % 10}={low},{high}={a // 10 + b // 10 + low // 10}",
            answer=str(a + b),
        )


def _puzzles(source: str, seed: int, split: str) -> Iterator[Problem]:
    """Yields small Reasoning Gym entries, as the library makes them."""
    import reasoning_gym

    options = {
        "basic_arithmetic": {
            "min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1,
            "operators": ("+",), "allow_parentheses": False, "allow_negation": False,
        },
    }[source]  # fmt: skip
    offset = sum(map(ord, split)) * 1000
    for index, entry in enumerate(
        reasoning_gym.create_dataset(source, size=20_000, seed=seed + offset, **options)
    ):
        yield Problem(
            row=Row(
                uid=f"{source}/{split}/{seed}/{index}",
                domain="logic",
                source=f"reasoning_gym/{source}",
                split=split,
                messages=({"role": "user", "content": entry["question"]},),
                task={"task": source, "entry": entry, "credit": "corrected"},
            ),
            thought=_running_total(entry),
            answer=entry["answer"],
        )


def _running_total(entry: dict) -> str:  # type: ignore[type-arg]
    first, *rest = entry["metadata"]["expression"].split()
    total, steps = int(first), []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        new = total + int(term) if sign == "+" else total - int(term)
        steps.append(f"{total}{sign}{term}={new}")
        total = new
    return ",".join(steps)
