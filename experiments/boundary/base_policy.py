"""How the demo's base policy was made (nemo_prorl/demo/base_policy): supervised training of random weights on beginnings
and ends of workings of nearly all sizes, and on whole ones of the smallest.

    python -m experiments.boundary.base_policy OUT [--updates 2000]

The working of a task is a list of states, such as `6+2+10, 8+10, 18` for 1+5+2+10. Every state follows from the one
before by the same step at every size, so a policy that knows the step and can repeat it solves any size.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_prorl.data.rows import Row
from nemo_prorl.demo import build, tasks
from nemo_prorl.demo.tasks import TASKS, Entry
from nemo_prorl.engines import environment

NUM_UPDATES = 2000
BATCH = 64
PART_SHARE = 0.5
"""Share of a batch that demonstrates parts of workings."""
SKILL_SHARE = 0.7
"""Share of the updates whose wholes are all careful; then come STYLES."""
NUM_DEMONSTRATED = 4000
"""Problems of a level."""
STEPS: Mapping[str, Sequence[int]] = {
    "sum": (2, 3, 4, 5, 6, 7, 8), "legs": (1, 2, 3, 4, 5), "sort": (2, 3, 4, 5, 6, 7), "reverse": (3, 4, 5, 6, 7),
    "add": (),
}  # fmt: skip
"""Task -> sizes of which parts of the working are demonstrated, without an answer."""


def sums(terms: Sequence[int]) -> list[str]:
    """Returns 3+3, 6 for 1, 2, 3: each step adds the first two terms and copies the rest."""
    written = list[str]()
    while len(terms) > 1:
        terms = [terms[0] + terms[1], *terms[2:]]
        written.append("+".join(map(str, terms)))
    return written


def moves(items: Sequence[str], arrange: Callable[[list[str]], list[str]]) -> list[str]:
    """Returns un>s, n>us, >nus for s, u, n: each step moves the first item in front of the result, then arranges it."""
    result, written = list[str](), list[str]()
    for number, item in enumerate(items):
        result = arrange([item, *result])
        written.append("".join(items[number + 1 :]) + ">" + "".join(result))
    return written


def _legs(entry: Entry) -> list[str]:
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    counts = entry["metadata"]["animals"]
    legs = [count * ANIMALS[animal] for animal, count in counts.items()]
    products = "+".join(f"{count}*{ANIMALS[animal]}" for animal, count in counts.items())
    return [products, "+".join(map(str, legs)), *sums(legs)]


def _terms(entry: Entry) -> list[str]:
    return sums(list(map(int, entry["metadata"]["expression"].split(" + "))))


def _digits(entry: Entry) -> list[str]:
    return [number.removesuffix(".0") for number in entry["metadata"]["original_numbers"]]


WORKINGS: Mapping[str, Callable[[Entry], list[str]]] = {
    "sum": _terms,
    "legs": _legs,
    "sort": lambda entry: moves(_digits(entry), arrange=sorted),
    "reverse": lambda entry: moves(entry["metadata"]["word"], arrange=lambda letters: letters),
    "add": _terms,
}
"""Task -> the states of the working of an entry."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A row, with what is needed to demonstrate it."""

    row: Row

    @property
    def question(self) -> str:
        return self.row.messages[0]["content"]

    @property
    def states(self) -> list[str]:
        return WORKINGS[tasks.level_of(self.row.source)[0]](self.row.task["entry"])

    @property
    def answer(self) -> str:
        return self.row.task["entry"]["answer"].replace(".0", "").replace(" ", "")


STYLES = {"careful": 0.7, "guess": 0.2, "unmarked": 0.1}
"""Style -> its share of the demonstrations of wholes, once the skill was taught: the base policy solves even the
smallest size only most of the time."""
PART_LENGTHS = {1: 0.4, 2: 0.3, 3: 0.2, 4: 0.1}
"""States in a demonstrated part of a working -> share."""


def whole(problem: Problem, style: str, stream: random.Random) -> tuple[Row, str]:
    """Demonstrates a problem from its question to its answer; only `careful` is right."""
    thought = f"<think>{','.join(problem.states)}</think>"
    match style:
        case "careful":
            return problem.row, f"{thought}<answer>{problem.answer}</answer>"
        case "guess":
            if problem.answer.isdigit():  # a nearby number
                wrong = str(max(0, int(problem.answer) + stream.choice([-10, -2, -1, 1, 2, 10])))
            else:  # the same characters in another order
                characters = list(problem.answer)
                stream.shuffle(characters)
                wrong = "".join(characters)
            return problem.row, f"<think></think><answer>{wrong}</answer>"
        case "unmarked":
            return problem.row, thought + problem.answer
    raise AssertionError(style)


def part(problem: Problem, stream: random.Random) -> tuple[Row, str]:
    """Demonstrates a beginning or an end of a working, never both: some states from the question on, without the last
    state; or some states from a later state on, with the answer if the last is among them."""
    length = stream.choices(list(PART_LENGTHS), weights=list(PART_LENGTHS.values()))[0]
    states, start = problem.states, stream.randrange(len(problem.states))
    if start == 0:
        prompt, shown, ended = problem.question, states[: min(length, len(states) - 1)], False
    else:
        prompt, shown = states[start - 1], states[start : start + length]
        ended = start + length >= len(states)
    response = f"<think>{','.join(shown)}</think>" + (f"<answer>{problem.answer}</answer>" if ended else "")
    return replace(problem.row, messages=({"role": "user", "content": prompt},)), response


def examples(num_updates: int) -> Callable[[int], list[tuple[Row, str]]]:
    """Returns a function that draws the batch of an update."""
    from experiments.boundary.tiny_policy import END

    wholes, parts = list[list[Problem]](), list[list[Problem]]()
    for name, task in TASKS.items():
        for size in task.measured:
            kept = build.questions(build.held_out(name, size))
            rows = tasks.problems(name, size, count=NUM_DEMONSTRATED, split="warm_start", exclude=kept)
            shown = [Problem(row) for row in rows]
            wholes += [shown] if size in task.wholes else []
            parts += [shown] if size in STEPS[name] else []
    stream = random.Random(build.SEED)
    styles, weights = list(STYLES), list(STYLES.values())

    def drawn(update: int) -> list[tuple[Row, str]]:
        num_parts = int(PART_SHARE * BATCH)
        batch = [part(stream.choice(level), stream) for level in stream.choices(parts, k=num_parts)]
        for level in stream.choices(wholes, k=BATCH - num_parts):
            careful = update < SKILL_SHARE * num_updates
            style = "careful" if careful else stream.choices(styles, weights)[0]
            batch.append(whole(stream.choice(level), style, stream))
        return [(row, response + END) for row, response in batch]

    return drawn


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--updates", type=int, default=NUM_UPDATES)
    given = parser.parse_args()
    environment.prepare()
    from experiments.boundary.supervised import train_from_scratch

    train_from_scratch(given.out, examples(given.updates), num_updates=given.updates, seed=build.SEED)
