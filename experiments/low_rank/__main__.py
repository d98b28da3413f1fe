"""Trains a small pretrained model with several ranks and with all weights, with and without a KL weight and resets.

    make experiment NAME=low_rank ARGS="--model DIR"    # DIR: karpathy/tinyllamas' stories260K in Hugging Face format

The task is that of conf/stories.yaml. Finished runs are not repeated. After each run the table of all is printed, and
results.json in the output folder has its numbers; ../low_rank.md discusses them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.runs import Records, points, reset_steps, train
from experiments.findings.stories_prompts import write_prompts
from experiments.findings.stories_text import PROMPTS
from nemo_prorl.config import RewardConfig
from nemo_prorl.reward_sources.service import reward_service
from nemo_prorl.run_folder.storage import replace_text

RANKS, KL_WEIGHTS = (8, 0, 1, 64), ("0.1", "0")
RATES = {0: "3e-4"}
"""Rank -> learning rate, if not that of the factors."""
FACTORS_RATE = "1e-3"
RESETS = {
    "off": ("controller.mode=manual",),
    "on": ("controller.mode=interval", "controller.interval=8"),
}
SETTING = ("trainer.num_steps=24", "validation.interval=8", "exp_manager.create_checkpoint_callback=false")
ARMS = {
    f"kl{kl}-r{rank}-{resets}": (
        f"lora.rank={rank}",
        f"trainer.learning_rate={RATES.get(rank, FACTORS_RATE)}",
        f"algorithm.kl_beta={kl}",
        *overrides,
    )
    for kl in KL_WEIGHTS
    for rank in RANKS
    for resets, overrides in RESETS.items()
}
"""Name of an arm -> its overrides."""


def main() -> None:
    """Trains all arms of one seed before the next seed, so that an interrupted study still compares them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/low_rank"))
    options = parser.parse_args()
    write_prompts(PROMPTS)
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    with reward_service(RewardConfig(), options.out) as url:
        for seed in options.seeds:
            for arm, overrides in ARMS.items():
                folder = options.out / f"s{seed}-{arm}"
                own = [*SETTING, f"seed={seed}", f"model.path={options.model}", *overrides]
                records = train(folder, url, own, config_name="stories")
                results.setdefault(arm, {})[str(seed)] = summary(records)
                replace_text(options.out / "results.json", json.dumps(results, indent=1) + "\n")
                print("", *table(results), sep="\n", flush=True)


def summary(records: Records) -> dict[str, Any]:
    """Returns what the table says of a run. kl: to the reference at sampling in the last step, before a reset that
    follows it, in nats per token; None where the reference is not computed."""
    kl = list(points(records, "objective/kl_to_reference").values())
    return {
        "held_out": [round(value, 3) for value in points(records, "validation/score").values()],
        "kl": round(kl[-1], 3) if kl else None,
        "resets": len(reset_steps(records)),
        "step_s": round(statistics.median(points(records, "time/step_s").values()), 1),
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a Markdown table of arm -> seed -> summary."""
    lines = ["| KL weight | trained | resets | seed | held-out reward at steps 0, 8, 16, 24 | last KL | seconds a step |"]
    lines.append("|---|---|---|---|---|---|---|")
    for arm, runs in results.items():
        weight, rank, _ = arm.split("-")
        trained = "all weights" if rank == "r0" else f"rank {rank[1:]}"
        for seed, run in runs.items():
            held_out = ", ".join(f"{value:.3f}" for value in run["held_out"])
            kl = "" if run["kl"] is None else f"{run['kl']:.3f}"
            cells = (weight[2:], trained, str(run["resets"]), seed, held_out, kl, f"{run['step_s']:.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
