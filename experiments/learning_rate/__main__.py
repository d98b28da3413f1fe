"""Trains models of several sizes with the steps of conf/small_cpu.yaml, at learning rates far below to far above the one
that trainer.learning_rate=0 chooses.

    make experiment NAME=learning_rate ARGS="--only 0.6M 135M"
    make experiment NAME=learning_rate ARGS="--stories DIR"    # DIR: karpathy/tinyllamas' stories260K in Hugging Face format

0.4M is stories260K on the task of conf/stories.yaml, 0.6M the demo's policy on its puzzles, 135M SmolLM2 on the tasks of
`make demo-llm`. Finished runs are not repeated. After each run the table of all is printed, and results.json in the output
folder has its numbers; ../learning_rate.md discusses them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs import Records, build_tiny_policy, points, train
from experiments.findings.stories_prompts import write_prompts
from experiments.findings.stories_text import PROMPTS
from nemo_prorl.config import RewardConfig
from nemo_prorl.demo import build, language
from nemo_prorl.reward_sources.service import reward_service
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.storage import replace_text

STEPS = ("exp_manager.create_checkpoint_callback=false", "validation.temperature=1.0", "validation.top_p=1.0")
TINY = (
    *STEPS,
    "data.train=[runs/tiny/data/train-1.parquet]",
    "data.validation=[runs/tiny/data/validation.parquet]",
    "trainer.num_steps=60",
    "validation.interval=30",
    "validation.max_prompts=64",
    "sampler.max_response_tokens=96",
)
STORIES = (
    *STEPS,
    f"data.train=[{PROMPTS}/openings.train.parquet]",
    f"data.validation=[{PROMPTS}/openings.held_out.parquet]",
    "trainer.num_steps=60",
    "validation.interval=30",
    "validation.max_prompts=32",
    "sampler.max_response_tokens=96",
)
SMOLLM2 = (*STEPS, "trainer.prompts_per_step=4", "trainer.num_steps=16", "validation.interval=8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, what it is trained on, and the rates that are tried."""

    rates: Sequence[str]
    overrides: Sequence[str]
    config_name: str = "small_cpu"
    num_ranks: int = 1


MODELS = {
    "0.4M": Model(rates=("1e-4", "2e-6", "8e-4", "5e-5", "2e-4", "1e-5"), overrides=STORIES),
    "0.6M": Model(rates=("1e-4", "2e-6", "8e-4", "5e-5", "2e-4", "1e-5"), overrides=TINY),
    "0.6M rank 8": Model(rates=("4e-4", "8e-4", "3e-3", "5e-5"), overrides=(*TINY, "lora.rank=8")),
    "135M": Model(
        rates=("7e-6", "5e-5", "2e-6"),
        config_name="smollm2",
        overrides=SMOLLM2,
        num_ranks=language.NUM_RANKS,
    ),
}
"""Name -> model. The first rate is the rule's, with one digit."""


def main() -> None:
    """Trains all models and rates of one seed before the next seed, so that an interrupted study still compares them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--stories", type=Path, metavar="DIR", help="the model that 0.4M stands for")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rates", nargs="+", default=[], help="only these rates")
    parser.add_argument("--out", type=Path, default=Path("runs/learning_rate"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of all runs")
    options = parser.parse_intermixed_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = options.out / "results.json"
    results: dict[str, dict[str, Any]] = json.loads(found.read_text()) if found.is_file() else {}
    folders = {name: model_folder(name, options.stories) for name in options.only}
    with reward_service(RewardConfig(), options.out) as url:
        for seed in options.seeds:
            for name in options.only:
                for rate in options.rates or MODELS[name].rates:
                    run = options.out / f"{name.replace(' ', '-')}-{rate}-s{seed}"
                    records = train_or_stop(MODELS[name], rate, seed, run, url, folders[name], options.overrides)
                    results.setdefault(name, {})[f"{rate}, seed {seed}"] = summary(records)
                    replace_text(found, json.dumps(results, indent=1) + "\n")
                    print("", *table(results), sep="\n", flush=True)


def model_folder(name: str, stories: Path | None) -> Path:
    """Returns the folder of a model, which is built with its prompts unless it is there."""
    if name == "0.4M":
        if stories is None:
            sys.exit("error: 0.4M needs --stories DIR.")
        write_prompts(PROMPTS)
        return stories
    if name == "135M":
        language.build()
        return language.BASE / "model"
    build_tiny_policy()
    return build.policy_folder(build.BASE)


def train_or_stop(
    model: Model, rate: str, seed: int, run: Path, url: str, folder: Path, overrides: Sequence[str]
) -> Records:
    """Returns the records of a run, which may have stopped because it found nothing to learn from."""
    own = [*model.overrides, f"model.path={folder}", f"seed={seed}", f"trainer.learning_rate={rate}", *overrides]
    try:
        return train(run, url, own, config_name=model.config_name, num_ranks=model.num_ranks)
    except SystemExit:
        if not any(run.glob("stages/*.failed")):
            raise
        return read_metrics(run / "metrics.jsonl")


def summary(records: Records) -> dict[str, Any]:
    """Returns what the table says of a run: held-out scores, entropy and pass rate as means of the first and the last
    three steps, and the KL to the start and the largest ratio of the last three."""
    steps = [record for record in records if "reward/mean" in record]

    def mean(metric: str, part: slice) -> float:
        return round(statistics.fmean(step[metric] for step in steps[part] if metric in step), 4)

    first, last = slice(0, 3), slice(-3, None)
    return {
        "steps": len(steps),
        "held_out": {int(step): round(v, 3) for step, v in points(records, "validation/score").items()},
        "pass_rate": [mean("reward/pass_rate", part) for part in (first, last)],
        "entropy": [mean("objective/entropy", part) for part in (first, last)],
        "kl": mean("objective/kl_to_reference", last),
        "ratio_max": round(statistics.median(step["objective/ratio_max"] for step in steps), 2),
        "step_s": round(statistics.median(step["time/step_s"] for step in steps), 1),
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a Markdown table of model -> rate and seed -> summary."""
    lines = [
        "| trained | rate, seed | steps | held-out score after steps | pass rate | entropy | KL | largest ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in results.items():
        for arm, run in runs.items():
            held_out = ", ".join(f"{step}: {value:.3f}" for step, value in run["held_out"].items())
            ends = [" → ".join(f"{value:.2f}" for value in run[metric]) for metric in ("pass_rate", "entropy")]
            cells = (name, arm, str(run["steps"]), held_out, *ends, f"{run['kl']:.2g}", f"{run['ratio_max']:.3g}")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
