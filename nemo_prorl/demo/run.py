"""`demo` and `demo-llm`: the recipe at small scale, with the commands that a cluster would run.

Measures the base policy, trains it with `train`, measures it again, and shows what it solves now. Every heavy part is a
separate command, printed before it runs, so that you can repeat and change it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.cluster.local_ranks import module_arguments, run_ranks
from nemo_prorl.config import RewardConfig
from nemo_prorl.config.compose import quoted
from nemo_prorl.demo.solved import Counts, count
from nemo_prorl.reward_sources.service import reward_service
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.storage import read_json, replace_text

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What a demo trains, and how it shows what has changed."""

    config_name: str
    build: str
    """Module that makes the base policy and its prompts, unless they are there."""
    policy: Path
    """The base policy."""
    measured: Path
    """The held-out prompts that are measured before and after."""
    stages: Sequence[Sequence[str]]
    """Options of each stage that is trained."""
    num_samples: int
    """Samples of each held-out problem, before and after training; also the k of pass@k."""
    max_problems: int = 0
    """Held-out problems that are measured; 0: all."""
    num_ranks: int = 1
    """Processes that sample and train."""
    show: Callable[[Path, Records, Counts, Counts, int], dict[str, Any]]
    """Prints and draws what has changed, from the run's records and the counts before and after, and returns it for
    summary.json. Its other arguments are the run's folder and the k of pass@k."""


def main(demo: Demo, options: argparse.Namespace) -> int:
    """Runs the demo with the options seed, smoke, overrides and out of its command line. Returns the exit code of the
    first command that fails, else 0."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, which ends the child processes
    out: Path = options.out
    what = {key: value for key, value in vars(options).items() if key != "out"}
    _make_room(out, what)
    started = time.time()
    if code := _run([demo.build]):
        return code
    with reward_service(RewardConfig(), out):
        common = [f"seed={options.seed}", *options.overrides]
        if code := _measure(demo, demo.policy, out / "before.jsonl", common):
            return code
        for stage in demo.stages:
            overrides = [*stage, f"exp_manager.explicit_log_dir={quoted(str(out))}", *common]
            train = ["nemo_prorl", "train", "--config-name", demo.config_name, *overrides]
            if code := _run(train, num_ranks=demo.num_ranks):
                return code
        shutil.rmtree(out / "hf", ignore_errors=True)
        if code := _run(["nemo_prorl", "export", str(find_checkpoints(out)[-1].path), str(out / "hf")]):
            return code
        if code := _measure(demo, out / "hf", out / "after.jsonl", common):
            return code
    records = read_metrics(out / "metrics.jsonl")
    before, after = (count(out / f"{when}.jsonl") for when in ("before", "after"))
    print()
    summary = {"seed": options.seed, "wall_s": round(time.time() - started, 1), **summarise_run(records)}
    summary |= demo.show(out, records, before, after, demo.num_samples)
    replace_text(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    print(f"\n{summary['num_steps']} steps, {summary['num_resets']} reset(s), {summary['wall_s']:.0f} s.")
    for name, content in FILES.items():
        print(f"  {out / name!s:<36} {content}")
    print(f"\nHow it went, on a page:  python -m nemo_prorl report {shlex.quote(str(out))}")
    return 0


FILES = {
    "demo.png": "the same as a picture",
    "summary.json": "these numbers and more",
    "metrics.jsonl": "one line a step",
    "before.jsonl, after.jsonl": "every measured response",
    "resolved.yaml": "every option of the last stage",
    "hf": "the policy, for transformers and vLLM",
    "checkpoints": "what `train` resumes from",
}


def summarise_run(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the reward of the first and the last validation, and what lies in between."""
    steps = [record for record in records if "reward/mean" in record]
    validated = [record for record in records if "validation/score" in record]
    tokens, seconds = (sum(step[key] for step in steps) for key in ("throughput/num_tokens", "time/step_s"))
    return {
        "score_before": validated[0]["validation/score"],
        "score_after": validated[-1]["validation/score"],
        "num_steps": len(steps),
        "num_resets": validated[-1]["num_resets"],
        "sampler_logprob_max_abs_diff": max(record["sampler/logprob_abs_diff_max"] for record in steps),
        "tokens_per_s": round(tokens / seconds, 1),
    }


def _make_room(out: Path, what: dict[str, Any]) -> None:
    """Keeps the folder of an interrupted demo of the same kind, to continue it; moves a finished or different one
    away."""
    record = out / "demo.json"
    finished = (out / "summary.json").is_file()
    if finished or (record.is_file() and read_json(record) != what):
        number = 1
        while (aside := out.with_name(f"{out.name}.{number}")).exists():
            number += 1
        os.replace(out, aside)
        print(f"The demo that {out} held is now in {aside}.")
    out.mkdir(parents=True, exist_ok=True)
    replace_text(record, json.dumps(what))


def _measure(demo: Demo, model: Path, samples: Path, overrides: Sequence[str]) -> int:
    """Samples and grades the held-out problems, unless an interrupted demo has done so. Returns the exit code."""
    if samples.is_file():
        return 0
    aside = samples.with_suffix(".partial")
    command = ["nemo_prorl", "evaluate", "--config-name", demo.config_name, "--samples", str(aside)]
    options = [f"model.path={quoted(str(model))}", f"data={demo.measured}", *overrides]
    options += [f"validation.num_rollouts={demo.num_samples}", f"validation.max_prompts={demo.max_problems}"]
    # Its averages are not shown: they are over all kinds of problems.
    code = _run([*command, *options], num_ranks=demo.num_ranks, stdout=subprocess.DEVNULL)
    if not code:
        os.replace(aside, samples)
    return code


def _run(arguments: Sequence[str], *, num_ranks: int = 1, stdout: int | None = None) -> int:
    """Prints a command of `python -m`, runs it in so many processes, and returns its exit code."""
    print(f"\n$ python -m {shlex.join(module_arguments(arguments, num_ranks))}", flush=True)
    code = run_ranks(arguments, num_ranks=num_ranks, stdout=stdout)
    if code < 0:
        print(f"error: python -m {arguments[0]} was killed by signal {-code}", file=sys.stderr)
    return code if code >= 0 else 128 - code
