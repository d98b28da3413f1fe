"""Makes what every arm starts from, once: prompt files and the base policy.

    .venv/bin/python -m experiments.boundary.base runs/boundary/base [--updates 2000]

The policy is the recorded one, or with --updates a new one. It knows single steps of every size and whole workings of
the smallest sizes. It never saw a whole working of a larger size, so solving one means to repeat the step until nothing
is left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.boundary import tasks
from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.engines import environment

RECORDED = Path(__file__).parent / "base_policy"
"""The base policy of the record in results.json. It is kept, because it comes out slightly different on another
kind of processor."""
NUM_UPDATES = 2000
BATCH = 64
PART_SHARE = 0.5
"""Share of a batch that demonstrates parts of workings."""
SKILL_SHARE = 0.7
"""Share of the updates whose wholes are all careful; then come tasks.STYLES."""
SEED = 1
NUM_DEMONSTRATED, NUM_TRAIN, NUM_HELD_OUT, NUM_VALIDATION = 4000, 600, 16, 8
"""Problems of a level, in each use; the validation problems are the first of the held-out ones."""
LARGEST: tuple[Mapping[str, int], ...] = (
    {"sum": 4, "legs": 2, "sort": 4},
    {"sum": 5, "legs": 3, "sort": 5},
    {"sum": 7, "legs": 5, "sort": 6},
)
"""Largest size of each task in the prompts of each stage."""


def build(folder: Path, num_updates: int | None) -> None:
    """Builds in a temporary folder, then renames it. num_updates: of the training of a new policy; None: the recorded
    one."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    wholes, parts = _write_prompts(aside)
    if num_updates is None:
        shutil.copytree(RECORDED, aside / "policy")
    else:
        _warm_start(aside, wholes, parts, num_updates)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.replace(aside, folder)


def policy_digest(folder: Path) -> str:
    """Returns the SHA-256 of the base policy's weights."""
    return hashlib.sha256((folder / "policy/model.safetensors").read_bytes()).hexdigest()


def train_file(folder: Path, stage: int) -> Path:
    """Returns the training prompts of a stage, counted from 0."""
    return folder / f"train-{stage + 1}.parquet"


def measured_file(folder: Path) -> Path:
    """Returns the held-out prompts of every measured level; training has none of them."""
    return folder / "measured.parquet"


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Reads what `evaluate --samples` wrote, a sample at a time."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _write_prompts(folder: Path) -> tuple[list[list[tasks.Problem]], list[list[tasks.Problem]]]:
    """Writes all prompt files. Returns the problems to demonstrate, as wholes and in parts, a list a level."""
    wholes, parts = list[list[tasks.Problem]](), list[list[tasks.Problem]]()
    train, measured, validation = list[Row](), list[Row](), list[Row]()
    for name, task in tasks.TASKS.items():
        for size in sorted({*task.wholes, *task.steps, *task.trained, *task.measured}):
            candidates = tasks.problems(name, size, count=3 * NUM_HELD_OUT, split="held_out")
            held_out = candidates[: len(candidates) // 3]  # the smallest levels have few problems in all
            asked = frozenset(problem.question for problem in held_out)
            demonstrated = tasks.problems(
                name, size, count=NUM_DEMONSTRATED, split="warm_start", exclude=asked
            )
            if size in task.wholes:
                wholes.append(demonstrated)
            if size in task.steps:
                parts.append(demonstrated)
            if size in task.measured:
                measured += [problem.row for problem in held_out]
            if size in task.trained:
                found = tasks.problems(name, size, count=NUM_TRAIN, split="train", exclude=asked)
                train += [problem.row for problem in found]
                validation += [problem.row for problem in held_out[:NUM_VALIDATION]]
    random.Random(SEED).shuffle(train)
    for stage, largest in enumerate(LARGEST):
        write_rows(train_file(folder, stage), [row for row in train if _fits(row, largest)])
    write_rows(measured_file(folder), measured)
    write_rows(folder / "validation.parquet", validation)
    return wholes, parts


def _fits(row: Row, largest: Mapping[str, int]) -> bool:
    task, size = tasks.level_of(row.source)
    return size <= largest[task]


def _warm_start(
    folder: Path, wholes: list[list[tasks.Problem]], parts: list[list[tasks.Problem]], num_updates: int
) -> None:
    from nemo_prorl.demo.tiny_policy import END
    from nemo_prorl.demo.warm_start import train_from_scratch

    stream = random.Random(SEED)
    styles, weights = list(tasks.STYLES), list(tasks.STYLES.values())

    def examples(update: int) -> list[tuple[Row, str]]:
        num_parts = int(PART_SHARE * BATCH)
        drawn = [tasks.part(stream.choice(level), stream) for level in stream.choices(parts, k=num_parts)]
        for level in stream.choices(wholes, k=BATCH - num_parts):
            careful = update < SKILL_SHARE * num_updates
            style = "careful" if careful else stream.choices(styles, weights)[0]
            drawn.append(tasks.whole(stream.choice(level), style, stream))
        return [(row, response + END) for row, response in drawn]

    train_from_scratch(folder / "policy", examples, num_updates=num_updates, seed=SEED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--updates", type=int)
    options = parser.parse_args()
    environment.prepare()
    build(options.folder, options.updates)
