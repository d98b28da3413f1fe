"""Puzzles of Reasoning Gym: the held-out rows that `data build reasoning_gym` wrote, and graphs of growing size."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from nemo_prorl.data.building.source import NoRow, OtherSet, Problem, Record, only_user_turn
from nemo_prorl.data.sources import reasoning_gym
from nemo_prorl.evaluation.benchmark import missing_column

GRAPH_SIZES = (10, 12, 14, 16, 18, 20)
"""Vertices; training has 10 (ProRL, figure 6: "more than 10", without sizes)."""
NUM_GRAPHS = 100
"""Graphs per size (ProRL: 100 per task)."""
GRAPH_SEED = 20_250_530
"""Differs from training's seed, so that the graphs differ."""


def row(record: Record) -> Problem:
    """Reads a row of a prompt file (docs/data.md); its prompt is complete, and it is scored as in the papers. Raises
    NoRow, and ConfigError for a file of another schema or a damaged row."""
    if not {"messages", "task"} <= record.values.keys():
        raise missing_column(record, "messages and task (docs/data.md)")
    turns, task = record.list("messages"), record.object("task")
    asked = only_user_turn(turns, otherwise="not_one_user_turn")
    if not isinstance(task.get("task"), str):
        raise NoRow("no_puzzle")
    return Problem(question=asked, task=task | reasoning_gym.HELD_OUT_CREDIT)


def by_category(record: Record) -> Problem:
    """Reads a row as `row` does, with the kind `category/task`, so that results are reported by task. Raises
    NoRow."""
    problem = row(record)
    task = problem.task["task"]
    if task in reasoning_gym.OUT_OF_DISTRIBUTION:
        raise OtherSet("out_of_distribution")
    return replace(problem, kind=f"{category(task)}/{task}")


def only(task: str) -> Callable[[Record], Problem]:
    """Returns a conversion that keeps the puzzles of one task."""

    def convert(record: Record) -> Problem:
        problem = row(record)
        if problem.task["task"] != task:
            raise OtherSet("of_another_task")
        return problem

    return convert


def sized(record: Record) -> Problem:
    """Turns a generated graph into a problem of the kind `N_vertices`."""
    return replace(reasoning_gym.convert(record), kind=f"{record.values['num_vertices']:02}_vertices")


def graphs() -> Iterator[Record]:
    """Yields graph_color entries with the numbers of vertices in GRAPH_SIZES; the same ones every time."""
    import reasoning_gym as library

    for size in GRAPH_SIZES:
        random.seed(f"graph_color/{size}")  # the library draws from this too, besides its own seed
        made = library.create_dataset(
            "graph_color",
            seed=GRAPH_SEED + size,
            size=NUM_GRAPHS,
            min_num_vertices=size,
            max_num_vertices=size,
        )
        for index, entry in enumerate(made):
            plain = json.loads(json.dumps(entry))
            yield Record(
                values={"task": "graph_color", "entry": plain, "num_vertices": size},
                split="test",
                origin=f"graph_color/{size}:{index}",
            )


def category(task: str) -> str:
    """Returns a task's category in the library, as in the paper's table of categories; "" for unknown tasks."""
    from reasoning_gym.factory import DATASETS

    return DATASETS[task][0].__module__.split(".")[1] if task in DATASETS else ""
