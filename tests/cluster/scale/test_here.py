"""How long a step takes on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale import here
from nemo_prorl.cluster.scale.here import StepHere, cpu_seconds, step_here
from nemo_prorl.cluster.scale.known import GPUS, shape_of
from nemo_prorl.cluster.scale.layouts import plan_of
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


def case(config: RunConfig) -> Case:
    cluster = Cluster(num_nodes=1, gpus_per_node=1)
    return Case(model=MODEL, config=config, cluster=cluster, gpu=GPUS["h100"])


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (40.0, 40.0, "40 s"),
        (0.5, 9.24, "0.5 to 9.2 s"),
        (60.0, 720.0, "60 s to 12 minutes"),
        (7200.0, 1e7, "2 hours to 120 days"),
    ],
)
def test_times_have_two_digits_and_a_range_names_its_unit_once(low: float, high: float, text: str) -> None:
    assert StepHere(low_s=low, high_s=high, source="").times(1) == text


def test_a_run_that_has_steps_is_asked_itself(config: RunConfig, tmp_path: Path) -> None:
    """The first step warms up, records of other stages are of other sizes, and a validation before the first step has
    no time."""
    records = [{"step": 0, "stage": "main"}, {"step": 1, "stage": "other", "time/step_s": 1.0}]
    records += [{"step": step, "stage": "main", "time/step_s": 100.0 / step} for step in range(2, 5)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = step_here(config, num_ranks=1, gpu_name="")
    assert found == [StepHere(low_s=25.0, high_s=100 / 3, source="as the last 2 step(s) of this run")]


def test_a_known_gpu_has_the_time_of_plan(config: RunConfig) -> None:
    config = replace(config, model=ModelConfig(), sampler=replace(config.sampler, release_memory=True))
    found, short = step_here(config, num_ranks=1, gpu_name="NVIDIA H100 80GB HBM3")
    time = plan_of(case(config)).time
    assert found == StepHere(
        low_s=time.low_s,
        high_s=time.high_s,
        source="by the formulas of plan --time",
        assumption=" if responses are half as long as the limit",
    )
    assert short.assumption == " if responses are a tenth as long as the limit"
    assert 1.5 < found.low_s / short.low_s < 5, "a fifth of the tokens, behind the same prompts"
    assert step_here(config, num_ranks=1, gpu_name="NVIDIA GeForce RTX 4090") == []


@pytest.mark.parametrize(("bf16", "is_advised"), [(4.68e9, True), (240e9, False)])
def test_a_cpu_is_measured_and_bf16_is_advised_against_where_it_is_slow(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, bf16: float, is_advised: bool
) -> None:
    """The speed is measured once, or a busy moment would make short responses slower than long ones."""
    speeds = {Precision.fp32: iter([234e9] * 2), Precision.bf16: iter([bf16])}
    monkeypatch.setattr(here, "measured_flops", lambda widths, precision, threads: next(speeds[precision]))
    found, short = step_here(config, num_ranks=1, gpu_name="")
    assert short.high_s < found.high_s
    assert (found.advice, "at 230 GFLOP/s per rank" in found.source) == ("", True)
    in_bf16 = replace(config, model=replace(config.model, precision=Precision.bf16))
    found, _ = step_here(in_bf16, num_ranks=1, gpu_name="")
    advice = "matrix products are 50.0 times as fast here in fp32: write model.precision=fp32"
    assert found.advice == (advice if is_advised else "")


def test_the_least_time_is_that_of_the_operations_and_of_the_samplers_loop(config: RunConfig) -> None:
    """Six operations per parameter and token for the update, two for each of the other passes: about twelve, and the
    surplus of prompts that dynamic sampling draws."""
    seconds, loop_s = (cpu_seconds(case(config), flops) for flops in (1e12, 1e30))
    tokens = 16 * 8 * (256 + 512)
    assert 10 < (seconds - loop_s) / (tokens * MODEL.num_parameters / 1e12) < 20
    two = replace(case(config), cluster=Cluster(num_nodes=1, gpus_per_node=2))
    assert cpu_seconds(two, 1e9) == pytest.approx(cpu_seconds(case(config), 1e9) / 2, rel=0.02)


def test_the_speed_of_this_machine_is_finite() -> None:
    assert 1e8 < here.measured_flops((1536, 8960), Precision.fp32, 1) < 1e13
