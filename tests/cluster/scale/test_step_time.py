"""Tests of the estimated time of a step: operations by hand, and the effect of more hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scale_tables import comparisons, comparisons_text, recipe, scale_plans, scale_text
from nemo_prorl.cluster.plan.estimate import between_checkpoints_s
from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.hardware import GPUS, gpu_of
from nemo_prorl.cluster.scale.layouts import fits, fitting_layouts, plan_of
from nemo_prorl.cluster.scale.shapes import shape_of
from nemo_prorl.cluster.scale.step_time import (
    Rollouts,
    decode_cost,
    forward_flops,
    forward_s,
    gradient_sync_s,
    update_flops,
    update_s,
)
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import (
    AlgorithmConfig,
    CheckpointCallbackParams,
    ConfigError,
    CorrectionLevel,
    DynamicSamplingConfig,
    ExpManagerConfig,
    ModelConfig,
    Recompute,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
)
from nemo_prorl.engines.megatron.architecture import Architecture
from tests.conftest import ROOT

SMALL, BIG = shape_of("r1-distill-qwen-1.5b"), shape_of("llama3-70b")
PAPER = Cluster(num_nodes=4, gpus_per_node=8)
FITS = recipe(8192)


def case(
    config: RunConfig, *, model: Architecture = SMALL, cluster: Cluster = PAPER, **shares: float
) -> Case:
    return Case(model=model, config=config, cluster=cluster, gpu=GPUS["h100"], **shares)


def test_operations_by_hand() -> None:
    """6 P per token (arXiv 2001.08361) for a model that consists mostly of matrices and a short context."""
    rollouts = Rollouts(tokens=100.0, response_tokens=100.0, attended_tokens=50.0)
    matrices = BIG.num_parameters - BIG.vocab_size * BIG.hidden_size
    assert forward_flops(BIG, rollouts) == pytest.approx(2 * matrices * 100, rel=0.01)
    assert update_flops(BIG, rollouts, Recompute.none) == pytest.approx(6 * matrices * 100, rel=0.02)
    assert update_flops(BIG, rollouts, Recompute.full) == pytest.approx(8 * matrices * 100, rel=0.02)


def test_attention_grows_with_the_context() -> None:
    short, long = (Rollouts(tokens=t, response_tokens=t, attended_tokens=t / 2) for t in (1_000, 100_000))
    assert forward_flops(SMALL, long) > 200 * forward_flops(SMALL, short)


def test_a_decoding_step_reads_every_weight_once() -> None:
    """3.1 GB of weights, without the embedding table, at 80 % of 3.35 TB/s take 1.15 ms; the loop takes 2 ms."""
    cost = decode_cost(case(RunConfig()))
    read = 2 * (1_777_088_000 - 151936 * 1536)
    assert cost.step_s == pytest.approx(read / (0.8 * 3.35e12))
    assert cost.loop_step_s == 2e-3
    assert cost.context_token_s == pytest.approx(28_672 / (0.8 * 3.35e12))


def test_without_cuda_graphs_the_loop_launches_every_kernel() -> None:
    eager = decode_cost(case(RunConfig(sampler=SamplerConfig(enforce_eager=True))))
    assert eager.loop_step_s == pytest.approx(2e-3 + 28 * 60e-6)


def test_without_a_kl_penalty_there_is_no_reference_pass() -> None:
    with_penalty, without = (
        plan_of(case(replace(FITS, algorithm=AlgorithmConfig(kl_beta=beta)))).time.parts
        for beta in (1e-4, 0.0)
    )
    assert without["reference log-probabilities"] == 0
    assert with_penalty["reference log-probabilities"] > without["old log-probabilities"] > 0


@pytest.mark.parametrize(
    ("step_s", "every_n", "minutes", "expected_s"),
    [
        (60.0, 20, 15.0, 900.0),
        (91.0, 20, 15.0, 910.0),  # ten steps, the first number that takes more than a quarter of an hour
        (10.0, 20, 15.0, 200.0),
        (1010.0, 20, 15.0, 1010.0),
        (91.0, 0, 15.0, 910.0),
        (91.0, 20, 0.0, 1820.0),
        (91.0, 0, 0.0, 9100.0),
    ],
)
def test_what_a_crash_costs(step_s: float, every_n: int, minutes: float, expected_s: float) -> None:
    params = CheckpointCallbackParams(every_n_train_steps=every_n, every_minutes=minutes)
    config = RunConfig(
        trainer=TrainerConfig(num_steps=100), exp_manager=ExpManagerConfig(checkpoint_callback_params=params)
    )
    assert between_checkpoints_s(config, step_s) == pytest.approx(expected_s)


def test_a_bubble_is_p_minus_1_over_m() -> None:
    """arXiv 2104.04473: 4 stages and 8 micro-batches take 3/8 more time."""
    rollouts = Rollouts(tokens=16384.0, response_tokens=16384.0, attended_tokens=8192.0)
    cluster = Cluster(num_nodes=1, gpus_per_node=4)
    trainer = TrainerConfig(prompts_per_step=4, updates_per_step=1, micro_batch_tokens=32768)
    flat = RunConfig(trainer=trainer, sampler=SamplerConfig(num_rollouts=4))
    without = case(flat, cluster=cluster)
    bubbles = case(replace(flat, trainer=replace(trainer, pipeline_parallel=4)), cluster=cluster)
    ratio = update_s(bubbles, rollouts, 16) / update_s(without, rollouts, 16)
    assert ratio == pytest.approx(1 + 3 / 8)
    # A pass takes chunks of up to 16 micro-batches, so here all 8 at once.
    ratio = forward_s(bubbles, rollouts, 16) / forward_s(without, rollouts, 16)
    assert ratio == pytest.approx(1 + 3 / 8)


def test_one_replica_has_no_gradients_to_exchange() -> None:
    assert gradient_sync_s(case(RunConfig(), cluster=Cluster(num_nodes=1, gpus_per_node=1))) == 0
    sharded = gradient_sync_s(case(RunConfig()))
    whole = gradient_sync_s(case(RunConfig(trainer=TrainerConfig(distributed_optimizer=False))))
    assert 0 < sharded < whole


def test_the_tail_bounds_what_more_gpus_bring() -> None:
    few, many = (
        plan_of(case(FITS, cluster=Cluster(num_nodes=nodes, gpus_per_node=8))).time for nodes in (2, 16)
    )
    assert few.parts["updates"] == pytest.approx(8 * many.parts["updates"])
    longest = FITS.sampler.max_response_tokens * decode_cost(case(FITS)).step_s
    assert many.parts["sampling"] > longest
    assert few.parts["sampling"] < 8 * many.parts["sampling"]


def test_prompts_that_teach_nothing_cost_sampling_and_no_update() -> None:
    good, bad = (plan_of(case(FITS, informative_share=share)).time for share in (0.9, 0.4))
    assert bad.parts["sampling"] > 1.3 * good.parts["sampling"]
    assert bad.parts["updates"] == good.parts["updates"]
    assert bad.parts["old log-probabilities"] == pytest.approx(good.parts["old log-probabilities"], rel=0.01)
    static = replace(FITS, dynamic_sampling=DynamicSamplingConfig(enabled=False))
    assert plan_of(case(static)).rollouts_per_engine == 256 * 16 / case(static).num_engines


def test_sampling_ahead_hides_at_most_what_the_policy_does_meanwhile() -> None:
    config = replace(
        FITS,
        model=ModelConfig(recompute=Recompute.full),
        algorithm=AlgorithmConfig(correction_level=CorrectionLevel.token),
        sampler=replace(FITS.sampler, release_memory=False, memory_fraction=0.4),
    )
    begun_ahead = replace(config, sampler=replace(config.sampler, ahead=True))
    one, ahead = (plan_of(case(c)).time for c in (config, begun_ahead))
    assert {k: v for k, v in ahead.parts.items() if k != "sampling"} == {
        k: v for k, v in one.parts.items() if k != "sampling"
    }
    assert ahead.seconds + ahead.hidden_s == pytest.approx(one.seconds)
    assert (one.hidden_s, ahead.hidden_s > 0) == (0.0, True)
    assert ahead.seconds == pytest.approx(one.parts["sampling"] + one.parts["refit"]), (
        "sampling is the longer part"
    )


def test_what_does_not_fit_is_refused_with_a_way_out_that_fits() -> None:
    with pytest.raises(ConfigError, match=r"stage main: updates would need \d+\.\d GiB") as caught:
        plan_of(case(RunConfig()))
    way_out = str(caught.value).split("write ")[1].rstrip(".")
    assert way_out == "trainer.micro_batch_tokens=16384 sampler.release_memory=true"
    smaller = RunConfig(
        trainer=TrainerConfig(micro_batch_tokens=16384), sampler=SamplerConfig(release_memory=True)
    )
    assert fits(case(smaller))


def test_the_way_out_of_sampling_ahead_is_to_leave_it_off() -> None:
    algorithm = AlgorithmConfig(correction_level=CorrectionLevel.token)
    with pytest.raises(ConfigError, match=r"sampler\.release_memory=true sampler\.ahead=false") as caught:
        plan_of(case(RunConfig(sampler=SamplerConfig(ahead=True, memory_fraction=0.8), algorithm=algorithm)))
    assert "updates would need" in str(caught.value)


def test_what_fits_nowhere_is_said_to() -> None:
    one = Cluster(num_nodes=1, gpus_per_node=1)
    config = RunConfig(
        sampler=SamplerConfig(memory_fraction=0.95), model=ModelConfig(recompute=Recompute.full)
    )
    with pytest.raises(ConfigError, match="no layout of this model fits on this cluster"):
        plan_of(case(config, model=shape_of("qwen2.5-14b"), cluster=one))


def test_layouts_that_fit_fit_and_come_fastest_first() -> None:
    seven = case(FITS, model=shape_of("qwen2.5-7b"))
    plans = fitting_layouts(seven)
    assert len(plans) > 5
    assert all(fits(replace(seven, config=plan.config)) for plan in plans)
    seconds = [plan.time.seconds for plan in plans]
    assert seconds == sorted(seconds)


def test_a_gpu_that_nobody_knows() -> None:
    with pytest.raises(ConfigError, match="--gpu=b300 is not known"):
        gpu_of("b300")


def test_published_numbers_are_met_within_a_factor_of_two_and_a_half() -> None:
    """The comparisons of docs/scale.md. The bound limits how much worse a change may make them. NeMo RL's number is
    itself a bound."""
    for row in comparisons():
        low = 0.0 if row.published.startswith("below") else 0.4
        assert low < row.estimate / row.number < 2.5, row.what


@pytest.mark.medium
def test_the_tables_of_the_documentation_are_what_is_computed() -> None:
    documented = (ROOT / "docs" / "scale.md").read_text()
    for line in [*scale_text(scale_plans()), *comparisons_text(comparisons())]:
        assert line in documented
