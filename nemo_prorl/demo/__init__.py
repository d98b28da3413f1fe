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

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.config.compose import quoted
from nemo_prorl.reward_sources.service import reward_service
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.storage import check_writable, replace_text
from nemo_prorl.run_folder.telemetry import read_metrics

BASE = Path("runs/tiny")
"""The folder in which conf/laptop.yaml expects the policy and its prompts."""
STAGES = ("demo1", "demo2")
CHARTS = ("reward_by_domain", "kl", "entropy", "length", "yield")
"""Charts of the report in the picture of a demo."""
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
    draw_training(out, f"make demo, seed {options.seed}: 0.6M-parameter policy, two stages on CPU")
    _report(out, summary)
    return 0


def summarise_run(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Compares the first and the last validation, and sums up the steps in between."""
    steps = [record for record in records if "reward/mean" in record]
    validated = [record for record in records if "validation/score" in record]
    ends = {"before": validated[0], "after": validated[-1]}
    scores = {
        f"{name}_{when}": record[f"validation/{name}"]
        for name in ("score", "pass_at_1", "pass_at_16")
        for when, record in ends.items()
    }
    tokens, seconds = (sum(step[key] for step in steps) for key in ("throughput/num_tokens", "time/step_s"))
    return scores | {
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


def draw_training(out: Path, title: str) -> None:
    """Draws what was learned and charts of the report into OUT/training.png, with a dashed line at each reset."""
    from nemo_prorl.report.drawings import draw
    from nemo_prorl.report.panels import SECTIONS, Panel
    from nemo_prorl.report.pictures import picture
    from nemo_prorl.report.runs import read_run

    series = (("validation/score", "score"), *((f"validation/pass_at_{k}", f"pass@{k}") for k in (1, 16)))
    held_out = Panel(name="held_out", title="Held-out prompts", unit="", series=series, reading="")
    of_report = {panel.name: panel for section in SECTIONS for panel in section.panels}
    run = read_run(out, with_prompts=False)
    panels = [held_out, *(of_report[name] for name in CHARTS)]
    picture([one for panel in panels for one in draw(panel, [run])], out / "training.png", title=title)


def _report(out: Path, summary: dict[str, Any]) -> None:
    print(
        f"\nHeld-out reward {summary['score_before']:.3f} -> {summary['score_after']:.3f}, "
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
