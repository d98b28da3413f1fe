"""`python -m nemo_prorl demo`: the recipe at small scale, with the commands that a cluster would run.

It measures a tiny base policy, trains it in two stages of `train` with a hard reset between them, measures it again,
and shows what it solves now. Every heavy part is a separate command, printed before it runs, so that you can repeat and
change it.
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
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.config.compose import quoted
from nemo_prorl.demo import build, levels
from nemo_prorl.demo.build import BASE
from nemo_prorl.reward_sources.service import reward_service
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.storage import check_writable, replace_text
from nemo_prorl.run_folder.telemetry import read_metrics

STAGES = ("demo1", "demo2")
NUM_SAMPLES = 16
"""Samples of each held-out problem, before and after training; also the k of pass@k."""
SMOKE = ("trainer.num_steps=2", "trainer.prompts_per_step=8", "validation.max_prompts=8")
SMOKE_SAMPLES = 2
SMOKE_PROBLEMS = 27
"""Held-out problems that are measured then: a problem of each level."""


def main(options: argparse.Namespace) -> int:
    """Runs the demo. Returns the exit code of the first command that fails, else 0."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, which ends the child processes
    out: Path = options.out
    _make_room(out, {"seed": options.seed, "smoke": options.smoke, "overrides": options.overrides})
    started = time.time()
    if not build.is_built(BASE) and (code := _run(["nemo_prorl.demo.build", str(BASE)])):
        return code
    samples, problems = (SMOKE_SAMPLES, SMOKE_PROBLEMS) if options.smoke else (NUM_SAMPLES, 0)
    with reward_service(RewardConfig(), out):
        common = [f"seed={options.seed}", *options.overrides]
        folder = f"exp_manager.explicit_log_dir={quoted(str(out))}"
        measured = [*common, f"validation.num_rollouts={samples}", f"validation.max_prompts={problems}"]
        if code := _measure(build.policy_folder(BASE), out / "before.jsonl", measured):
            return code
        for stage in STAGES:
            smoke = SMOKE if options.smoke else ()
            overrides = [f"stage={stage}", common[0], folder, *smoke, *options.overrides]
            if code := _run(["nemo_prorl", "train", "--config-name", "laptop", *overrides]):
                return code
        shutil.rmtree(out / "hf", ignore_errors=True)
        if code := _run(["nemo_prorl", "export", str(find_checkpoints(out)[-1].path), str(out / "hf")]):
            return code
        if code := _measure(out / "hf", out / "after.jsonl", measured):
            return code
    records = read_metrics(out / "metrics.jsonl")
    before, after = (levels.count(out / f"{when}.jsonl") for when in ("before", "after"))
    summary = {"seed": options.seed, "wall_s": round(time.time() - started, 1), **summarise_run(records)}
    summary |= levels.summarise(before, after, samples)
    from nemo_prorl.demo import picture

    picture.draw(out / "demo.png", records, summary["levels"], k=summary["k"])
    replace_text(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    _report(out, summary)
    return 0


def check(out: Path) -> None:
    """Raises ConfigError if the demo cannot run or write into a folder."""
    reward = RewardConfig()
    if not reward.interpreter.exists():
        raise ConfigError(
            f"{reward.python} does not exist: run `make setup` from the root of the repository first."
        )
    check_writable(f"--out {out}", out)


def plan(*, smoke: bool) -> str:
    """Returns what a demo is going to do, and how long it takes."""
    if smoke:
        return "A shortened demo: two stages of two steps, few samples. About two minutes."
    return f"""Trains a policy of 0.6 million parameters on puzzles of which it solves only the
smallest:
  1. {NUM_SAMPLES} samples of every held-out problem from the base policy  about 1 minute
  2. two stages of 15 steps of `train`, a hard reset in between  about 3 minutes
  3. {NUM_SAMPLES} samples of every problem again, a table and a picture   about 1 minute
In all four to six minutes on two cores. The same command continues an
interrupted demo."""


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
    if finished or (record.is_file() and json.loads(record.read_text(encoding="utf-8")) != what):
        number = 1
        while (aside := out.with_name(f"{out.name}.{number}")).exists():
            number += 1
        os.replace(out, aside)
        print(f"The demo that {out} held is now in {aside}.")
    out.mkdir(parents=True, exist_ok=True)
    replace_text(record, json.dumps(what))


def _measure(model: Path, samples: Path, overrides: Sequence[str]) -> int:
    """Samples and grades every held-out problem, unless an interrupted demo has done so. Returns the exit code."""
    if samples.is_file():
        return 0
    aside = samples.with_suffix(".partial")
    command = ["nemo_prorl", "evaluate", "--config-name", "laptop", "--samples", str(aside)]
    options = [f"model.path={quoted(str(model))}", f"data={build.measured_file(BASE)}", *overrides]
    code = _run([*command, *options], stdout=subprocess.DEVNULL)  # its averages are over all sizes
    if not code:
        os.replace(aside, samples)
    return code


def _run(arguments: list[str], stdout: int | None = None) -> int:
    """Prints and runs `python -m …`. However this process is stopped, the command ends first."""
    print(f"\n$ python -m {shlex.join(arguments)}", flush=True)
    command = subprocess.Popen([sys.executable, "-m", *arguments], stdout=stdout)
    try:
        code = command.wait()
    finally:
        if command.poll() is None:
            command.terminate()
            command.wait()
    if code < 0:
        print(f"error: python -m {arguments[0]} was killed by signal {-code}", file=sys.stderr)
    return code if code >= 0 else 128 - code


def _report(out: Path, summary: Mapping[str, Any]) -> None:
    print(f"\n{levels.table(summary)}\n")
    for sentence in levels.sentences(summary):
        print(textwrap.fill(sentence, 80))
    print(f"\n{summary['num_steps']} steps, {summary['num_resets']} reset(s), {summary['wall_s']:.0f} s.")
    for name, what in (
        ("demo.png", "the same as a picture"),
        ("summary.json", "these numbers and those of every size"),
        ("metrics.jsonl", "one line a step"),
        ("before.jsonl, after.jsonl", "every measured response"),
        ("resolved.yaml", "every option of the last stage"),
        ("hf", "the policy, for transformers and vLLM"),
        ("checkpoints", "what `train` resumes from"),
    ):
        print(f"  {out / name!s:<36} {what}")
    print(f"\nHow it went, on a page:  python -m nemo_prorl report {shlex.quote(str(out))}")
