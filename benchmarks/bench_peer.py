"""Compares our trainer with TRL's GRPOTrainer on the same work: seconds per step, memory, and time to a reward.

    make bench [ARGS="--quick"]    [ARGS="--works smollm2 smollm2_tail --arms ours trl_vllm --seeds 1 2 3"]

Both have the same policy, prompts in the same order, reward service, rollouts, lengths, batch, updates, loss and
optimizer. Both evaluate held-out prompts equally often, and that time does not count. The arms take turns seed by seed;
finished runs are not repeated. Prints the configuration of each side, tables and ratios, and writes peer.json and
peer_WORK.png into the folder. The works other than laptop train a real model of 135M parameters, with 20 GB of memory.
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

from benchmarks.peer.long_texts import LONG_TEXTS, write_long_texts
from benchmarks.peer.processes import PeakMemory, held_mib
from benchmarks.peer.work import Work, configured, our_config, our_options, trl_options
from benchmarks.runs import Panel, Records, build_tiny_policy, draw, points, train
from nemo_prorl.config import DataConfig, RewardConfig, RunConfig, SamplerConfig, ValidationConfig
from nemo_prorl.demo import build, language
from nemo_prorl.engines import environment
from nemo_prorl.reward_sources.service import running_service
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.storage import replace_text

TRL_PYTHON = Path(".venv-trl/bin/python")
TRL_SIDE = Path(__file__).parent / "peer" / "trl_side.py"
NUM_UNMEASURED = 2
"""First steps of a run, in which caches and compilers warm up. They count only for the time to a reward."""
TARGETS = (0.3, 0.5)
"""Held-out rewards; the time to reach each is reported."""
HELD_OUT, SECONDS = "validation/score", "seconds"
"""Metrics of a record; the second one is computed here."""
PANELS = (
    Panel(metric=HELD_OUT, title="held-out reward", over=SECONDS, over_title="seconds of steps"),
    Panel(metric="time/step_s", title="seconds per step"),
)

LAPTOP = Work(
    config_name="laptop",
    policy=str(build.policy_folder(build.BASE)),
    train={str(path): weight for path, weight in build.train_files(build.BASE, 0).items()},
    held_out_file=str(build.validation_file(build.BASE)),
    num_steps=10,
    max_response_tokens=128,
    validation_interval=2,
)
"""Policy and lengths of conf/laptop.yaml."""
DATA = language.BASE / "data"
SMOLLM2 = Work(
    config_name="smollm2",
    policy=str(language.BASE / "model"),
    train={str(DATA / name): 1 for name in language.TRAIN_FILES},
    held_out_file=str(DATA / "validation.parquet"),
    num_steps=10,
    max_response_tokens=96,
    validation_interval=5,
    num_rollouts=8,
    updates_per_step=2,
    max_prompt_tokens=128,
    temperature=1.0,
    learning_rate=2e-5,
    held_out=72,
    trl_pass_rollouts=8,  # with all 32 of an update, a process of TRL's would need more than 9 GB
)
"""A pretrained model of 135M parameters, trained on what `make demo-llm` trains it on."""
SMOLLM2_TAIL = replace(
    SMOLLM2,
    train={**dict.fromkeys(SMOLLM2.train, 7), str(LONG_TEXTS): 3},
    num_steps=6,
    max_response_tokens=256,
    learning_rate=1e-6,  # so small that the lengths stay as they are
    validation_interval=6,
    prompts_per_step=8,
    held_out=24,
    trl_pass_rollouts=4,
)
"""The same, but a prompt of each step asks for a long text, so that lengths are spread like a reasoning model's: the
mean is a fifth of the limit, which one response in twenty reaches."""
WORKS = {"laptop": LAPTOP, "smollm2": SMOLLM2, "smollm2_tail": SMOLLM2_TAIL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One trainer in one configuration."""

    title: str
    works: Sequence[str] = tuple(WORKS)
    """Names of the works that it does."""
    overrides: Sequence[str] | None = None
    """Overrides of our configuration; None if the trainer is TRL's."""
    use_vllm: bool = True


ARMS = {
    "ours": Arm(title="ours", overrides=("dynamic_sampling.enabled=false",)),
    "trl_vllm": Arm(title="TRL, vLLM colocated"),
    "trl_generate": Arm(title="TRL, model.generate", works=("laptop",), use_vllm=False),
    "ours_dynamic": Arm(title="ours, dynamic sampling", works=("laptop",), overrides=()),
}
BASELINE = "ours"


def main() -> None:
    """Runs all arms of a seed before the next seed, so that an interrupted benchmark still compares them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=["laptop"])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="steps of each run (default: those of the work)")
    parser.add_argument("--processes", type=int, default=2, help="processes of each side (default: 2)")
    parser.add_argument(
        "--quick", action="store_true", help="one seed, three steps of 8 prompts, to try the benchmark"
    )
    parser.add_argument("--out", type=Path, help="default: runs/peer, with --quick runs/peer_quick")
    options = parser.parse_args()
    check(options.processes)
    out = options.out or Path("runs/peer_quick" if options.quick else "runs/peer")
    seeds = options.seeds[:1] if options.quick else options.seeds
    for name in options.works:
        prepare(WORKS[name])
    numbers: dict[str, Any] = {}
    with running_service(RewardConfig(), out) as service:
        for name in options.works:
            work = replace(WORKS[name], num_processes=options.processes)
            if options.steps or options.quick:
                work = replace(work, num_steps=options.steps or 3)
            if options.quick:
                work = replace(work, prompts_per_step=8, held_out=8, validation_interval=3)
            arms = [arm for arm in options.arms if name in ARMS[arm].works]
            print(
                f"\n{name}: configuration of each side\n\n{configured(work, ARMS[BASELINE].overrides or ())}",
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
            titled = {ARMS[arm].title: of_arm for arm, of_arm in runs.items()}
            draw(
                out / f"peer_{name}.png", f"The same work ({name}) by our trainer and by TRL", PANELS, titled
            )
        numbers["service_mib"] = held_mib(os.getpid())
    replace_text(out / "peer.json", json.dumps(numbers, indent=1) + "\n")
    for name in options.works:
        print(f"\n{name}; seeds {', '.join(map(str, seeds))}\n\n{table(numbers[name])}")
    print(
        f"The reward service used {numbers['service_mib']:,.0f} MiB at the end, which the peaks above do not include."
    )


def check(num_processes: int) -> None:
    """Exits with an error message if the benchmark cannot run."""
    if not TRL_PYTHON.is_file():
        sys.exit(f"error: {TRL_PYTHON} does not exist: `make bench` makes it, or `scripts/setup.sh trl`.")
    if num_processes not in (1, 2, 4):
        sys.exit(f"error: --processes {num_processes} does not divide an update: write 1, 2 or 4.")


def prepare(work: Work) -> None:
    """Writes the policy and the prompt files of the work, unless they are there. Exits with the error of what writes
    them."""
    if work.config_name == "laptop":
        build_tiny_policy()
        return
    if subprocess.run([sys.executable, "-m", language.__name__]).returncode:
        sys.exit(1)
    write_long_texts()


def run(folder: Path, arm: Arm, work: Work, seed: int, url: str, service_pid: int) -> tuple[Records, float]:
    """Returns the records of one run and the peak memory of its processes in MiB. A finished run is read from its
    folder."""
    wanted = asdict(work) | {"overrides": arm.overrides, "use_vllm": arm.use_vllm, "seed": seed}
    wanted = json.loads(json.dumps(wanted))
    measured = folder / "measured.json"
    found = json.loads(measured.read_text(encoding="utf-8")) if measured.is_file() else {}
    if found and found["wanted"] != wanted:
        sys.exit(f"error: {folder} holds a run of other work: write another --out, or remove it.")
    if not found:
        shutil.rmtree(folder, ignore_errors=True)  # an interrupted run was not measured
        with PeakMemory(os.getpid(), leave_out=[service_pid]) as memory:
            if arm.overrides is None:
                run_trl(folder, arm, work, seed, url)
            else:
                overrides = [f"{key}={value}" for key, value in our_options(work).items()]
                overrides += [*arm.overrides, f"seed={seed}"]
                train(folder, url, overrides, config_name=work.config_name, num_ranks=work.num_processes)
        replace_text(measured, json.dumps({"wanted": wanted, "peak_mib": memory.peak_mib}) + "\n")
        found = {"peak_mib": memory.peak_mib}
    if arm.overrides is None:
        events = read_metrics(folder / "events.jsonl")
        return with_seconds(steps_of_trl(events, work)), found["peak_mib"]
    return with_seconds(read_metrics(folder / "metrics.jsonl")), found["peak_mib"]


def run_trl(folder: Path, arm: Arm, work: Work, seed: int, url: str) -> None:
    """Trains with TRL, in .venv-trl, on the prompts of our trainer with this seed, in the same order."""
    folder.mkdir(parents=True, exist_ok=True)
    train_rows, held_out_rows = prompts(work, seed)
    content = {
        "policy": work.policy,
        "reward_url": url,
        "updates_per_step": work.updates_per_step,
        "options": trl_options(work, seed, use_vllm=arm.use_vllm),
        "kv_cache_mib": our_config(work).sampler.kv_cache_mib,
        "train": train_rows,
        "held_out": held_out_rows,
    }
    replace_text(folder / "work.json", json.dumps(content))
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(work.num_processes)]
    command = [str(TRL_PYTHON), *(torchrun if work.num_processes > 1 else ()), str(TRL_SIDE)]
    command += [str(folder / "work.json")]
    # What our own command line gives to vLLM and torch on CPU, so that no side has an advantage.
    given = {**environment.ALWAYS, **environment.CPU_ONLY, **os.environ}
    with (folder / "trl.log").open("wb") as log:
        code = subprocess.run(command, env=given, stderr=log).returncode
    if code or not (folder / "events.jsonl").is_file():
        last = (folder / "trl.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        sys.exit(f"error: TRL ended with code {code} ({folder / 'trl.log'}): {' / '.join(last)}")


def prompts(work: Work, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the rendered prompts of all steps, and the held-out ones. `task` is JSON, because the rows of the two
    domains have different fields. `unfinished_factor` is what our side's shaping multiplies the score of a response
    that does not end by; it counts in training alone."""
    environment.prepare()
    from transformers import AutoTokenizer

    from nemo_prorl.data.inputs import held_out
    from nemo_prorl.data.mix import PromptMix

    tokenizer = AutoTokenizer.from_pretrained(work.policy)
    mix = PromptMix(
        work.train,
        seed=seed,
        tokenizer=tokenizer,
        max_prompt_tokens=work.max_prompt_tokens,
    )
    config = RunConfig(
        data=DataConfig(validation=[work.held_out_file]),
        validation=ValidationConfig(max_prompts=work.held_out),
        sampler=SamplerConfig(max_prompt_tokens=work.max_prompt_tokens),
    )
    taken = mix.take(work.num_steps * work.prompts_per_step)
    rows = [
        [
            {
                "prompt": prompt.text,
                "in_thought": prompt.opens_thought,
                "domain": prompt.domain,
                "task": json.dumps(dict(prompt.task)),
                "uid": prompt.uid,
                "unfinished_factor": factor,
            }
            for prompt in part
        ]
        for part, factor in (
            (taken, our_config(work).shaping.termination_factor),
            (held_out(config, tokenizer), 1.0),
        )
    ]
    return rows[0], rows[1]


def steps_of_trl(events: Sequence[Mapping[str, Any]], work: Work) -> list[dict[str, Any]]:
    """Returns TRL's events as records of our metrics, one per step. TRL logs the mean length of a step's rollouts, from
    which the number of tokens is computed, and the held-out reward with the update after which it was measured. Raises
    ValueError if TRL did other work than asked for."""
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
    """Returns the records, each with the seconds of all steps so far, without start-up and held-out prompts."""
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
    """Returns the seconds of steps until the held-out reward first reaches the target, interpolated linearly between
    evaluations; None if it never does."""
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
    """Returns the summaries of all runs, and the ratios of every other arm to ours, seed by seed. Above 1, ours is
    better."""
    summaries = {arm: [summary(r, p) for r, p in zip(runs[arm], peaks[arm], strict=True)] for arm in runs}
    keys = ("step_s", "tokens_per_s", "peak_mib", *(f"s_to_{target}" for target in TARGETS))
    ratios = {
        arm: {key: spread_of_ratios(key, summaries[BASELINE], of_arm) for key in keys}
        for arm, of_arm in summaries.items()
        if arm != BASELINE and BASELINE in summaries
    }
    return {"runs": summaries, "ratios": ratios}


def spread_of_ratios(
    key: str, ours: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> list[float] | None:
    """Returns the smallest, median and largest ratio over the seeds, above 1 where ours is better; None if a run lacks
    the number."""
    pairs = [(mine[key], other[key]) for mine, other in zip(ours, others, strict=True)]
    if any(not mine or not other for mine, other in pairs):
        return None
    ratios = [mine / other if key == "tokens_per_s" else other / mine for mine, other in pairs]
    return [min(ratios), statistics.median(ratios), max(ratios)]


def table(numbers: Mapping[str, Any]) -> str:
    """Returns a Markdown table of medians over the seeds, with the smallest and largest values, and of ratios."""
    heads = {
        "step_s": "s per step", "tokens_per_s": "tokens/s", "peak_mib": "peak MiB",
        **{f"s_to_{target}": f"s to {target}" for target in TARGETS},
    }  # fmt: skip
    lines = ["| | " + " | ".join(heads.values()) + " |", "|---" * (len(heads) + 1) + "|"]
    for arm, of_arm in numbers["runs"].items():
        cells = [spread([run[key] for run in of_arm]) for key in heads]
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
    """Returns the text "median (smallest to largest)", or how many runs have the value if some lack it."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"{len(known)} of {len(values)} runs"
    form = "{:.2f}" if max(known) < 10 else "{:,.1f}" if max(known) < 100 else "{:,.0f}"
    texts = [form.format(value) for value in (statistics.median(known), min(known), max(known))]
    return texts[0] if texts[1] == texts[2] else f"{texts[0]} ({texts[1]} to {texts[2]})"


if __name__ == "__main__":
    main()
