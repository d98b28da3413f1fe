"""Trains the demo's policy to two plateaus and compares what helps from there, arm by arm.

    make experiment NAME=beyond    # [ARGS="--only held --seeds 1 --jobs 1"]

One plateau is reached because a KL weight of 3 holds the policy at its reference, the other because few problems are
left that teach. From the checkpoint of each `fork` trains the arms; those of begun answers are made by `data build begun` from
the rollouts that the run recorded. Finished runs are not repeated. After each seed the tables are printed, and results.json and
beyond.png are written into the output folder; ../beyond.md discusses them.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.runs import Records, build_tiny_policy, points, train, with_rollouts
from nemo_prorl.algorithm.pass_at_k import pass_at_k
from nemo_prorl.config import RewardConfig
from nemo_prorl.data.rows import write_rows
from nemo_prorl.demo import build, tasks
from nemo_prorl.questions.arms import GOES_ON
from nemo_prorl.questions.paired import gain
from nemo_prorl.reward_sources.service import reward_service
from nemo_prorl.run_folder.difficulty import read_rewards
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.storage import replace_text

LEVELS = [(name, size) for name, sizes in {"sum": (3, 4, 5, 6, 7, 8, 10), "legs": range(1, 7), "sort": range(3, 9)}.items()
          for size in sizes]  # fmt: skip
"""Sizes from those that the base policy solves to those that the demo's training does not reach."""
NUM_TRAIN, NUM_HELD_OUT = 5, 6
"""Problems of a level."""
K = 16
"""Samples of each held-out problem."""
SETTING = (
    "trainer.prompts_per_step=8",
    "trainer.updates_per_step=2",
    "validation.early=false",
    f"validation.num_rollouts={K}",
)
UNTIL_STILL = (
    "trainer.num_steps=96",
    "validation.interval=6",
    "controller.mode=automatic",
    "controller.cooldown=0",
    "controller.validation_plateau=end_stage",
    "controller.patience.validation_plateau=3",
    *(
        f"controller.{watch}=ignore"
        for watch in ("validation_drop", "kl_spike", "response_length", "no_eos", "entropy_collapse", "entropy_runaway")
    ),
)
"""The stage `learn`: it ends by itself after three validations without a new best."""
ONE_EPOCH = ("trainer.num_steps=12", "validation.interval=0", "exp_manager.record_rollouts=1")
"""The stage `still`, which goes on: the plateau has to last, and the rollouts of its end are recorded."""
RESETS = {
    "nothing": "",
    "hard reset": "stage.reset_reference=true stage.reset_optimizer=true",
    "reference": "stage.reset_reference=true",
    "moments": "stage.reset_optimizer=true",
}
OTHERS = {
    "difficulty": "data.mix=difficulty",
    "failures": "",
    "successes": "",
    "2x rollouts": "sampler.num_rollouts=32 trainer.prompts_per_step=4",
    "4x rollouts": "sampler.num_rollouts=64 trainer.prompts_per_step=2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """How a plateau is reached, and what is tried from it: title -> what differs."""

    overrides: Sequence[str]
    arms: Mapping[str, str]


PLATEAUS = {
    "held": Plateau(overrides=("algorithm.kl_beta=3",), arms=RESETS),
    "used up": Plateau(overrides=(), arms={**RESETS, **OTHERS}),
}


def main() -> None:
    """Trains all arms of one seed before the next seed, so that an interrupted study still compares them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PLATEAUS, default=list(PLATEAUS))
    parser.add_argument("--arms", nargs="+", help="only these, and nothing (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="of each arm")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, of one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/beyond"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of all runs")
    options = parser.parse_intermixed_args()
    out: Path = options.out
    write_problems(out)
    with reward_service(RewardConfig(), out) as url:
        runs = {
            name: reach(PLATEAUS[name], out / name.replace(" ", "_"), out, url, options.overrides)
            for name in options.only
        }
        for num_seeds, name in product(range(1, options.seeds + 1), options.only):
            arms = {
                arm: overrides
                for arm, overrides in PLATEAUS[name].arms.items()
                if arm == "nothing" or arm in (options.arms or PLATEAUS[name].arms)
            }
            continue_from(runs[name], arms, num_seeds, options.steps, url, options.jobs)
            results = {each: measure(run) for each, run in runs.items() if (run / "forks").is_dir()}
            replace_text(out / "results.json", json.dumps(results) + "\n")
            draw(out / "beyond.png", results)
            print("", *table(results), sep="\n", flush=True)


def write_problems(out: Path) -> None:
    """Writes train.parquet and held_out.parquet, which have no problem in common."""
    build_tiny_policy()
    train, held_out = [], []
    for name, size in LEVELS:
        kept = build.held_out(name, size)
        held_out += kept[:NUM_HELD_OUT]
        train += tasks.problems(name, size, count=NUM_TRAIN, split="train", exclude=build.questions(kept))
    random.Random(1).shuffle(train)
    for part, rows in (("train", train), ("held_out", held_out)):
        if not (out / f"{part}.parquet").is_file():
            write_rows(out / f"{part}.parquet", rows)


def reach(plateau: Plateau, run: Path, data: Path, url: str, overrides: Sequence[str]) -> Path:
    """Trains the stages `learn` and `still`, unless the folder has them. Returns the folder."""
    common = [f"data.train=[{data}/train.parquet]", f"data.validation=[{data}/held_out.parquet]"]
    common += [*SETTING, *plateau.overrides]
    train(run, url, ["stage.name=learn", *common, *UNTIL_STILL, *overrides], stage="learn")
    child = ["stage.name=still", "stage.parent=learn", *GOES_ON]
    train(run, url, [*child, *common, *ONE_EPOCH, *overrides], stage="still")
    return run


def begun(run: Path, kind: str) -> str:
    """Builds the rows that begin with recorded answers, unless they are there, and returns what adds them to an arm's
    problems: every second prompt is one of them."""
    folder = run / "begun"
    path = folder / f"begun_{kind}" / "train.parquet"
    if not path.is_file():
        words = ["data", "build", "begun", f"run={run}", f"prefixes={kind}", f"out={folder}"]
        subprocess.run([sys.executable, "-m", "nemo_prorl", *words], check=True)
    return f"'data.train={{{run.parent}/train.parquet: 1, {path}: 1}}'"


def continue_from(
    run: Path, arms: Mapping[str, str], num_seeds: int, num_steps: int, url: str, jobs: int
) -> None:
    """Trains the arms, several at a time, in the folders that `fork` makes."""
    words = ["fork", str(run), f"--at={last_step(run)}", f"--steps={num_steps}", f"--seeds={num_seeds}", "--prepare"]
    for arm, overrides in arms.items():
        own = begun(run, arm) if arm in ("failures", "successes") else overrides
        words += ["--arm", f"{folder_name(arm)}: {own}"]
    words += ["validation.interval=0", "exp_manager.record_rollouts=0"]
    words += ["exp_manager.checkpoint_callback_params.every_n_train_steps=0"]
    command = [sys.executable, "-m", "nemo_prorl", *words]
    lines = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()
    commands = [shlex.split(line)[1:] for line in lines if " train " in line]

    def run_one(words: list[str]) -> None:
        print(words[-1], flush=True)
        with Path(words[-1]).with_name("output.txt").open("w") as output:
            subprocess.run([sys.executable, *words, f"reward.urls=[{url}]"], check=True, stdout=output, stderr=output)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run_one, commands))


def folder_name(arm: str) -> str:
    return arm.replace(" ", "_")


def last_step(run: Path) -> int:
    return max(record["step"] for record in read_metrics(run / "metrics.jsonl"))


def measure(run: Path) -> dict[str, Any]:
    """Returns the run's curve, and by arm and seed how many of the K samples of each problem were right at the beginning and
    the end, and what the training took."""
    curve = points(read_metrics(run / "metrics.jsonl"), "validation/score")
    found: dict[str, Any] = {"curve": curve, "problems": [], "arms": {}}
    (folder,) = (run / "forks").iterdir()
    for arm, own in product([folder_name(arm) for arm in {**RESETS, **OTHERS}], sorted(folder.iterdir())):
        if not (own / f"stages/{arm}.done").is_file():
            continue
        records = with_rollouts(read_metrics(own / "metrics.jsonl"))
        validated = [one["step"] for one in records if one["stage"] == arm and "validation/score" in one]
        rates = [read_rewards(own, arm, step, "pass_rate") for step in (validated[0], validated[-1])]
        found["problems"] = sorted(rates[0])
        seed = own.name.rpartition("-")[2]
        found["arms"].setdefault(arm, {})[seed] = {
            "right": [[round(K * of[uid]) for uid in found["problems"]] for of in rates],
            **summary([one for one in records if one["stage"] == arm and "reward/mean" in one], records),
        }
    return found


def summary(steps: Records, records: Records) -> dict[str, Any]:
    """Returns the number of rollouts that the arm sampled, and means over its last three steps."""
    before = next(one for one in reversed(records) if one["step"] == steps[0]["step"] - 1)
    last = {name: round(fmean(one[key] for one in steps[-3:]), 4) for name, key in (
        ("kl", "objective/kl_to_reference"), ("entropy", "objective/entropy"), ("informative", "dynamic_sampling/informative_share"))}  # fmt: skip
    return {"steps": len(steps), "rollouts": steps[-1]["num_rollouts"] - before["num_rollouts"], **last}


def values(plateau: Mapping[str, Any], arm: str, k: int, *, new: bool = False) -> dict[int, dict[str, float]]:
    """Returns seed -> problem -> pass@k at the arm's end. new: only of the problems that no sample solved before, of any
    seed."""
    arms, problems = plateau["arms"], plateau["problems"]
    solved = {uid for of_seed in arms["nothing"].values() for uid, n in zip(problems, of_seed["right"][0]) if n}
    return {
        int(seed): {
            uid: pass_at_k(K, right, k)
            for uid, right in zip(problems, one["right"][1], strict=True)
            if not new or uid not in solved
        }
        for seed, one in arms[arm].items()
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a Markdown table of each plateau's arms: means over seeds, paired differences to `nothing` with 95 % intervals
    over seeds, and the problems never solved before that are solved now, by seed."""
    lines = []
    for name, plateau in results.items():
        num_new = len(next(iter(values(plateau, "nothing", K, new=True).values())))
        lines += ["", f"| {name}: arm | pass@1 | against nothing | pass@{K} | against nothing | of {num_new} never solved before | "
                  "rollouts | KL, entropy |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
        for arm, seeds in plateau["arms"].items():
            cells = [arm.replace("_", " ")]
            for k in (1, K):
                ours = values(plateau, arm, k)
                cells.append(f"{fmean(fmean(of.values()) for of in ours.values()):.3f}")
                cells.append(difference(plateau, arm, k) if arm != "nothing" else "")
            cells.append(", ".join(f"{sum(of.values()):.0f}" for of in values(plateau, arm, K, new=True).values()))
            cells.append(f"{fmean(one['rollouts'] for one in seeds.values()):,.0f}")
            kl, entropy = (fmean(one[key] for one in seeds.values()) for key in ("kl", "entropy"))
            lines.append(f"| {' | '.join(cells)} | {kl:.3f}, {entropy:.3f} |")
    return lines[1:]


def difference(plateau: Mapping[str, Any], arm: str, k: int) -> str:
    found = gain(values(plateau, arm, k), values(plateau, "nothing", k))
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def draw(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws a row for each plateau: how it was reached, and each arm's differences to `nothing`, with a dot a seed."""
    import matplotlib as mpl
    import matplotlib.ticker

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    heights = [1.1 + 0.22 * len(plateau["arms"]) for plateau in results.values()]
    figure, grid = plt.subplots(
        len(results), 3, figsize=(8.3, sum(heights)), squeeze=False, layout="constrained",
        gridspec_kw={"height_ratios": heights, "width_ratios": [1.1, 1, 1]},
    )  # fmt: skip
    for (name, plateau), axes in zip(results.items(), grid, strict=True):
        curve = {int(step): value for step, value in plateau["curve"].items()}
        axes[0].plot(curve.keys(), curve.values(), "o-", color="#3f6fa3", markersize=3)
        axes[0].set(title=f"{name}: held-out reward", ylim=(0, 1.1 * max(curve.values())))
        axes[0].set_xlabel("step", fontsize=8)
        arms = [arm for arm in plateau["arms"] if arm != "nothing"]
        for axis, k in zip(axes[1:], (1, K), strict=True):
            base = values(plateau, "nothing", k)
            for place, arm in enumerate(arms):
                found = gain(values(plateau, arm, k), base)
                axis.plot([found.low, found.high], [place, place], color="#b0413e", linewidth=1.5)
                ours = values(plateau, arm, k)
                seeds = [fmean(ours[seed].values()) - fmean(base[seed].values()) for seed in ours.keys() & base.keys()]
                axis.plot(seeds, [place] * len(seeds), "o", color="#b0413e", markersize=3, alpha=0.6)
            axis.axvline(0, color="#8a8a8a", linewidth=0.8)
            axis.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
            axis.set(title=f"pass@{k} against nothing", ylim=(len(arms) - 0.5, -0.5))
            axis.set_yticks(range(len(arms)), [arm.replace("_", " ") for arm in arms] if k == 1 else [""] * len(arms))
        for axis in axes:
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
            axis.title.set_fontsize(9)
            axis.tick_params(labelsize=8)
    figure.savefig(path, dpi=200)
    plt.close(figure)


if __name__ == "__main__":
    main()
