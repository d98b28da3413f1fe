"""Logic puzzles from Reasoning Gym's generators: the paper's 96 tasks and three that are kept out of training.

Rows are stored, not seeds: `codeio` runs programs whose results change from call to call, and iteration over sets
depends on the interpreter's hash seed. So entries are generated in separate processes with a fixed hash seed, and the
global random generators are seeded before each entry; then the same seed gives the same rows.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import random
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from nemo_prorl.config import Credit, DataBuildConfig
from nemo_prorl.data.building.source import NoRow, Problem, Record, Source

NUM_TRAIN, NUM_VALIDATION_A_TASK = 37_000, 100
OUT_OF_DISTRIBUTION = ("acre", "boxnet", "game_of_life_halting")
"""Never trained on (ProRL, section on out-of-distribution tasks); as many rows of each as of a task's validation."""
HELD_OUT_CREDIT = {"credit": Credit.corrected.name}
"""Part of the task of held-out rows: they get the library's score, with our corrections of its scorers."""
CHUNK, MAX_INDEX = 32, 20_000
"""Entries per job, and the most entries that are generated for one task."""
MIN_NEW = 0.05
"""A task counts as exhausted once fewer of its entries than this are new: some have few questions and are slow."""
MAX_GUESSED = 0.9
"""A task is not trained on when an answer that ignores its question is right more often than this."""


def tasks() -> tuple[str, ...]:
    """Returns the paper's 96 tasks."""
    return tuple(files("reward").joinpath("data/reasoning_gym_96_tasks.txt").read_text().split())


@cache
def guessed() -> frozenset[str]:
    """The tasks that teach a policy to guess: a rule that ignores the question is right in more than MAX_GUESSED of
    their entries (experiments/puzzles/README.md, column "left"), so no reward can tell it from a solution."""
    measured = json.loads(files("reward").joinpath("data/puzzle_constants.json").read_text())["tasks"]
    return frozenset(
        task
        for task, searches in measured.items()
        if max(answer["right"] for answer in searches["training"].values()) > MAX_GUESSED
    )


def generate(options: DataBuildConfig) -> Iterator[Record]:
    """Yields each task's validation rows, then its training rows, no question twice. Tasks that can be guessed have
    validation rows only; the others share the training rows evenly."""
    num_validation = NUM_VALIDATION_A_TASK if options.held_out < 0 else options.held_out
    trained = [task for task in tasks() if task not in guessed()]
    share, rest = divmod(options.rows or NUM_TRAIN, len(trained))
    num_train = {task: share + (place < rest) for place, task in enumerate(trained)}
    wanted = {task: {"validation": num_validation, "train": num_train.get(task, 0)} for task in tasks()} | {
        task: {"out_of_distribution": num_validation} for task in OUT_OF_DISTRIBUTION
    }
    with _workers() as pool:
        for task, splits in wanted.items():
            entries = _different_entries(pool, task, sum(splits.values()), options.seed)
            for split, count in splits.items():
                while count and (made := next(entries, None)) is not None:
                    index, entry = made
                    count -= entry is not None
                    values = {"task": task, "entry": entry, "reason": "entry_not_json"}
                    values |= {"train_credit": {} if options.credit is Credit.training else HELD_OUT_CREDIT}
                    yield Record(values=values, split=split, origin=f"{task}:{index}")
                for _ in range(count):
                    values = {"task": task, "entry": None, "reason": "too_few_questions"}
                    yield Record(values=values, split=split, origin=task)


def convert(record: Record) -> Problem:
    """Turns an entry into a problem. Held-out rows ask for the library's partial credit, which the papers report;
    training rows use the service's default for training (experiments/puzzles) unless `credit` says otherwise. Raises
    NoRow."""
    from reasoning_gym.utils import SYSTEM_PROMPTS

    entry, task = record.values["entry"], record.values["task"]
    if entry is None:
        raise NoRow(record.values["reason"])
    # Tasks with many right answers keep one of them in the metadata, or none.
    metadata = entry["metadata"]
    found = [entry["answer"], metadata.get("example_answer"), metadata.get("example_correct_answer")]
    if "possible_answer" in metadata:  # graph_color expects JSON
        found.append(json.dumps(metadata["possible_answer"]))
    answer = next((answer for answer in found if isinstance(answer, str)), None)
    return Problem(
        question=entry["question"],
        task={"task": task, "entry": entry}
        | (record.values["train_credit"] if record.split == "train" else HELD_OUT_CREDIT),
        suffix="\n\n" + str(SYSTEM_PROMPTS["default"]).strip(),  # the library's, which asks for <answer> tags
        kind=task,
        gold=None if answer is None else f"<answer>{answer}</answer>",
    )


def _different_entries(
    pool: Any, task: str, count: int, seed: int
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yields (index, entry) for the first `count` different questions, fewer if the task has no more, and (index, None)
    for entries that JSON cannot represent."""
    seen: set[str] = set()
    stop, share_new = 0, 1.0
    while len(seen) < count and stop < MAX_INDEX and share_new >= MIN_NEW:
        num_more = max(CHUNK, count - len(seen)) if seen else count
        before, start, stop = len(seen), stop, min(MAX_INDEX, stop + num_more)
        jobs = [(task, seed, first, min(first + CHUNK, stop)) for first in range(start, stop, CHUNK)]
        for made in pool.imap(_make, jobs):
            for index, text in made:
                entry = json.loads(text) if text else None
                if entry is None:
                    yield index, None
                elif entry["question"] not in seen and len(seen) < count:
                    seen.add(entry["question"])
                    yield index, entry
        share_new = (len(seen) - before) / (stop - start)


def _make(job: tuple[str, int, int, int]) -> list[tuple[int, str]]:
    """Generates the entries of one job as JSON, as the reward service will see them, or as "". Runs in a worker."""
    import numpy as np
    import reasoning_gym

    task, seed, start, stop = job
    dataset = reasoning_gym.create_dataset(task, seed=seed, size=MAX_INDEX)
    made = []
    for index in range(start, stop):
        random.seed(f"{task}/{seed}/{index}")
        np.random.seed(random.getrandbits(32))
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # some tasks print
                entry = dataset[index]
            text = json.dumps(entry, allow_nan=False)
        except (TypeError, ValueError):
            # JSON cannot hold a value of the metadata, or of what a program of codeio returned.
            text = ""
        made.append((index, text))
    return made


@contextlib.contextmanager
def _workers() -> Iterator[Any]:
    """Yields a pool of fresh processes with the same hash seed. They work in a temporary folder, because `codeio`'s
    programs write files into their working directory."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        with (
            tempfile.TemporaryDirectory(prefix="nemo_prorl_") as folder,
            multiprocessing.get_context("spawn").Pool(
                len(os.sched_getaffinity(0)), initializer=os.chdir, initargs=(folder,)
            ) as pool,
        ):
            yield pool
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


SOURCE = Source(
    name="reasoning_gym",
    domain="logic",
    summary="37,000 puzzles over 94 tasks, 100 validation of each of 96; acre, boxnet, game_of_life_halting apart",
    licence="Apache-2.0 (the library); codeio, arc_1d, arc_agi and rearc carry data of their own",
    generate=generate,
    convert=convert,
    paper_rows=NUM_TRAIN,
    templated=True,
)
