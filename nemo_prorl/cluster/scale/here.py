"""Says how long a step takes on this machine: as measured in the run's folder, or else estimated, within a range, for
responses of an assumed length, which nobody knows before the first ones are sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import perf_counter

from nemo_prorl.cluster.plan.estimate import RESPONSE_SHARE
from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.known import GPUS, Gpu
from nemo_prorl.cluster.scale.layouts import plan_of
from nemo_prorl.cluster.scale.roofline import Derates, logprobs_s, sampling_s, updates_s
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import ConfigError, Precision, RunConfig
from nemo_prorl.engines.megatron import cpu
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.run_folder.metrics_file import read_records

NUM_RECENT = 20
"""Steps of this run whose times count."""
CPU_RANGE = (2 / 3, 4.0)
"""The ends of the range on a CPU over the estimate, which knows neither how much of its speed in matrix products a pass
reaches nor what else the machine does (steps of models with 0.3M and 0.6M parameters took 0.8 to 3 times
the estimate)."""
SHARES = {RESPONSE_SHARE: "half", 0.1: "a tenth"}
"""Mean lengths of responses over the longest possible that are assumed: reasoning fills much of a limit that was made
for it, and a short answer little of one that the model's context gives."""
NOTABLE = 1.5
"""How many times faster fp32 has to be for the advice to use it."""
ROWS = 256
"""Rows of the matrix product that is measured: tokens of a pass over the widest layer."""
MEASURED_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHere:
    """How long a step takes. Example: StepHere(low_s=40.0, high_s=160.0, source="estimated from ...")"""

    low_s: float
    high_s: float
    source: str
    assumption: str = ""
    """On the lengths of responses, as the end of a sentence; empty if the time is measured."""
    advice: str = ""
    """What would be faster here; empty if nothing is known."""

    def times(self, count: int) -> str:
        """Returns the time of so many steps in words."""
        low, high = duration(count * self.low_s), duration(count * self.high_s)
        number, unit = low.split()
        if low == high:
            return low
        return f"{number if high.endswith(f' {unit}') else low} to {high}"


def step_here(config: RunConfig, *, num_ranks: int, gpu_name: str) -> list[StepHere]:
    """Returns the time of a step from the recent steps of the run; or for each of SHARES by the formulas of `plan
    --time` for a known GPU, or from the measured speed of this CPU (`gpu_name` is empty). Empty for a GPU that `plan`
    does not know, or a configuration that by its formulas does not fit."""
    path = Path(config.exp_manager.explicit_log_dir) / "metrics.jsonl"
    records = read_records(path)[0] if path.is_file() else []
    times = [
        float(record["time/step_s"])
        for record in records
        if record["stage"] == config.stage.name and "time/step_s" in record
    ]
    if measured := times[1:][-NUM_RECENT:]:  # the first step warms up
        source = f"as the last {len(measured)} step(s) of this run"
        return [StepHere(low_s=min(measured), high_s=max(measured), source=source)]
    gpu = next((gpu for key, gpu in GPUS.items() if key.upper() in gpu_name.upper()), None)
    if gpu_name and gpu is None:
        return []
    cluster = Cluster(num_nodes=1, gpus_per_node=num_ranks)
    case = Case(
        model=read_architecture(config.model.path), config=config, cluster=cluster, gpu=gpu or GPUS["h100"]
    )
    try:
        found = _on_cpu(case) if gpu is None else [_by_plan(_shorter(case, share)) for share in SHARES]
    except ConfigError:
        return []
    return [
        replace(each, assumption=f" if responses are {part} as long as the limit")
        for each, part in zip(found, SHARES.values(), strict=True)
    ]


def _shorter(case: Case, share: float) -> Case:
    """Returns the case with responses of this share of the limit. The longest of them is shorter, too: as if the limit
    was."""
    sampler = case.config.sampler
    limit = max(1, round(sampler.max_response_tokens * share / case.response_share))
    return replace(case, config=replace(case.config, sampler=replace(sampler, max_response_tokens=limit)))


def _by_plan(case: Case) -> StepHere:
    time = plan_of(case).time
    return StepHere(low_s=time.low_s, high_s=time.high_s, source="by the formulas of plan --time")


def _on_cpu(case: Case) -> list[StepHere]:
    widths, model = (case.model.hidden_size, case.model.ffn_size), case.config.model
    num_threads = case.config.trainer.cpu_threads
    flops, advice = measured_flops(widths, model.precision, num_threads), ""
    if model.precision is not Precision.fp32:
        in_fp32 = measured_flops(widths, Precision.fp32, num_threads)
        if in_fp32 > NOTABLE * flops:
            faster = f"{in_fp32 / flops:.1f} times as fast here in fp32"
            advice = f"matrix products are {faster}: write model.precision=fp32"
    speed = f"{float(f'{flops / 1e9:.2g}'):g} GFLOP/s"
    source = f"estimated from matrix products at {speed} per rank on this CPU"
    seconds = [cpu_seconds(_shorter(case, share), flops) for share in SHARES]
    low, high = CPU_RANGE
    return [StepHere(low_s=low * s, high_s=high * s, source=source, advice=advice) for s in seconds]


def cpu_seconds(case: Case, flops: float) -> float:
    """Returns the least time of a step on CPUs that reach `flops` operations per second and rank in matrix products: by
    the roofline, of a machine whose memory and links take no time."""
    cpu = Gpu(
        name="cpu", memory_gib=inf, flops=flops, memory_bytes_s=inf, nvlink_bytes_s=inf, network_bytes_s=inf
    )
    sampler = replace(case.config.sampler, enforce_eager=True)
    case = replace(case, gpu=cpu, config=replace(case.config, sampler=sampler))
    peak = Derates(sampling=1.0, matrices=1.0, half_width=0.0)
    return sampling_s(case, sampler.max_sequences, peak) + logprobs_s(case, peak) + updates_s(case, peak)


def measured_flops(widths: tuple[int, int], precision: Precision, num_threads: int) -> float:
    """Measures operations per second in products of ROWS rows with a matrix of these widths."""
    import torch

    dtype = torch.float32 if precision is Precision.fp32 else torch.bfloat16
    rows, weight = torch.randn(ROWS, widths[0]).to(dtype), torch.randn(*widths).to(dtype)
    with cpu.passes(num_threads):
        _ = rows @ weight
        began, count = perf_counter(), 0
        while count < 3 or perf_counter() - began < MEASURED_S:
            _ = rows @ weight
            count += 1
        return 2 * ROWS * widths[0] * widths[1] * count / (perf_counter() - began)


def duration(seconds: float) -> str:
    """Returns a time in words, with one or two digits. Example: 40 s, 12 minutes, 3 hours, 25 days"""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{float(f'{seconds / size:.2g}'):,.0f} {unit}"
    return f"{float(f'{seconds:.2g}'):g} s"
