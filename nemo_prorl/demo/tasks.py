"""The tasks: Reasoning Gym generators at graded sizes.

A *level* is a task at one size, such as the sum of four terms; the rows of prompt files name it in `source`. The
entries are the library's own and the reward service grades them. Only the wording is shorter than the library's,
because the policy reads character by character.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    wholes: Sequence[int]
    """Sizes of which the base policy was shown the whole working with its answer (experiments/boundary/base_policy.py).
    It was shown parts of nearly all others, without an answer."""
    trained: Sequence[int]
    """Sizes of the prompts of RL; empty for a task that RL never sees."""
    measured: Sequence[int]
    """Sizes that are measured."""
    keep: Callable[[Entry], bool] = lambda entry: True
    """Whether an entry is used."""


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
        wholes=(2, 3),
        trained=(3, 4, 5, 6, 7), measured=(2, 3, 4, 5, 6, 7, 8, 10),
    ),
    "legs": Task(
        generator="leg_counting",
        options=lambda size: {
            "min_animals": size, "max_animals": size, "min_instances": 1, "max_instances": 3
        },
        question=lambda entry: "legs of " + entry["question"].partition("if you have ")[2].strip("?\n "),
        wholes=(1,),
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
        wholes=(2, 3),
        trained=(3, 4, 5, 6), measured=(2, 3, 4, 5, 6, 7, 8),
        keep=lambda entry: entry["metadata"]["direction"] == "ascending",
    ),
    "reverse": Task(  # RL never sees it
        generator="spell_backward",
        options=lambda size: {"min_word_len": size, "max_word_len": size},
        question=lambda entry: f"reverse {entry['metadata']['word']}",
        wholes=(3, 4),
        trained=(), measured=(3, 4, 5, 6, 7),
    ),
    "add": Task(  # the larger sums that `legs` needs
        generator="basic_arithmetic",
        options=_additions(max_digits=2),
        question=lambda entry: entry["metadata"]["expression"].replace(" ", ""),
        wholes=(2,),
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


SEEDS = {"held_out": 1, "train": 2, "warm_start": 3}
"""Split -> seed of the generator."""
MOST_ENTRIES = 60_000
"""Entries of a generator that are looked at."""


def problems(
    name: str, size: int, *, count: int, split: str, exclude: frozenset[str] = frozenset()
) -> list[Row]:
    """Returns up to `count` rows with different questions, none of them in `exclude`; fewer if the level has fewer."""
    import reasoning_gym

    task = TASKS[name]
    entries = reasoning_gym.create_dataset(
        task.generator, size=MOST_ENTRIES, seed=SEEDS[split], **task.options(size)
    )
    found: dict[str, Row] = {}
    for index in range(MOST_ENTRIES):
        entry = entries[index]
        if not task.keep(entry):
            continue
        question = task.question(entry)
        if question in exclude or question in found:
            continue
        found[question] = Row(
            uid=f"{name}/{size}/{split}/{index}",
            domain="logic",
            source=f"{name}/{size}",
            split=split,
            messages=({"role": "user", "content": question},),
            task={"task": task.generator, "entry": entry},
        )
        if len(found) == count:
            break
    return list(found.values())
