"""How long a step takes on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale import here
from nemo_prorl.cluster.scale.hardware import GPUS
from nemo_prorl.cluster.scale.here import StepHere, cpu_seconds, duration, step_here
from nemo_prorl.cluster.scale.layouts import plan_of
from nemo_prorl.cluster.scale.roofline import mean_rollout
from nemo_prorl.cluster.scale.shapes import shape_of
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import (
    ExpManagerConfig,
    ModelConfig,
    Precision,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
)

MODEL = shape_of("qwen2.5-1.5b")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(here, "read_architecture", lambda path: MODEL)
    return RunConfig(
        model=ModelConfig(precision=Precision.fp32),
        trainer=TrainerConfig(prompts_per_step=16, micro_batch_tokens=8192),
        sampler=SamplerConfig(num_rollouts=8, max_prompt_tokens=256, max_response_tokens=1024),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path)),
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "0.5 s"),
        (9.24, "9.2 s"),
        (119.0, "120 s"),
        (720.0, "12 minutes"),
        (7200.0, "2 hours"),
        (1e7, "120 days"),
    ],
)
def test_times_have_two_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(40.0, 40.0, "40 s"), (40.0, 80.0, "40 to 80 s"), (60.0, 600.0, "60 s to 10 minutes")],
)
def test_a_range_names_its_unit_once(low: float, high: float, text: str) -> None:
    assert StepHere(low_s=low, high_s=high, source="").times(1) == text


def test_a_run_that_has_steps_is_asked_itself(config: RunConfig, tmp_path: Path) -> None:
    """The first step warms up, records of other stages are of other sizes, and a validation before the first step has
    no time."""
    records = [{"step": 0, "stage": "main"}, {"step": 1, "stage": "other", "time/step_s": 1.0}]
    records += [{"step": step, "stage": "main", "time/step_s": 100.0 / step} for step in range(2, 5)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = step_here(config, num_ranks=1, gpu_name="")
    assert found == StepHere(low_s=25.0, high_s=100 / 3, source="as the last 2 step(s) of this run")


def test_a_known_gpu_has_the_time_of_plan(config: RunConfig) -> None:
    config = replace(config, model=ModelConfig(), sampler=replace(config.sampler, release_memory=True))
    found = step_here(config, num_ranks=1, gpu_name="NVIDIA H100 80GB HBM3")
    case = Case(model=MODEL, config=config, cluster=Cluster(num_nodes=1, gpus_per_node=1), gpu=GPUS["h100"])
    assert found is not None
    time = plan_of(case).time
    assert (found.low_s, found.high_s) == (time.low_s, time.high_s)
    assert found.source == "by the formulas of plan --time"
    assert step_here(config, num_ranks=1, gpu_name="NVIDIA GeForce RTX 4090") is None


def test_a_cpu_is_measured_and_bf16_is_advised_against_where_it_is_slow(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {Precision.fp32: 234e9, Precision.bf16: 4.68e9}
    monkeypatch.setattr(here, "measured_speed", lambda widths, precision, threads: (speeds[precision], 1.0))
    fast = step_here(config, num_ranks=1, gpu_name="")
    assert fast is not None
    assert fast.advice == ""
    assert "matrix products at 230 GFLOP/s per rank" in fast.source
    slow_config = replace(config, model=replace(config.model, precision=Precision.bf16))
    slow = step_here(slow_config, num_ranks=1, gpu_name="")
    assert slow is not None
    assert slow.advice == "matrix products are 50.0 times as fast here in fp32: write model.precision=fp32"
    assert slow.low_s > 40 * fast.low_s
    speeds[Precision.bf16] = 240e9
    quick = step_here(slow_config, num_ranks=1, gpu_name="")
    assert quick is not None
    assert quick.advice == ""


def test_the_least_time_is_that_of_the_operations_and_of_the_samplers_loop(config: RunConfig) -> None:
    """Six operations per parameter and token for the update, two for each of the other passes: about twelve, and the
    surplus of prompts that dynamic sampling draws."""
    case = Case(model=MODEL, config=config, cluster=Cluster(num_nodes=1, gpus_per_node=1), gpu=GPUS["h100"])
    seconds = cpu_seconds(case, flops=1e12, slowdown=1.0)
    tokens = 16 * 8 * (256 + 512)
    assert 10 < seconds / (tokens * MODEL.num_parameters / 1e12) < 20
    assert cpu_seconds(case, flops=1e12, slowdown=2.0) - seconds == pytest.approx(
        cpu_seconds(case, flops=1e30, slowdown=1.0), rel=1e-6
    )
    one_update = replace(case, config=replace(config, trainer=replace(config.trainer, updates_per_step=1)))
    share = (
        1 / config.trainer.updates_per_step
    )  # of the old log-probabilities, which the first update computes
    forward = sum(mean_rollout(case).forward) * case.prepared_rollouts / 1e12
    assert seconds - cpu_seconds(one_update, flops=1e12, slowdown=1.0) == pytest.approx(
        (1 - share) * forward, rel=1e-6
    )
    two = replace(case, cluster=Cluster(num_nodes=1, gpus_per_node=2))
    assert cpu_seconds(two, flops=1e9, slowdown=1.0) == pytest.approx(
        cpu_seconds(case, flops=1e9, slowdown=1.0) / 2, rel=0.01
    )


def test_the_speed_of_this_machine_is_finite() -> None:
    flops, slowdown = here.measured_speed((1536, 8960), Precision.fp32, 1)
    assert 1e8 < flops < 1e13
    assert slowdown >= 1.0
