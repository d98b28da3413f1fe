"""Tests of puzzles as stored rows: different, repeatable, and each solved by its own answer at the real service."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from nemo_prorl.config import DataBuildConfig
from nemo_prorl.data.sources import reasoning_gym as source
from tests.data.building.conftest import Building

TASKS = (
    "arc_agi",
    "codeio",
    "graph_color",
    "list_functions",
    "propositional_logic",
    "rush_hour",
    "tower_of_hanoi",
)
"""Tasks of every kind: with a data set and tuples, running programs, without an answer (with and without one in the
metadata), iterating over sets, with few different questions."""


@pytest.fixture(autouse=True)
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "tasks", lambda: TASKS)
    use_workers(monkeypatch, 1)


def use_workers(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Limits the worker processes, because each takes seconds to import the library."""
    monkeypatch.setattr(source.os, "sched_getaffinity", lambda _: {*range(count)})


def test_the_paper_has_96_tasks_and_three_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert len(source.tasks()) == 96
    assert not set(source.tasks()) & set(source.OUT_OF_DISTRIBUTION)


@pytest.mark.medium
def test_tasks_that_can_be_guessed_are_measured_but_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert source.guessed() == {"propositional_logic", "string_insertion"}
    monkeypatch.setattr(source, "tasks", lambda: ("chain_sum", "string_insertion", "spell_backward"))
    monkeypatch.setattr(source, "OUT_OF_DISTRIBUTION", ())
    made = source.generate(DataBuildConfig(rows=5, held_out=1, seed=1))
    counts = Counter((record.split, record.values["task"]) for record in made)
    assert counts == {
        ("validation", "chain_sum"): 1, ("train", "chain_sum"): 3,
        ("validation", "string_insertion"): 1,
        ("validation", "spell_backward"): 1, ("train", "spell_backward"): 2,
    }  # fmt: skip


@pytest.mark.slow
def test_rows_are_shared_out_split_apart_and_proved(building: Building) -> None:
    manifest = building.run("reasoning_gym", rows=39, held_out=2)
    assert manifest["num_rows"] == {"train": 39, "validation": 14, "out_of_distribution": 6}
    assert manifest["dropped"] == {}
    train, held_out = building.rows("reasoning_gym"), building.rows("reasoning_gym", "validation")
    counts = Counter(row.task["task"] for row in train)
    trained = [task for task in TASKS if task != "propositional_logic"]
    assert counts == {task: 7 if index < 3 else 6 for index, task in enumerate(trained)}
    questions = [row.messages[-1]["content"] for row in [*train, *held_out]]
    assert len(set(questions)) == len(questions)
    apart = Counter(row.task["task"] for row in building.rows("reasoning_gym", "out_of_distribution"))
    assert apart == {"acre": 2, "boxnet": 2, "game_of_life_halting": 2}
    without_answer = sum(row.task["task"] in ("rush_hour", "boxnet") for row in [*train, *held_out]) + 2
    assert manifest["num_proved_by_gold"] == 39 + 14 + 6 - without_answer


@pytest.mark.slow
def test_the_same_seed_gives_the_same_rows_with_any_number_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order of workers could change two of these tasks: one runs programs, the other iterates over sets."""
    monkeypatch.setattr(source, "tasks", lambda: ("codeio", "list_functions"))
    monkeypatch.setattr(source, "OUT_OF_DISTRIBUTION", ())

    def made(seed: int) -> list[tuple[str, str]]:
        records = source.generate(DataBuildConfig(rows=16, held_out=1, seed=seed))
        return [(record.origin, json.dumps(record.values)) for record in records]

    first = made(5)
    assert made(6) != first
    use_workers(monkeypatch, 2)
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    assert made(5) == first
    assert source.os.environ["PYTHONHASHSEED"] == "77"


class Pool:
    """A pool that returns scripted questions at once; None is an entry that JSON cannot hold."""

    def __init__(self, questions: list[str | None]) -> None:
        self.questions = questions

    def imap(self, function: object, jobs: list[tuple[str, int, int, int]]) -> Any:
        for _, _, start, stop in jobs:
            yield [
                (i, "" if q is None else json.dumps({"question": q}))
                for i, q in enumerate(self.questions[start:stop], start)
            ]


def test_repeated_questions_are_passed_over_and_a_task_may_have_too_few() -> None:
    script: list[str | None] = ["a", "a", None, "b", "a", *(["b"] * 20), "c", "d"]
    found = list(source._different_entries(Pool(script), "task", 3, 1))
    assert [(index, entry and entry["question"]) for index, entry in found] == [
        (0, "a"), (2, None), (3, "b"), (25, "c"),
    ]  # fmt: skip
    few = list(source._different_entries(Pool(["a", "b"] * 50), "task", 30, 1))
    assert [index for index, _ in few] == [0, 1]
