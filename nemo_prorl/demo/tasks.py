"""The tasks: Reasoning Gym generators at graded sizes, with demonstrations of single steps and of small wholes.

A *level* is a task at one size, such as the sum of four terms; the rows of prompt files name it in `source`. The
entries are the library's own and the reward service grades them. Only the wording is shorter than the library's,
because the policy reads character by character.

The working of a task is a list of states, such as `6+2+10, 8+10, 18` for 1+5+2+10. Every state follows from the one
before by the same step at every size, so a policy that knows the step and can repeat it solves any size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nemo_prorl.data.rows import Row

Entry = Mapping[str, Any]
Level = tuple[str, int]
"""A task and a size."""


def level_of(name: str) -> Level:
    """Returns the level of a row's uid or source: both begin with TASK/SIZE."""
    task, size, *_ = name.split("/")
    return task, int(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A generator whose entries have a size."""

    generator: str
    options: Callable[[int], Mapping[str, Any]]
    """Returns the generator's options for a size."""
    question: Callable[[Entry], str]
    """Returns the prompt."""
    states: Callable[[Entry], list[str]]
    """Returns the working."""
    wholes: Sequence[int]
    """Sizes of which the warm start demonstrates the whole working with its answer."""
    steps: Sequence[int]
    """Sizes of which it demonstrates parts of the working, without an answer."""
    trained: Sequence[int]
    """Sizes of the prompts of RL; empty for a task that RL never sees."""
    measured: Sequence[int]
    """Sizes that are measured."""
    keep: Callable[[Entry], bool] = lambda entry: True
    """Whether an entry is used."""

    @property
    def sizes(self) -> list[int]:
        return sorted({*self.wholes, *self.steps, *self.trained, *self.measured})


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


def _digits(entry: Entry) -> list[str]:
    return [number.removesuffix(".0") for number in entry["metadata"]["original_numbers"]]


def _additions(max_digits: int) -> Callable[[int], Mapping[str, Any]]:
    fixed = {"operators": ("+",), "allow_parentheses": False, "allow_negation": False}
    return lambda size: {
        "min_terms": size, "max_terms": size, "min_digits": 1, "max_digits": max_digits, **fixed
    }  # fmt: skip


TASKS: Mapping[str, Task] = {
    "sum": Task(
        generator="basic_arithmetic",
        options=_additions(max_digits=1),
        question=lambda entry: entry["metadata"]["expression"].replace(" ", ""),
        states=lambda entry: sums(list(map(int, entry["metadata"]["expression"].split(" + ")))),
        wholes=(2, 3), steps=(2, 3, 4, 5, 6, 7, 8),
        trained=(3, 4, 5, 6, 7), measured=(2, 3, 4, 5, 6, 7, 8, 10),
    ),
    "legs": Task(
        generator="leg_counting",
        options=lambda size: {
            "min_animals": size, "max_animals": size, "min_instances": 1, "max_instances": 3
        },
        question=lambda entry: "legs of " + entry["question"].partition("if you have ")[2].strip("?\n "),
        states=_legs,
        wholes=(1,), steps=(1, 2, 3, 4, 5),
        trained=(1, 2, 3, 4, 5), measured=(1, 2, 3, 4, 5, 6),
        keep=lambda entry: (
            all(len(animal) < 6 for animal in entry["metadata"]["animals"]) and int(entry["answer"]) < 100
        ),
    ),
    "sort": Task(
        generator="number_sorting",
        options=lambda size: {
            "min_numbers": size, "max_numbers": size, "min_value": 0, "max_value": 9,
            "min_decimals": 0, "max_decimals": 0,
        },
        question=lambda entry: f"sort {','.join(_digits(entry))}",
        states=lambda entry: moves(_digits(entry), arrange=sorted),
        wholes=(2, 3), steps=(2, 3, 4, 5, 6, 7),
        trained=(3, 4, 5, 6), measured=(2, 3, 4, 5, 6, 7, 8),
        keep=lambda entry: entry["metadata"]["direction"] == "ascending",
    ),
    "reverse": Task(  # RL never sees it
        generator="spell_backward",
        options=lambda size: {"min_word_len": size, "max_word_len": size},
        question=lambda entry: f"reverse {entry['metadata']['word']}",
        states=lambda entry: moves(entry["metadata"]["word"], arrange=lambda letters: letters),
        wholes=(3, 4), steps=(3, 4, 5, 6, 7),
        trained=(), measured=(3, 4, 5, 6, 7),
    ),
    "add": Task(  # the larger sums that `legs` needs
        generator="basic_arithmetic",
        options=_additions(max_digits=2),
        question=lambda entry: entry["metadata"]["expression"].replace(" ", ""),
        states=lambda entry: sums(list(map(int, entry["metadata"]["expression"].split(" + ")))),
        wholes=(2,), steps=(),
        trained=(), measured=(2,),
        keep=lambda entry: int(entry["answer"]) < 100,
    ),
}  # fmt: skip


SHOWN_WHOLE = "size that the warm start shows whole"
TRAINED = "size of RL"
LARGER = "size that RL never sees"
OTHER_TASK = "task that RL never sees"
GROUPS = (SHOWN_WHOLE, TRAINED, LARGER, OTHER_TASK)


def group_of(level: Level) -> str:
    """Returns how a level relates to what the policy has seen: one of GROUPS, or empty for a level of a task outside RL
    that the base policy was shown whole."""
    name, size = level
    task = TASKS[name]
    if not task.trained:
        return "" if size in task.wholes else OTHER_TASK
    if size in task.wholes:
        return SHOWN_WHOLE
    return TRAINED if size in task.trained else LARGER


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A row, with what is needed to demonstrate it."""

    row: Row
    states: Sequence[str]
    answer: str

    @property
    def question(self) -> str:
        return self.row.messages[0]["content"]


SEEDS = {"held_out": 1, "train": 2, "warm_start": 3}
"""Split -> seed of the generator."""
MOST_ENTRIES = 60_000
"""Entries of a generator that are looked at."""


def problems(
    name: str, size: int, *, count: int, split: str, exclude: frozenset[str] = frozenset()
) -> list[Problem]:
    """Returns up to `count` problems with different questions, none of them in `exclude`; fewer if the level has
    fewer."""
    import reasoning_gym

    task = TASKS[name]
    entries = reasoning_gym.create_dataset(
        task.generator, size=MOST_ENTRIES, seed=SEEDS[split], **task.options(size)
    )
    found: dict[str, Problem] = {}
    for index in range(MOST_ENTRIES):
        entry = entries[index]
        if not task.keep(entry):
            continue
        question = task.question(entry)
        if question in exclude or question in found:
            continue
        found[question] = Problem(
            row=Row(
                uid=f"{name}/{size}/{split}/{index}",
                domain="logic",
                source=f"{name}/{size}",
                split=split,
                messages=({"role": "user", "content": question},),
                task={"task": task.generator, "entry": entry},
            ),
            states=task.states(entry),
            answer=entry["answer"].replace(".0", "").replace(" ", ""),
        )
        if len(found) == count:
            break
    return list(found.values())


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
