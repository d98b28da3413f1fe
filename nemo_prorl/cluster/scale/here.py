"""Says how long a step takes on this machine: as measured in the run's folder, or else estimated, within a range."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale import roofline
from nemo_prorl.cluster.scale.hardware import GPUS
from nemo_prorl.cluster.scale.layouts import plan_of
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import ConfigError, Precision, RunConfig
from nemo_prorl.engines.megatron import cpu
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.run_folder.metrics_file import read_metrics

NUM_RECENT = 20
"""Steps of this run whose times count."""
CPU_RANGE = (2 / 3, 4.0)
"""The ends of the range on a CPU over the estimate, which knows neither how much of its speed in matrix products a pass
reaches nor what else the machine does (steps of models with 0.3M and 0.6M parameters took 0.9 to 3.1 times
the estimate)."""
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
    advice: str = ""
    """What would be faster here; empty if nothing is known."""

    def times(self, count: int) -> str:
        """Returns the time of so many steps in words."""
        low, high = duration(count * self.low_s), duration(count * self.high_s)
        number, unit = low.split()
        if low == high:
            return low
        return f"{number if high.endswith(f' {unit}') else low} to {high}"


def step_here(config: RunConfig, *, num_ranks: int, gpu_name: str) -> StepHere | None:
    """Returns the time of a step, from the recent steps of the run, the formulas of `plan --time` for a known GPU, or
    the measured speed of this CPU (`gpu_name` is empty). None for a GPU that `plan` does not know, or a configuration
    that by its formulas does not fit."""
    path = Path(config.exp_manager.explicit_log_dir) / "metrics.jsonl"
    records = read_metrics(path) if path.is_file() else []
    of_stage = [record for record in records if record["stage"] == config.stage.name]
    times = [float(record["time/step_s"]) for record in of_stage if "time/step_s" in record]
    if measured := times[1:][-NUM_RECENT:]:  # the first step warms up
        return StepHere(
            low_s=min(measured),
            high_s=max(measured),
            source=f"as the last {len(measured)} step(s) of this run",
        )
    model = read_architecture(config.model.path)
    cluster = Cluster(num_nodes=1, gpus_per_node=num_ranks)
    if not gpu_name:
        precision, num_threads = config.model.precision, config.trainer.cpu_threads
        widths = model.hidden_size, model.ffn_size
        flops, slowdown = measured_speed(widths, precision, num_threads)
        case = Case(model=model, config=config, cluster=cluster, gpu=GPUS["h100"])
        seconds = cpu_seconds(case, flops=flops, slowdown=slowdown)
        advice = ""
        if precision is not Precision.fp32:
            in_fp32, _ = measured_speed(widths, Precision.fp32, num_threads)
            if in_fp32 > NOTABLE * flops:
                faster = f"{in_fp32 / flops:.1f} times as fast here in fp32"
                advice = f"matrix products are {faster}: write model.precision=fp32"
        speed = f"{float(f'{flops / 1e9:.2g}'):g} GFLOP/s"
        return StepHere(
            low_s=CPU_RANGE[0] * seconds,
            high_s=CPU_RANGE[1] * seconds,
            source=f"estimated from matrix products at {speed} per rank on this CPU",
            advice=advice,
        )
    gpu = next((gpu for key, gpu in GPUS.items() if key.upper() in gpu_name.upper()), None)
    if gpu is None:
        return None
    try:
        time = plan_of(Case(model=model, config=config, cluster=cluster, gpu=gpu)).time
    except ConfigError:
        return None
    return StepHere(low_s=time.low_s, high_s=time.high_s, source="by the formulas of plan --time")


def cpu_seconds(case: Case, *, flops: float, slowdown: float) -> float:
    """Returns the least time of a step on CPUs that reach `flops` operations per second and rank in matrix products,
    and on which a program takes `slowdown` times its processor time: all passes, and the sampler's loop."""
    config = case.config
    # The first of a step's updates computes its old log-probabilities itself, unless the KL is in the reward.
    old = 1.0 if config.algorithm.takes_kl_from_rewards else 1.0 - 1.0 / config.trainer.updates_per_step
    passes = case.sampled_rollouts + (old + config.measures_kl) * case.prepared_rollouts
    rollout = roofline.mean_rollout(case)
    operations = passes * sum(rollout.forward)
    operations += case.trained_rollouts * sum(rollout.update(config.model.recompute))
    of_engine = case.sampled_rollouts / case.num_engines
    sequences = of_engine * case.response_tokens
    at_a_time = min(of_engine, config.sampler.max_sequences)
    steps = max(sequences / at_a_time, float(config.sampler.max_response_tokens))
    step_s = roofline.LOOP_STEP_S + roofline.EAGER_LAYER_S * case.model.num_layers
    loop_s = steps * step_s + sequences * roofline.LOOP_SEQUENCE_S
    return operations / flops / case.cluster.num_gpus + loop_s * slowdown


def duration(seconds: float) -> str:
    """Returns a time in words, with one or two digits. Example: 40 s, 12 minutes, 3 hours, 25 days"""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{float(f'{seconds / size:.2g}'):,.0f} {unit}"
    return f"{float(f'{seconds:.2g}'):g} s"


def measured_speed(widths: tuple[int, int], precision: Precision, num_threads: int) -> tuple[float, float]:
    """Measures operations per second in products of ROWS rows with a matrix of these widths, and wall time over
    processor time."""
    import torch

    dtype = torch.float32 if precision is Precision.fp32 else torch.bfloat16
    rows, weight = torch.randn(ROWS, widths[0]).to(dtype), torch.randn(*widths).to(dtype)
    with cpu.passes(num_threads):
        _ = rows @ weight
        began, began_cpu, count = perf_counter(), process_time(), 0
        while count < 3 or perf_counter() - began < MEASURED_S:
            _ = rows @ weight
            count += 1
        wall, cpu_s = perf_counter() - began, process_time() - began_cpu
    operations = 2 * ROWS * widths[0] * widths[1] * count
    return operations / wall, max(1.0, wall * num_threads / max(cpu_s, 1e-9))
