"""Trains SmolLM2-135M-Instruct with two KL weights, with all weights and with low rank, with and without a reset.

    make experiment NAME=real_model [ARGS="--seeds 1 --arms all-1e-4"]

The task is that of `make demo-llm`, with half of its prompts a step. The arms of a seed come before the next seed;
finished runs are not repeated, so an interrupted study goes on. Of the arm with the larger KL weight, two continuations
of the last checkpoint are compared, one of which begins with a hard reset (`fork`). After each run the table of all is
printed, and results.json in the output folder has its numbers; ../real_model.md discusses them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.runs import Records, points, train
from nemo_prorl.config import RewardConfig
from nemo_prorl.demo import language
from nemo_prorl.demo.language_tasks import HELD_OUT_TOPICS
from nemo_prorl.cluster import local_ranks
from nemo_prorl.reward_sources.service import reward_service
from nemo_prorl.run_folder.storage import step_files
from nemo_prorl.run_folder.storage import replace_text
from nemo_prorl.run_folder.metrics_file import read_metrics

NUM_STEPS, FORK_STEPS = 24, 12
SETTING = (
    f"trainer.num_steps={NUM_STEPS}",
    "trainer.prompts_per_step=8",
    "validation.interval=6",
    "validation.num_kept=288",  # all
    f"exp_manager.checkpoint_callback_params.every_n_train_steps={NUM_STEPS}",
    "exp_manager.checkpoint_callback_params.save_last_k=1",
)
ARMS = {
    "all-1e-4": (),
    "all-1e-2": ("algorithm.kl_beta=1e-2",),
    "rank16-1e-4": ("lora.rank=16", "trainer.learning_rate=2e-4"),
    "rank16-1e-2": ("lora.rank=16", "trainer.learning_rate=2e-4", "algorithm.kl_beta=1e-2"),
}
"""What is trained and the KL weight -> overrides of conf/smollm2.yaml."""
FORKED = "all-1e-2"
FORK_ARMS = {"on": "", "reset": "stage.reset_reference=true stage.reset_optimizer=true"}
"""Continuations of its last checkpoint."""


def main() -> None:
    """Trains all arms of one seed before the next seed, so that an interrupted study still compares them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--no-fork", action="store_true", help="leaves the reset out")
    parser.add_argument("--out", type=Path, default=Path("runs/real_model_study"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of all arms")
    options = parser.parse_args()
    language.build()
    options.out.mkdir(parents=True, exist_ok=True)
    found = options.out / "results.json"
    results: dict[str, dict[str, Any]] = json.loads(found.read_text()) if found.is_file() else {}
    with reward_service(RewardConfig(), options.out) as url:
        for seed in options.seeds:
            for arm in options.arms:
                folder = options.out / f"s{seed}-{arm}"
                own = [*SETTING, f"seed={seed}", *ARMS[arm], *options.overrides]
                records = train(folder, url, own, config_name="smollm2", num_ranks=language.NUM_RANKS)
                results.setdefault(arm, {})[str(seed)] = summary(records, folder)
                if arm == FORKED and not options.no_fork:
                    for name, of_fork in fork(folder, url).items():
                        results.setdefault(f"{arm}, {name}", {})[str(seed)] = of_fork
                replace_text(found, json.dumps(results, indent=1) + "\n")
                print("", *table(results), sep="\n", flush=True)


def fork(folder: Path, url: str) -> dict[str, dict[str, Any]]:
    """Trains both continuations of a run's last checkpoint, and returns the summary of each."""
    last = max(record["step"] for record in read_metrics(folder / "metrics.jsonl"))
    words = ["fork", str(folder), "--at", str(last), "--steps", str(FORK_STEPS)]
    words += [f"--arm={name}: {overrides}" for name, overrides in FORK_ARMS.items()]
    words += ["--ranks", str(language.NUM_RANKS), f"reward.urls=[{url}]"]
    if code := local_ranks.run_ranks(["nemo_prorl", *words]):
        sys.exit(code)
    found = {}
    for name in FORK_ARMS:
        (run,) = folder.glob(f"forks/{last}/{name}-*/")
        found[name] = summary(read_metrics(run / "metrics.jsonl"), run)
    return found


def summary(records: Records, run: Path) -> dict[str, Any]:
    """Returns what the table says of a run. Texts are those of its first and last validation."""
    steps = [record for record in records if "reward/mean" in record]
    files = [path for _, path in step_files(run, "samples").all()]

    def ends(metric: str) -> list[float]:
        values = [step[metric] for step in steps if metric in step]
        return [round(statistics.fmean(part), 3) for part in (values[:3], values[-3:]) if part]

    return {
        "held_out": {int(step): round(v, 3) for step, v in points(records, "validation/score").items()},
        "kl": ends("objective/kl_to_reference")[-1:],
        "entropy": ends("objective/entropy"),
        "length": ends("response/tokens_mean"),
        "on_topic": [round(on_topic(read_metrics(path)), 3) for path in (files[0], files[-1])],
        "step_s": round(statistics.median(step["time/step_s"] for step in steps), 1),
    }


def on_topic(samples: Sequence[Mapping[str, Any]]) -> float:
    """Returns the share of responses to instructions that name their topic."""
    named = [
        topic.split()[-1].rstrip("s") in sample["response"].lower()
        for sample in samples
        for topic in HELD_OUT_TOPICS
        if f"about {topic}." in sample["prompt"]
    ]
    return statistics.fmean(named)


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a Markdown table of arm -> seed -> summary."""
    lines = [
        "| trained, KL weight | seed | held-out reward after steps | KL | entropy | tokens | on topic | s a step |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def arrow(values: Sequence[float], form: str) -> str:
        return " → ".join(format(value, form) for value in values)

    for arm, runs in results.items():
        for seed, run in sorted(runs.items()):
            held_out = ", ".join(f"{step}: {value:.3f}" for step, value in run["held_out"].items())
            cells = (
                arm, seed, held_out, arrow(run["kl"], ".3f"), arrow(run["entropy"], ".2f"),
                arrow(run["length"], ".0f"), arrow(run["on_topic"], ".2f"), f"{run['step_s']:.0f}",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
