"""What `demo` trains: a tiny policy, in two stages with a hard reset between them, on puzzles of growing size."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from nemo_prorl.demo import build, levels
from nemo_prorl.demo.build import BASE
from nemo_prorl.demo.run import Demo, Records
from nemo_prorl.demo.solved import Counts

NUM_SAMPLES = 16
SMOKE = ("trainer.num_steps=2", "trainer.prompts_per_step=8", "validation.max_prompts=8")
SMOKE_PROBLEMS = 27
"""A problem of each level."""


def demo(*, smoke: bool) -> Demo:
    """Returns the demo, or a shortened one."""
    return Demo(
        config_name="laptop",
        build=build.__name__,
        policy=build.policy_folder(BASE),
        measured=build.measured_file(BASE),
        stages=[[f"stage={name}", *(SMOKE if smoke else ())] for name in ("demo1", "demo2")],
        num_samples=2 if smoke else NUM_SAMPLES,
        max_problems=SMOKE_PROBLEMS if smoke else 0,
        show=show,
    )


def plan(*, smoke: bool) -> str:
    """Returns what the demo is going to do, and how long it takes."""
    if smoke:
        return "A shortened demo: two stages of two steps, few samples. About two minutes."
    return f"""Trains a policy of 0.6 million parameters on puzzles of which it solves only the
smallest:
  1. {NUM_SAMPLES} samples of every held-out problem from the base policy  about 1 minute
  2. two stages of 15 steps of `train`, a hard reset in between  about 3 minutes
  3. {NUM_SAMPLES} samples of every problem again, a table and a picture   about 1 minute
In all four to six minutes on two cores. The same command continues an
interrupted demo."""


def show(out: Path, records: Records, before: Counts, after: Counts, k: int) -> dict[str, Any]:
    """See `run.Demo.show`."""
    summary = levels.summarise(before, after, k)
    from nemo_prorl.demo import picture

    picture.draw(out / "demo.png", records, summary["levels"], k=k)
    print(f"{levels.table(summary)}\n")
    for sentence in levels.sentences(summary):
        print(textwrap.fill(sentence, 80))
    return summary
