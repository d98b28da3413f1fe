"""Writes the prompts of conf/stories.yaml: openings of stories, and six rules that each story should keep.

    .venv/bin/python experiments/findings/stories_prompts.py runs/stories/data

The model has never seen an instruction, and the prompts give none: only the grader's task names the rules, and the
policy discovers them by trial and error.
"""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nemo_prorl.data.rows import Row, write_rows  # noqa: E402

OPENINGS = (
    "Once upon a time there was a {kind} named {name}.",
    "One day {name} went to the {place}.",
    "{name} had a {thing} and",
    "{name} and {friend} went to the {place}.",
    "There was once a {kind} who loved the {place}.",
    "Every day {name} played with a {thing} in the {place}.",
    "{name} found a {thing} near the {place}.",
    "{name} saw a {kind} in the {place}.",
)
NAMES = ("Tim", "Lily", "Ben", "Mia", "Tom", "Sue", "Max", "Anna", "Sam", "Lucy", "Jack", "Sara")
KINDS = (
    "little girl",
    "little boy",
    "big dog",
    "small cat",
    "brave bird",
    "kind bear",
    "red fox",
    "shy mouse",
)
THINGS = ("red ball", "toy car", "big box", "new hat", "kite", "cake", "doll", "shiny stone")
PLACES = ("park", "garden", "forest", "beach", "house", "lake", "farm", "store")
RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("punctuation:no_comma", {}),
    ("keywords:frequency", {"keyword": "happy", "frequency": 2, "relation": "at least"}),
    ("keywords:existence", {"keywords": ["friend"]}),
    ("keywords:letter_frequency", {"letter": "o", "let_frequency": 15, "let_relation": "at least"}),
    ("keywords:forbidden_words", {"forbidden_words": ["was"]}),
    ("length_constraints:number_sentences", {"num_sentences": 8, "relation": "at least"}),
)
NUM_TRAIN, NUM_HELD_OUT = 1024, 64
SEED = 1


def openings() -> list[str]:
    """Returns all openings, shuffled with the seed."""
    texts = {
        form.format(name=name, friend=friend, kind=kind, thing=thing, place=place)
        for form, (name, friend), kind, thing, place in itertools.product(
            OPENINGS, itertools.permutations(NAMES, 2), KINDS, THINGS, PLACES
        )
    }
    return random.Random(SEED).sample(sorted(texts), len(texts))


def row(text: str, split: str) -> Row:
    """Returns the row of an opening, with the six rules."""
    return Row(
        uid=f"stories/{text}",
        domain="instruction",
        source="stories",
        split=split,
        messages=({"role": "user", "content": text},),
        task={
            "instruction_id_list": [name for name, _ in RULES],
            "kwargs": [arguments for _, arguments in RULES],
        },
    )


def write_prompts(folder: Path) -> None:
    """Writes the training and held-out prompts, which have no opening in common."""
    texts = openings()
    held_out, train = texts[:NUM_HELD_OUT], texts[NUM_HELD_OUT : NUM_HELD_OUT + NUM_TRAIN]
    write_rows(folder / "openings.held_out.parquet", [row(text, "held_out") for text in held_out])
    write_rows(folder / "openings.train.parquet", [row(text, "train") for text in train])


if __name__ == "__main__":
    write_prompts(Path(sys.argv[1]))
