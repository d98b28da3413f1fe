"""Writes what the demo, conf/laptop.yaml and experiments/boundary start from: prompt files and the base policy.

The base policy is shipped with the package, because training it takes minutes and gives slightly different weights on
another kind of processor. It knows single steps of every size and whole workings of the smallest sizes. It never saw a
whole working of a larger size, so solving one means to repeat the step until nothing is left.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.demo import tasks
from nemo_prorl.demo.tasks import TASKS, Problem
from nemo_prorl.engines import environment

BASE = Path("runs/tiny")
"""The folder in which conf/laptop.yaml expects the policy and its prompts."""
BASE_POLICY = Path(__file__).parent / "base_policy"
"""The shipped policy, in Hugging Face format."""
NUM_UPDATES = 2000
"""Updates of the supervised training that made it."""
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
"""Largest size of each task in each training file; a file begins above the sizes of the one before."""


def policy_folder(folder: Path) -> Path:
    """Returns the base policy."""
    return folder / "policy"


def train_files(folder: Path, number: int) -> dict[Path, int]:
    """Returns the training files up to LARGEST[number], each with the number of its levels as its weight."""
    levels = [(name, size) for name, task in TASKS.items() for size in task.trained]
    files = [_train_file(folder, _first_file(level)) for level in levels]
    return {path: files.count(path) for path in (_train_file(folder, each) for each in range(number + 1))}


def validation_file(folder: Path) -> Path:
    """Returns the held-out prompts for the validations of a run: a few of every level on which RL trains."""
    return folder / "data/validation.parquet"


def measured_file(folder: Path) -> Path:
    """Returns the held-out prompts of every measured level; training has none of them."""
    return folder / "data/measured.parquet"


def is_built(folder: Path) -> bool:
    """Returns whether the folder was built by the present version of the code."""
    marker = folder / "built_by"
    return marker.is_file() and marker.read_text(encoding="utf-8") == _fingerprint()


def build(folder: Path, *, num_updates: int = 0) -> None:
    """Builds in a temporary folder, then renames it; an older build is replaced. num_updates: of the supervised
    training of a new base policy; 0 copies the shipped one."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    held_out = dict[tasks.Level, list[Problem]]()
    train, measured, validation = list[Row](), list[Row](), list[Row]()
    for name, task in TASKS.items():
        for size in task.sizes:
            candidates = tasks.problems(name, size, count=3 * NUM_HELD_OUT, split="held_out")
            held_out[name, size] = kept = candidates[: len(candidates) // 3]  # a third where a level has few
            if size in task.measured:
                measured += [problem.row for problem in kept]
            if size in task.trained:
                found = tasks.problems(name, size, count=NUM_TRAIN, split="train", exclude=_questions(kept))
                train += [problem.row for problem in found]
                validation += [problem.row for problem in kept[:NUM_VALIDATION]]
    random.Random(SEED).shuffle(train)
    for number in range(len(LARGEST)):
        rows = [row for row in train if _first_file(tasks.level_of(row.source)) == number]
        write_rows(_train_file(aside, number), rows)
    write_rows(measured_file(aside), measured)
    write_rows(validation_file(aside), validation)
    if num_updates:
        _train_policy(policy_folder(aside), held_out, num_updates)
    else:
        shutil.copytree(BASE_POLICY, policy_folder(aside))
    (aside / "built_by").write_text(_fingerprint(), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.replace(aside, folder)


def _train_file(folder: Path, number: int) -> Path:
    return folder / f"data/train-{number + 1}.parquet"


def _first_file(level: tasks.Level) -> int:
    """Returns the number of the training file that has a level."""
    name, size = level
    return next(number for number, largest in enumerate(LARGEST) if size <= largest[name])


def _questions(problems: list[Problem]) -> frozenset[str]:
    return frozenset(problem.question for problem in problems)


def _train_policy(out: Path, held_out: Mapping[tasks.Level, list[Problem]], num_updates: int) -> None:
    """Trains random weights on beginnings and ends of workings of nearly all sizes, and on whole ones of the
    smallest."""
    from nemo_prorl.demo.tiny_policy import END
    from nemo_prorl.demo.warm_start import train_from_scratch

    wholes, parts = list[list[Problem]](), list[list[Problem]]()
    for (name, size), kept in held_out.items():
        shown = tasks.problems(
            name, size, count=NUM_DEMONSTRATED, split="warm_start", exclude=_questions(kept)
        )
        wholes += [shown] if size in TASKS[name].wholes else []
        parts += [shown] if size in TASKS[name].steps else []
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

    train_from_scratch(out, examples, num_updates=num_updates, seed=SEED)


def _fingerprint() -> str:
    """Returns a hash of the files that determine what is built."""
    here = Path(__file__).parent
    files = (here / "build.py", here / "tasks.py", BASE_POLICY / "model.safetensors")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def main() -> None:
    """Parses the command line and builds."""
    parser = argparse.ArgumentParser(
        prog="python -m nemo_prorl.demo.build",
        description="Writes the prompts and the base policy of the demo and of conf/laptop.yaml into a folder, which "
        "is replaced.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=f"conf/laptop.yaml reads {BASE}")
    parser.add_argument(
        "--train-policy",
        type=int,
        nargs="?",
        const=NUM_UPDATES,
        default=0,
        metavar="UPDATES",
        help="train a new base policy, which takes some minutes, instead of copying the shipped one; UPDATES: "
        f"default {NUM_UPDATES}",
    )
    options = parser.parse_args()
    folder: Path = options.folder
    if folder.exists() and not (folder / "built_by").is_file():
        parser.error(f"{folder} exists and was not written by this command: name another folder")
    environment.prepare()
    build(folder, num_updates=options.train_policy)


if __name__ == "__main__":
    main()
