"""Builds what the demo and conf/laptop.yaml start from, once: prompt files and the warm-started policy.

python -m nemo_prorl.demo.build runs/tiny
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sys
from pathlib import Path

from nemo_prorl.engines import environment

NUM_TRAIN = 1200
"""Training problems per source."""
NUM_HELD_OUT = 64
NUM_UPDATES = 600
"""Updates of the warm start: the policy learns the skill, but RL has to make it use it."""
BATCH = 32
SKILL_SHARE = 0.65
"""Fraction of the updates that teach the skill; the rest teaches the habits."""
SEED = 1


def train_file(folder: Path, source: str) -> Path:
    """Returns the path of a source's training prompts; conf/laptop.yaml names it."""
    return folder / "data" / f"{source}.train.parquet"


def held_out_file(folder: Path, source: str) -> Path:
    """Returns the path of a source's validation prompts, none of which is trained on."""
    return folder / "data" / f"{source}.held_out.parquet"


def is_built(folder: Path) -> bool:
    """Returns whether the folder was built by the present version of the code."""
    marker = folder / "built_by"
    return marker.is_file() and marker.read_text(encoding="utf-8") == _fingerprint()


def build(folder: Path) -> None:
    """Builds in a temporary folder, then renames it; an older build is replaced."""
    from nemo_prorl.data.rows import Row, write_rows
    from nemo_prorl.demo import tasks, tiny_policy
    from nemo_prorl.demo.warm_start import train_from_scratch

    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    demonstrated = []
    for source in tasks.SOURCES:
        held_out = tasks.problems(source, count=NUM_HELD_OUT, seed=SEED, split="held_out")
        train = tasks.problems(
            source, count=NUM_TRAIN, seed=SEED, split="train", exclude=tasks.questions(held_out)
        )
        write_rows(held_out_file(aside, source), [problem.row for problem in held_out])
        write_rows(train_file(aside, source), [problem.row for problem in train])
        demonstrated += train
    stream = random.Random(SEED)

    def examples(update: int) -> list[tuple[Row, str]]:
        """First the skill, from careful demonstrations only; then the habits, from demonstrations of mixed quality."""
        drawn = []
        for problem in stream.choices(demonstrated, k=BATCH):
            style = "careful" if update < SKILL_SHARE * NUM_UPDATES else tasks.draw_style(stream)
            response = tasks.demonstration(problem, style, stream)
            drawn.append((problem.row, response + ("" if style == "endless" else tiny_policy.END)))
        return drawn

    train_from_scratch(aside / "policy", examples, num_updates=NUM_UPDATES, seed=SEED)
    (aside / "built_by").write_text(_fingerprint(), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.replace(aside, folder)


def _fingerprint() -> str:
    """A hash of the files that determine what is built."""
    here = Path(__file__).parent
    names = ("build.py", "tasks.py", "tiny_policy.py", "warm_start.py")
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in names)).hexdigest()


if __name__ == "__main__":
    environment.prepare()
    build(Path(sys.argv[1]))
