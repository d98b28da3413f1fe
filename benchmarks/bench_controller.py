"""What the reset controller does for a run that its own reference holds back: the tiny policy with and without it.

    .venv/bin/python benchmarks/bench_controller.py [--seeds 1 2 3] [--steps 32] [--out runs/bench_controller]

The KL weight is 3 instead of 1e-4, which stops progress a few steps after every reset: a real plateau, though one that
was made on purpose. Both arms are the same command but for controller.mode. Runs that are finished are not run again.
Writes controller.png and controller.json into the folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from nemo_prorl.config import RewardConfig  # noqa: E402
from nemo_prorl.demo import BASE  # noqa: E402
from nemo_prorl.reward_service import reward_service  # noqa: E402
from nemo_prorl.training.telemetry import read_metrics  # noqa: E402

SETTING = (
    "algorithm.kl_beta=3",
    "trainer.prompts_per_step=16",
    "validation.interval=4",
    "validation.max_prompts=32",
    "exp_manager.checkpoint_callback_params.every_n_train_steps=0",
)
CONTROLLER = (
    "controller.cooldown=8",
    "controller.validation_plateau.patience=2",
    "controller.validation_plateau.min_delta=0.03",
)
"""Of both arms: patience and cool-down for a run of dozens of steps, and min_delta at two standard errors (at most
0.0156, of 1,024 rollouts)."""
ARMS = {"with": "controller.mode=automatic", "without": "controller.mode=manual"}
COLOURS = {"with": "#b0413e", "without": "#3f6fa3"}


def main() -> None:
    """Seed by seed, both arms in turn, so that an interrupted benchmark still compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/bench_controller"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not (BASE / "policy").is_dir():
        subprocess.run([sys.executable, "-m", "nemo_prorl.demo.build", str(BASE)], check=True)
    runs: dict[str, dict[int, list[dict[str, Any]]]] = {arm: {} for arm in ARMS}
    with reward_service(RewardConfig(), options.out) as url:
        for seed in options.seeds:
            for arm in ARMS:
                folder = options.out / f"{arm}-{seed}"
                train(folder, url, ARMS[arm], seed, options.steps)
                runs[arm][seed] = read_metrics(folder / "metrics.jsonl")
    numbers = {arm: {seed: summary(records) for seed, records in of.items()} for arm, of in runs.items()}
    (options.out / "controller.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    draw(runs, options.out / "controller.png")
    report(numbers)


def train(folder: Path, url: str, mode: str, seed: int, steps: int) -> None:
    """One stage, in a process of its own; says so itself when it is done already."""
    command = [sys.executable, "-m", "nemo_prorl", "train", "--config-name", "laptop", *SETTING, *CONTROLLER]
    command += [mode, f"seed={seed}", f"trainer.num_steps={steps}", f"reward.urls=[{url}]"]
    subprocess.run([*command, f"exp_manager.explicit_log_dir={folder}"], check=True)


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """First, best and last validation, and every decision."""
    rewards = [record["validation/reward"] for record in records if "validation/reward" in record]
    decisions = [{"step": r["step"], **r["controller"]} for r in records if "controller" in r]
    return {"first": rewards[0], "best": max(rewards), "last": rewards[-1], "decisions": decisions}


def report(numbers: dict[str, dict[int, dict[str, Any]]]) -> None:
    """As a table."""
    print(f"\n{'arm':<9}{'seed':>5}{'first':>8}{'best':>8}{'last':>8}  resets after step")
    for arm, of in numbers.items():
        for seed, run in of.items():
            steps = ", ".join(str(decision["step"]) for decision in run["decisions"]) or "none"
            print(f"{arm:<9}{seed:>5}{run['first']:>8.3f}{run['best']:>8.3f}{run['last']:>8.3f}  {steps}")
        print(f"{arm:<9}{'mean':>5}{'':>16}{statistics.fmean(run['last'] for run in of.values()):>8.3f}")


def draw(runs: dict[str, dict[int, list[dict[str, Any]]]], path: Path) -> None:
    """Held-out reward and KL over steps, one line a run; a dot where a run was reset."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    panels = (
        ("validation/reward", "held-out reward"),
        ("objective/kl_to_reference", "KL to the reference (nats a token)"),
    )
    for axis, (key, title) in zip(axes, panels, strict=True):
        for arm, of in runs.items():
            for number, (seed, records) in enumerate(of.items()):
                points = {record["step"]: record[key] for record in records if key in record}
                style = {"color": COLOURS[arm], "linewidth": 1.5, "alpha": 1 - 0.2 * number}
                axis.plot(points.keys(), points.values(), **style, label=f"{arm} controller, seed {seed}")
                resets = [r["step"] for r in records if r.get("controller", {}).get("action") == "reset"]
                marks = [points[step] for step in resets]
                axis.plot(resets, marks, "o", color=COLOURS[arm], markersize=6)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle("The tiny policy with KL weight 3; a dot is a reset by the controller", fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
