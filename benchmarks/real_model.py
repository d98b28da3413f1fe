"""Trains a real language model on one GPU for some minutes: does it learn there, and how fast is a step?

    python -m benchmarks.real_model runs/smollm2/model [--minutes 8] [--out FOLDER] [--dry-run] [KEY=VALUE ...]

The task is that of `make demo-llm`, with 16 prompts x 16 rollouts of up to 512 tokens a step, in bf16 and with
Transformer Engine. Needs no network. Prints the held-out reward over the steps, where the seconds went, and how far
sampler and trainer differ; writes real_model.json and real_model.png into the folder. The same command continues an
interrupted run. --dry-run makes two small steps on a CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.runs import Panel, Records, draw, points
from nemo_prorl.cluster import local_ranks
from nemo_prorl.config.compose import quoted
from nemo_prorl.demo.language import TRAIN_FILES, write_prompts
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.run import PHASES
from nemo_prorl.run_folder.storage import replace_text

HELD_OUT = "validation/score"
ON_GPU = (
    "trainer.device=cuda",
    "trainer.num_steps=100000",  # the time ends it
    "trainer.micro_batch_tokens=32768",
    "model.precision=bf16",
    "model.layer_spec=transformer_engine",
    "sampler.num_rollouts=16",
    "sampler.max_response_tokens=512",
    "sampler.memory_fraction=0.4",
    "sampler.release_memory=false",  # policy and sampler fit beside each other
    "validation.interval=10",
    "validation.early=true",
)
DRY_RUN = (
    "trainer.device=cpu",
    "trainer.num_steps=2",
    "trainer.prompts_per_step=4",
    "sampler.num_rollouts=4",
    "sampler.max_response_tokens=32",
    "sampler.kv_cache_mib=64",
    "dynamic_sampling.enabled=false",  # so few rollouts may all be wrong
    "validation.interval=1",
    "validation.max_prompts=8",
    "validation.num_rollouts=1",
)
PANELS = (
    Panel(metric=HELD_OUT, title="held-out reward"),
    Panel(metric="reward/mean", title="reward of training"),
    Panel(metric="objective/entropy", title="entropy, nats a token"),
)
BAR = 40
"""Columns of a reward of 1."""


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="Hugging Face folder of the model")
    parser.add_argument("--minutes", type=int, default=8, help="of training, with its start (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("runs/real_model"))
    parser.add_argument("--dry-run", action="store_true", help="makes two small steps on a CPU")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of the run")
    return parser


def main() -> int:
    """Trains, prints and draws. Returns the exit code of the training."""
    options = arguments().parse_intermixed_args()
    data, run = options.out / "data", options.out / "run"
    write_prompts(data)
    files = ", ".join(f"{quoted(str(data / name))}: 1" for name in TRAIN_FILES)
    code = local_ranks.run_ranks(
        [
            *("nemo_prorl", "train", "--config-name", "smollm2"),
            f"model.path={quoted(str(options.model))}",
            f"data.train={{{files}}}",
            f"data.validation=[{quoted(str(data / 'validation.parquet'))}]",
            f"exp_manager.explicit_log_dir={quoted(str(run))}",
            f"exp_manager.max_time_per_run='00:{options.minutes // 60:02}:{options.minutes % 60:02}:00'",
            *(DRY_RUN if options.dry_run else ON_GPU),
            *options.overrides,
        ]
    )
    if code:
        return code
    records = read_metrics(run / "metrics.jsonl")
    summary = summarise(records)
    replace_text(options.out / "real_model.json", json.dumps(summary, indent=1) + "\n")
    draw(options.out / "real_model.png", "A real model", PANELS, {options.model.resolve().name: [records]})
    print("\n".join(lines(summary)))
    print(f"\n{options.out / 'real_model.json'}, {options.out / 'real_model.png'}")
    return 0


def summarise(records: Records) -> dict[str, Any]:
    """Returns the held-out reward by step, and medians of the steps after the first, which warms up."""
    steps = [record for record in records if "reward/mean" in record][1:]

    def median(key: str) -> float:
        return round(statistics.median(step.get(key, 0.0) for step in steps), 6)

    keys = (
        "time/step_s", *PHASES, "throughput/tokens_per_s", "response/tokens_mean", "objective/entropy",
        "sampler/logprob_abs_diff_mean", "sampler/logprob_abs_diff_max", "objective/ratio_max", "optimizer/grad_norm",
    )  # fmt: skip
    return {
        "num_steps": len(steps) + 1,
        "held_out": {int(step): round(value, 4) for step, value in points(records, HELD_OUT).items()},
        "medians": {key: median(key) for key in keys},
    }


def lines(summary: dict[str, Any]) -> Sequence[str]:
    """Returns the curve and the medians, in at most 80 columns."""
    curve = [
        f"{step:>6}  {value:.3f}  {'#' * round(BAR * value)}" for step, value in summary["held_out"].items()
    ]
    medians = [f"{PHASES.get(key, key):<34}{value:>12.5g}" for key, value in summary["medians"].items()]
    return [
        "",
        "  step  held-out reward",
        *curve,
        "",
        f"medians of {summary['num_steps'] - 1} steps",
        *medians,
    ]


if __name__ == "__main__":
    sys.exit(main())
