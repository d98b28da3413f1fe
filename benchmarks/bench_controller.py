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
from pathlib import Path
from typing import Any

from training_runs import UNCLAMPED, Panel, Records, build_tiny_policy, draw, train

from nemo_prorl.config import RewardConfig
from nemo_prorl.reward_service import reward_service

SETTING = (
    *UNCLAMPED,
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
"""Options of both arms: patience and cool-down for a run of dozens of steps, and min_delta of two standard errors (at
most 0.0156 with 1,024 rollouts)."""
ARMS = {"with": "controller.mode=automatic", "without": "controller.mode=manual"}
COLOURS = ("#b0413e", "#3f6fa3")
PANELS = (
    Panel(metric="validation/reward", title="held-out reward"),
    Panel(metric="objective/kl_to_reference", title="KL to the reference (nats a token)"),
)


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
    build_tiny_policy()
    runs: dict[str, dict[int, Records]] = {arm: {} for arm in ARMS}
    with reward_service(RewardConfig(), options.out) as url:
        for seed in options.seeds:
            for arm in ARMS:
                overrides = [*SETTING, *CONTROLLER, ARMS[arm], f"seed={seed}"]
                overrides.append(f"trainer.num_steps={options.steps}")
                runs[arm][seed] = train(options.out / f"{arm}-{seed}", url, overrides)
    numbers = {arm: {seed: summary(records) for seed, records in of.items()} for arm, of in runs.items()}
    (options.out / "controller.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    drawn = {f"{arm} controller": list(of.values()) for arm, of in runs.items()}
    title = "The tiny policy with KL weight 3; a dot is a reset by the controller"
    draw(options.out / "controller.png", title, PANELS, drawn, COLOURS)
    report(numbers)


def summary(records: Records) -> dict[str, Any]:
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


if __name__ == "__main__":
    main()
