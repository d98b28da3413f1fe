"""`python -m nemo_prorl demo`: the recipe at small scale, with the commands that a cluster would run.

It builds a tiny policy once, starts one reward service, runs two stages of `train`, exports the result, and plots the
run. Every heavy part is a separate command, printed before it runs, so that you can repeat and change it.
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
from pathlib import Path
from typing import Any

from nemo_prorl.compose import check_writable, quoted
from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.reward_service import reward_service
from nemo_prorl.training.checkpoint import find_checkpoints
from nemo_prorl.training.telemetry import read_metrics

BASE = Path("runs/tiny")
"""The folder in which conf/laptop.yaml expects the policy and its prompts."""
STAGES = ("demo1", "demo2")
SMOKE = ("trainer.num_steps=2", "trainer.prompts_per_step=8", "validation.max_prompts=4")


def main(options: argparse.Namespace) -> int:
    """Runs the demo. Returns the exit code of the first command that fails, else 0."""
    from nemo_prorl.demo.build import is_built  # also a separate command: not imported with the package

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, which ends the child processes
    out: Path = options.out
    reward = RewardConfig()
    if not reward.interpreter.exists():
        raise ConfigError(
            f"{reward.python} does not exist: run `make setup` from the root of the repository first."
        )
    check_writable(f"--out {out}", out)
    _make_room(out, {"seed": options.seed, "smoke": options.smoke, "overrides": options.overrides})
    if not is_built(BASE):
        print(
            f"Building the tiny policy once, in {BASE} (supervised warm start on Megatron-Core; some minutes)."
        )
        if code := _run(["nemo_prorl.demo.build", str(BASE)]):
            return code
    started = time.time()
    with reward_service(reward, out) as url:
        for stage in STAGES:
            overrides = [f"stage={stage}", f"seed={options.seed}", f"reward.urls=[{url}]"]
            overrides += [
                f"exp_manager.explicit_log_dir={quoted(str(out))}",
                *(SMOKE if options.smoke else ()),
                *options.overrides,
            ]
            if code := _run(["nemo_prorl", "train", "--config-name", "laptop", *overrides]):
                return code
    last = find_checkpoints(out)[-1]
    shutil.rmtree(out / "hf", ignore_errors=True)
    if code := _run(["nemo_prorl", "export", str(last.path), str(out / "hf")]):
        return code
    records = read_metrics(out / "metrics.jsonl")
    summary = summarise_run(records) | {"seed": options.seed, "wall_s": round(time.time() - started, 1)}
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    _draw(records, out, options.seed)
    _report(out, summary)
    return 0


def summarise_run(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Compares the first and the last validation, and sums up the steps in between."""
    steps = [record for record in records if "reward/mean" in record]
    validated = [record for record in records if "validation/reward" in record]
    first, last = validated[0], validated[-1]
    return {
        "reward_before": first["validation/reward"],
        "reward_after": last["validation/reward"],
        "pass_at_1_before": first["validation/pass_at_1"],
        "pass_at_1_after": last["validation/pass_at_1"],
        "pass_at_16_before": first["validation/pass_at_16"],
        "pass_at_16_after": last["validation/pass_at_16"],
        "num_steps": len(steps),
        "num_resets": last["num_resets"],
        "sampler_logprob_max_abs_diff": max(record["sampler/logprob_abs_diff_max"] for record in steps),
        "tokens_per_s": round(
            sum(record["throughput/num_tokens"] for record in steps)
            / sum(record["time/step_s"] for record in steps),
            1,
        ),
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
    record.write_text(json.dumps(what), encoding="utf-8")


def _run(arguments: list[str]) -> int:
    """Prints and runs `python -m …`. However this process is stopped, the command ends first."""
    print(f"\n$ python -m {shlex.join(arguments)}", flush=True)
    command = subprocess.Popen([sys.executable, "-m", *arguments])
    try:
        code = command.wait()
    finally:
        if command.poll() is None:
            command.terminate()
            command.wait()
    if code < 0:
        print(f"error: python -m {arguments[0]} was killed by signal {-code}", file=sys.stderr)
    return code if code >= 0 else 128 - code


def _draw(records: list[dict[str, Any]], out: Path, seed: int) -> None:
    from nemo_prorl.demo.figure import draw_training

    draw_training(
        records,
        out / "training.png",
        title=f"make demo, seed {seed}: 0.6M-parameter policy, two stages on CPU",
    )


def _report(out: Path, summary: dict[str, Any]) -> None:
    print(
        f"\nHeld-out reward {summary['reward_before']:.3f} -> {summary['reward_after']:.3f}, "
        f"pass@1 {summary['pass_at_1_before']:.3f} -> {summary['pass_at_1_after']:.3f}, "
        f"pass@16 {summary['pass_at_16_before']:.3f} -> {summary['pass_at_16_after']:.3f}, "
        f"in {summary['num_steps']} steps with {summary['num_resets']} reset(s) and {summary['wall_s']:.0f} s."
    )
    for name, what in (
        ("training.png", "training dynamics"),
        ("metrics.jsonl", "one line a step"),
        ("summary.json", "these numbers"),
        ("resolved.yaml", "every option of the last stage"),
        ("hf", "the policy, for transformers and vLLM"),
        ("checkpoints", "what `train` resumes from"),
    ):
        print(f"  {out / name!s:<28} {what}")
    print(f"\nHow it went, on a page:  python -m nemo_prorl report {shlex.quote(str(out))}")
