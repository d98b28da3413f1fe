"""The arms that the benchmark compares. Each trains the same base policy for as many steps on the same prompts."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs import Records, train
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.data.rows import Row, RowFile
from nemo_prorl.demo import build
from nemo_prorl.engines import environment
from nemo_prorl.questions.arms import GOES_ON

LEARNING_RATE, RL_TEMPERATURE, UPDATES_PER_STEP = 1e-4, 1.2, 4
"""As in conf/laptop.yaml and the defaults."""
SEQUENCES = 64
"""Rollouts in an update of RL: 16 prompts x 16 rollouts in 4 updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arm of RL: what differs from conf/laptop.yaml and COMMON."""

    title: str
    colour: str
    overrides: Sequence[str] = ()
    resets: bool = False
    """Whether stages begin with a hard reset, and the controller may reset in between."""
    is_short: bool = False
    """Whether it ends within the first stage."""


COMMON = (
    "algorithm.dual_clip=0",  # as in the recorded runs, which were made before it was on by default
    "validation.interval=20",
    "validation.early=false",
    # For stages of 80 steps. min_delta is about the standard error of the difference between two validations.
    "controller.cooldown=20",
    "controller.patience.validation_plateau=2",
    "controller.limits.validation_plateau=0.06",
    # All arms are to have equally many steps, and responses become longer because longer problems are solved.
    *(
        f"controller.{check}=ignore"
        for check in ("futile_resets", "response_length", "no_eos", "entropy_collapse", "entropy_runaway")
    ),
)
"""Overrides of conf/laptop.yaml in all arms."""
ARMS: Mapping[str, Arm] = {
    "resets": Arm(title="prolonged, with resets", colour="#b0413e", resets=True,
                  overrides=("controller.mode=automatic",)),
    "no_resets": Arm(title="prolonged, no reset", colour="#d99a3d"),
    "short": Arm(title="short: a tenth of the steps", colour="#4f9a6b", is_short=True),
    "large_kl": Arm(title="KL weight 1, no reset", colour="#7b5ea7", overrides=("algorithm.kl_beta=1",)),
}  # fmt: skip
CONTROL = "control"


def train_arm(
    folder: Path,
    base_folder: Path,
    url: str,
    arm: Arm,
    *,
    seed: int,
    steps: Sequence[int],
) -> Records:
    """Trains one arm, `steps` in each of its stages, or reads it from the folder."""
    records: Records = []
    for stage, num_steps in enumerate(steps):
        files = build.train_files(base_folder, stage)
        parent = () if stage == 0 else (f"stage.parent=stage{stage}", *(() if arm.resets else GOES_ON))
        stage_overrides = [
            f"model.path={build.policy_folder(base_folder)}",
            f"data.train={{{', '.join(f'{path}: {weight}' for path, weight in files.items())}}}",
            f"data.validation=[{build.validation_file(base_folder)}]",
            *COMMON,
            f"stage.name=stage{stage + 1}",
            *parent,
            f"seed={seed}",
            f"trainer.num_steps={num_steps}",
            *arm.overrides,
        ]
        records = train(folder, url, stage_overrides, stage=f"stage{stage + 1}")
    return records


def correct_responses(samples: Path) -> dict[str, list[str]]:
    """Returns the complete responses with the full score by their row's uid, from what `evaluate --samples` wrote."""
    found = defaultdict[str, list[str]](list)
    for sample in read_metrics(samples):
        if sample["score"] == 1.0 and sample["finish"] == "stop":
            uid, _, _ = sample["uid"].rpartition("#")  # `render` appends the epoch
            found[uid].append(sample["response"])
    return found


def fine_tune(
    start: Path, out: Path, samples: Path, prompts: Sequence[Path], *, num_updates: int, seed: int
) -> None:
    """The control: trains the base policy on its own correct samples, for as many updates of as many sequences as RL.

    A batch draws problems that have a correct sample, then one of its correct samples, so that problems which the base
    solves rarely count as much as the others. `samples` is what `evaluate --samples` wrote for `prompts`.
    """
    from experiments.boundary.supervised import train_supervised
    from nemo_prorl.config import TrainerConfig
    from experiments.boundary.tiny_policy import END

    rows = {row.uid: row for path in prompts for row in RowFile(path)}
    correct = correct_responses(samples)
    stream, solved = random.Random(seed), list(correct)
    aside = out.with_name(f".{out.name}.{os.getpid()}")

    def examples(update: int) -> list[tuple[Row, str]]:
        drawn = stream.choices(solved, k=SEQUENCES)
        return [(rows[uid], stream.choice(correct[uid]) + END) for uid in drawn]

    train_supervised(
        start,
        aside,
        examples,
        num_updates=num_updates,
        seed=seed,
        trainer=TrainerConfig(learning_rate=LEARNING_RATE, packing=False, micro_batch_tokens=4096),
        name=f"control, seed {seed}",
    )
    os.replace(aside, out)


def fine_tune_apart(
    start: Path, out: Path, samples: Path, prompts: Sequence[Path], *, updates: int, seed: int
) -> None:
    """`fine_tune` in a process of its own, because a process holds one engine."""
    words = [start, out, samples, updates, seed, *prompts]
    subprocess.run([sys.executable, "-m", "experiments.boundary.arms", *map(str, words)], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("start", "out", "samples"):
        parser.add_argument(name, type=Path)
    parser.add_argument("updates", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("prompts", type=Path, nargs="+")
    options = parser.parse_args()
    environment.prepare()
    fine_tune(
        options.start,
        options.out,
        options.samples,
        options.prompts,
        num_updates=options.updates,
        seed=options.seed,
    )
