"""Writes what the demo, conf/laptop.yaml and experiments/boundary start from: prompt files and the base policy.

The base policy is shipped with the package, because training it (experiments/boundary/base_policy.py) takes minutes and
gives slightly different weights on another kind of processor. It knows single steps of every size and whole workings of
the smallest sizes. It never saw a whole working of a larger size, so solving one means to repeat the step until nothing
is left.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.demo import tasks
from nemo_prorl.demo.tasks import TASKS

BASE = Path("runs/tiny")
"""The folder in which conf/laptop.yaml expects the policy and its prompts."""
BASE_POLICY = Path(__file__).parent / "base_policy"
"""The shipped policy, in Hugging Face format."""
FILES = (Path(__file__), Path(tasks.__file__), BASE_POLICY / "model.safetensors")
"""Determine what is built."""
SEED = 1
NUM_TRAIN, NUM_HELD_OUT, NUM_VALIDATION = 600, 16, 8
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


def is_built(folder: Path, files: Sequence[Path] = FILES) -> bool:
    """Returns whether the folder was built by the present content of these files."""
    marker = folder / "built_by"
    return marker.is_file() and marker.read_text(encoding="utf-8") == fingerprint(files)


def fingerprint(files: Sequence[Path] = FILES) -> str:
    """Returns a hash of the content of these files."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def build(folder: Path) -> None:
    """Builds in a temporary folder, then renames it; an older build is replaced."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    train, measured, validation = list[Row](), list[Row](), list[Row]()
    for name, task in TASKS.items():
        for size in task.measured:
            kept = held_out(name, size)
            measured += kept
            if size in task.trained:
                train += tasks.problems(name, size, count=NUM_TRAIN, split="train", exclude=questions(kept))
                validation += kept[:NUM_VALIDATION]
    random.Random(SEED).shuffle(train)
    for number in range(len(LARGEST)):
        rows = [row for row in train if _first_file(tasks.level_of(row.source)) == number]
        write_rows(_train_file(aside, number), rows)
    write_rows(measured_file(aside), measured)
    write_rows(validation_file(aside), validation)
    shutil.copytree(BASE_POLICY, policy_folder(aside))
    (aside / "built_by").write_text(fingerprint(), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.replace(aside, folder)


def held_out(name: str, size: int) -> list[Row]:
    """Returns the held-out problems of a level: NUM_HELD_OUT, or a third where it has few."""
    candidates = tasks.problems(name, size, count=3 * NUM_HELD_OUT, split="held_out")
    return candidates[: len(candidates) // 3]


def questions(rows: list[Row]) -> frozenset[str]:
    """Returns the texts of the problems."""
    return frozenset(row.messages[0]["content"] for row in rows)


def _train_file(folder: Path, number: int) -> Path:
    return folder / f"data/train-{number + 1}.parquet"


def _first_file(level: tasks.Level) -> int:
    """Returns the number of the training file that has a level."""
    name, size = level
    return next(number for number, largest in enumerate(LARGEST) if size <= largest[name])


def main() -> None:
    """Builds BASE unless it is up to date, and exits with one line for what a user can mend."""
    argparse.ArgumentParser(description=__doc__).parse_args()  # there are no arguments
    if is_built(BASE):
        return
    if BASE.exists() and not (BASE / "built_by").is_file():
        sys.exit(f"error: {BASE} exists and was not written by this command: move it away")
    build(BASE)


if __name__ == "__main__":
    main()
