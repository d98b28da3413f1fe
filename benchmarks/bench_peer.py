"""The same work by our trainer and by TRL's GRPOTrainer, in turns on this machine: how fast, how much memory, how soon.

    make bench [BENCH_ARGS="--quick"]    [BENCH_ARGS="--works laptop --arms ours trl_vllm --seeds 1 2 3"]

Same policy, prompts in the same order, reward service, rollouts, lengths, batch, updates, loss and optimizer; held-out
prompts are looked at as often, and their time is nobody's. The arms take turns seed by seed; a finished run is not run
again. Prints how each side was configured, tables and ratios; writes peer.json and peer_WORK.png into the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from peer.processes import PeakMemory, held_mib
from peer.work import Work, configured, our_config, our_options, trl_options
from training_runs import Records, build_tiny_policy, charts, points, train

from nemo_prorl.config import RewardConfig
from nemo_prorl.demo import BASE
from nemo_prorl.demo.build import held_out_file, train_file
from nemo_prorl.demo.tasks import SOURCES
from nemo_prorl.reward_service import running_service
from nemo_prorl.storage import replace_text

TRL_PYTHON = Path(".venv-trl/bin/python")
TRL_SIDE = Path(__file__).parent / "peer" / "trl_side.py"
NUM_UNMEASURED = 2
"""First steps of a run, in which caches and compilers warm up: they count for the time to a reward only."""
TARGETS = (0.3, 0.5)
"""Held-out rewards to which the time is taken."""
HELD_OUT, SECONDS = "validation/reward", "seconds"
"""Metrics of a record: of our trainer, and computed here."""


WORKS = {
    "laptop": Work(num_steps=10, max_response_tokens=40, validation_interval=2),
    "long": Work(num_steps=6, max_response_tokens=224, validation_interval=6),
}
"""laptop: lengths of conf/laptop.yaml. long: as long as the policy's positions reach, which few rollouts use up: in
both, one in twenty does not end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to do the work."""

    title: str
    colour: str
    works: Sequence[str] = ("laptop", "long")
    overrides: Sequence[str] | None = None
    """Overrides of our configuration; None: this side is TRL."""
    use_vllm: bool = True


ARMS = {
    "ours": Arm(title="ours", colour="#3f6fa3", overrides=("dynamic_sampling.enabled=false",)),
    "trl_vllm": Arm(title="TRL, vLLM colocated", colour="#b0413e"),
    "trl_generate": Arm(
        title="TRL, model.generate", colour="#d99a3d", works=("laptop",), use_vllm=False
    ),
    "ours_dynamic": Arm(
        title="ours, dynamic sampling", colour="#4f8a57", works=("laptop",), overrides=()
    ),
}  # fmt: skip
BASELINE = "ours"


def main() -> None:
    """Work by work, seed by seed, the arms in turn, so that an interrupted benchmark still compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="of each run (default: as the work says)")
    parser.add_argument("--processes", type=int, default=2, help="of each side (default: 2)")
    parser.add_argument(
        "--quick", action="store_true", help="one seed, three steps of 8 prompts: does it run?"
    )
    parser.add_argument("--out", type=Path, help="default: runs/peer, with --quick runs/peer_quick")
    options = parser.parse_args()
    check(options.processes)
    out = options.out or Path("runs/peer_quick" if options.quick else "runs/peer")
    seeds = options.seeds[:1] if options.quick else options.seeds
    build_tiny_policy()
    numbers: dict[str, Any] = {}
    with running_service(RewardConfig(), out) as service:
        for name in options.works:
            work = replace(WORKS[name], num_processes=options.processes)
            if options.steps or options.quick:
                work = replace(work, num_steps=options.steps or 3)
            if options.quick:
                work = replace(work, prompts_per_step=8, held_out_per_source=8, validation_interval=3)
            arms = [arm for arm in options.arms if name in ARMS[arm].works]
            print(
                f"\n{name}: how each side is configured\n\n{configured(work, ARMS[BASELINE].overrides or ())}",
                flush=True,
            )
            runs: dict[str, list[Records]] = {arm: [] for arm in arms}
            peaks: dict[str, list[float]] = {arm: [] for arm in arms}
            for seed in seeds:
                for arm in arms:
                    print(f"\n{name}, {ARMS[arm].title}, seed {seed}", flush=True)
                    folder = out / name / f"{arm}-{seed}"
                    records, peak = run(folder, ARMS[arm], work, seed, service.url, service.process.pid)
                    runs[arm].append(records)
                    peaks[arm].append(peak)
            numbers[name] = compare(runs, peaks) | {"work": asdict(work), "seeds": seeds}
            draw(out / f"peer_{name}.png", name, runs)
        numbers["service_mib"] = held_mib(os.getpid())
    replace_text(out / "peer.json", json.dumps(numbers, indent=1) + "\n")
    for name in options.works:
        print(f"\n{name}; seeds {', '.join(map(str, seeds))}\n\n{table(numbers[name])}")
    print(
        f"The reward service held {numbers['service_mib']:,.0f} MiB at the end; it is in nobody's memory above."
    )


def check(num_processes: int) -> None:
    """Ends with a sentence when the benchmark cannot run."""
    if not TRL_PYTHON.is_file():
        sys.exit(f"error: {TRL_PYTHON} does not exist: `make bench` makes it, or `scripts/setup.sh trl`.")
    if num_processes not in (1, 2, 4):
        sys.exit(f"error: --processes {num_processes} does not divide an update: write 1, 2 or 4.")


def run(folder: Path, arm: Arm, work: Work, seed: int, url: str, service_pid: int) -> tuple[Records, float]:
    """Records of one run and the most MiB that its processes held; from the folder where it is finished."""
    wanted = asdict(work) | {"overrides": arm.overrides, "use_vllm": arm.use_vllm, "seed": seed}
    wanted = json.loads(json.dumps(wanted))
    measured = folder / "measured.json"
    found = json.loads(measured.read_text(encoding="utf-8")) if measured.is_file() else {}
    if found and found["wanted"] != wanted:
        sys.exit(f"error: {folder} holds a run of other work: write another --out, or remove it.")
    if not found:
        shutil.rmtree(folder, ignore_errors=True)  # begun and not finished: nothing of it was measured
        with PeakMemory(os.getpid(), leave_out=[service_pid]) as memory:
            if arm.overrides is None:
                run_trl(folder, arm, work, seed, url)
            else:
                overrides = [f"{key}={value}" for key, value in our_options(work).items()]
                overrides += [*arm.overrides, f"seed={seed}"]
                train(folder, url, overrides, num_ranks=work.num_processes)
        replace_text(measured, json.dumps({"wanted": wanted, "peak_mib": memory.peak_mib}) + "\n")
        found = {"peak_mib": memory.peak_mib}
    if arm.overrides is None:
        events = read_lines(folder / "events.jsonl")
        return with_seconds(steps_of_trl(events, work)), found["peak_mib"]
    return with_seconds(read_lines(folder / "metrics.jsonl")), found["peak_mib"]


def run_trl(folder: Path, arm: Arm, work: Work, seed: int, url: str) -> None:
    """In .venv-trl, on the prompts that our trainer takes with this seed, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    train_rows, held_out_rows = prompts(work, seed)
    what = {
        "policy": str(BASE / "policy"),
        "reward_url": url,
        "updates_per_step": work.updates_per_step,
        "options": trl_options(work, seed, use_vllm=arm.use_vllm),
        "kv_cache_mib": our_config(work).sampler.kv_cache_mib,
        "train": train_rows,
        "held_out": held_out_rows,
    }
    replace_text(folder / "work.json", json.dumps(what))
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(work.num_processes)]
    command = [str(TRL_PYTHON), *(torchrun if work.num_processes > 1 else ()), str(TRL_SIDE)]
    with (folder / "trl.log").open("wb") as log:
        command += [str(folder / "work.json")]
        code = subprocess.run(command, env=trl_environment(), stderr=log).returncode
    if code or not (folder / "events.jsonl").is_file():
        last = (folder / "trl.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        sys.exit(f"error: TRL ended with code {code} ({folder / 'trl.log'}): {' / '.join(last)}")


def trl_environment() -> dict[str, str]:
    """What our own command line sets for vLLM and torch on CPU, so that neither side has better ones."""
    from nemo_prorl.engines.environment import ALWAYS, CPU_ONLY

    return {**ALWAYS, **CPU_ONLY, **os.environ}


def prompts(work: Work, seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(of all steps, held out), rendered; `task` as JSON, since the rows of two domains have different fields."""
    from nemo_prorl.engines import environment

    environment.prepare()
    from transformers import AutoTokenizer

    from nemo_prorl.data.held_out import held_out
    from nemo_prorl.data.mix import PromptMix

    tokenizer = AutoTokenizer.from_pretrained(BASE / "policy")
    mix = PromptMix(
        {str(train_file(BASE, source)): 1.0 for source in SOURCES},
        seed=seed,
        tokenizer=tokenizer,
        max_prompt_tokens=work.max_prompt_tokens,
    )
    validation, _ = held_out(
        [str(held_out_file(BASE, source)) for source in SOURCES],
        tokenizer=tokenizer,
        max_prompts=work.held_out_per_source,
        max_prompt_tokens=work.max_prompt_tokens,
    )
    rows = [
        [
            {
                "prompt": prompt.text,
                "in_thought": prompt.opens_thought,
                "domain": prompt.domain,
                "task": json.dumps(dict(prompt.task)),
                "uid": prompt.uid,
            }
            for prompt in part
        ]
        for part in (mix.take(work.num_steps * work.prompts_per_step), validation)
    ]
    return rows[0], rows[1]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """One JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def steps_of_trl(events: Sequence[Mapping[str, Any]], work: Work) -> list[dict[str, Any]]:
    """TRL's events under our names, a record a step. It logs the mean length of a step's rollouts, not their sum, and
    the held-out reward under the update after which it was taken. Raises ValueError when it did other work."""
    rollouts = work.prompts_per_step * work.num_rollouts
    records: dict[int, dict[str, Any]] = {}
    for event in events:
        step, rest = divmod(event["update"], work.updates_per_step)
        if rest:
            raise ValueError(f"TRL logged update {event['update']}, in the middle of a step.")
        record = records.setdefault(step, {"step": step})
        logs = event.get("logs", {})
        if "step_s" in event:
            if event["num_rollouts"] != rollouts:
                raise ValueError(
                    f"TRL sampled {event['num_rollouts']} rollouts in step {step}, not {rollouts}."
                )
            record["time/step_s"] = event["step_s"]
        if "completions/mean_length" in logs:
            record["throughput/num_tokens"] = logs["completions/mean_length"] * rollouts
        if "eval_reward" in logs:
            record[HELD_OUT] = logs["eval_reward"]
    return [records[step] for step in sorted(records)]


def with_seconds(records: Sequence[Mapping[str, Any]]) -> Records:
    """Each with the seconds of all steps until then, in which neither start nor held-out prompts are."""
    total, found = 0.0, []
    for record in records:
        total += record.get("time/step_s", 0.0)
        found.append({**record, SECONDS: total})
    return found


def summary(records: Records, peak_mib: float) -> dict[str, Any]:
    """Summarises one run. Steps and tokens are those after the first NUM_UNMEASURED steps."""
    steps = [record for record in records if "time/step_s" in record][NUM_UNMEASURED:]
    seconds = [record["time/step_s"] for record in steps]
    return {
        "step_s": statistics.median(seconds),
        "step_s_min": min(seconds),
        "step_s_max": max(seconds),
        "tokens_per_s": sum(record["throughput/num_tokens"] for record in steps) / sum(seconds),
        "peak_mib": peak_mib,
        "rewards": points(records, HELD_OUT),
        "seconds": points(records, HELD_OUT, SECONDS),
        **{f"s_to_{target}": seconds_to(records, target) for target in TARGETS},
    }


def seconds_to(records: Records, target: float) -> float | None:
    """Seconds of steps until the held-out reward is first there, linearly between two looks; None: never."""
    before: tuple[float, float] | None = None
    for seconds, reward in points(records, HELD_OUT, SECONDS).items():
        if reward >= target:
            return (
                seconds
                if before is None
                else float(np.interp(target, (before[1], reward), (before[0], seconds)))
            )
        before = (seconds, reward)
    return None


def compare(runs: Mapping[str, Sequence[Records]], peaks: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Every run, and for every other arm what the same seeds of it took over what ours took: above 1, ours is
    better."""
    of = {arm: [summary(r, p) for r, p in zip(runs[arm], peaks[arm], strict=True)] for arm in runs}
    keys = ("step_s", "tokens_per_s", "peak_mib", *(f"s_to_{target}" for target in TARGETS))
    ratios = {
        arm: {key: spread_of_ratios(key, of[BASELINE], found) for key in keys}
        for arm, found in of.items()
        if arm != BASELINE and BASELINE in of
    }
    return {"runs": of, "ratios": ratios}


def spread_of_ratios(
    key: str, ours: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> list[float] | None:
    """Least, median and largest over the pairs of the same seed, above 1 where ours is better; None where a run has no
    such number."""
    pairs = [(mine[key], other[key]) for mine, other in zip(ours, others, strict=True)]
    if any(not mine or not other for mine, other in pairs):
        return None
    ratios = [mine / other if key == "tokens_per_s" else other / mine for mine, other in pairs]
    return [min(ratios), statistics.median(ratios), max(ratios)]


def table(numbers: Mapping[str, Any]) -> str:
    """In Markdown: medians over the seeds with the least and the largest, and ratios."""
    heads = {
        "step_s": "s a step", "tokens_per_s": "tokens/s", "peak_mib": "peak MiB",
        **{f"s_to_{target}": f"s to {target}" for target in TARGETS},
    }  # fmt: skip
    lines = ["| | " + " | ".join(heads.values()) + " |", "|---" * (len(heads) + 1) + "|"]
    for arm, found in numbers["runs"].items():
        cells = [spread([run[key] for run in found]) for key in heads]
        lines.append(f"| {ARMS[arm].title} | {' | '.join(cells)} |")
    for arm, ratios in numbers["ratios"].items():
        cells = [
            f"**{value[1]:.2f}** ({value[0]:.2f} to {value[2]:.2f})"
            if (value := ratios[key])
            else "not reached"
            for key in heads
        ]
        lines.append(f"| ratio to {ARMS[arm].title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float | None]) -> str:
    """Median (least to largest)."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"{len(known)} of {len(values)} runs"
    form = "{:.2f}" if max(known) < 10 else "{:,.1f}" if max(known) < 100 else "{:,.0f}"
    texts = [form.format(value) for value in (statistics.median(known), min(known), max(known))]
    return texts[0] if texts[1] == texts[2] else f"{texts[0]} ({texts[1]} to {texts[2]})"


def draw(path: Path, name: str, runs: Mapping[str, Sequence[Records]]) -> None:
    """Held-out reward over the seconds of steps, and the seconds of each step: a thin line a seed."""
    panels = (
        ("held-out reward", "seconds of steps", HELD_OUT, SECONDS),
        ("seconds a step", "step", "time/step_s", "step"),
    )
    title = f"The same work ({name}) by our trainer and by TRL"
    with charts(path, title, [(of_panel, of_x) for of_panel, of_x, _, _ in panels]) as axes:
        for axis, (_, _, metric, over) in zip(axes, panels, strict=True):
            for arm, of in runs.items():
                for number, records in enumerate(of):
                    line = points(records, metric, over)
                    look = {"color": ARMS[arm].colour, "linewidth": 1.4, "alpha": 0.75}
                    axis.plot(line.keys(), line.values(), **look, label=None if number else ARMS[arm].title)


if __name__ == "__main__":
    main()
