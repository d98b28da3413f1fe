"""Tests of the estimated time of a step: operations by hand, and the effect of more hardware; and of what fits. The
published rows are held by tests/experiments/test_estimates.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.known import GPUS, shape_of
from nemo_prorl.cluster.scale.layouts import fits, fitting_layouts, plan_of
from nemo_prorl.cluster.scale.roofline import (
    FITTED,
    decode_cost,
    gradient_exchange_s,
    logprobs_s,
    mean_rollout,
    sampling_s,
    updates_s,
)
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import (
    AlgorithmConfig,
    ConfigError,
    CorrectionLevel,
    DynamicSamplingConfig,
    ModelConfig,
    Optimizer,
    Recompute,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
)
from nemo_prorl.engines.megatron.architecture import Architecture

SMALL, BIG = shape_of("r1-distill-qwen-1.5b"), shape_of("llama3-70b")
PAPER = Cluster(num_nodes=4, gpus_per_node=8)
FITS = RunConfig(
    trainer=TrainerConfig(micro_batch_tokens=20480),
    sampler=SamplerConfig(max_response_tokens=8192, release_memory=True, memory_fraction=0.7),
)
"""The paper's step as in conf/train.yaml."""
STATIC = DynamicSamplingConfig(enabled=False)


def case(config: RunConfig, model: Architecture = SMALL, cluster: Cluster = PAPER, **shares: float) -> Case:
    return Case(model=model, config=config, cluster=cluster, gpu=GPUS["h100"], **shares)


def of_length(tokens: int) -> RunConfig:
    """Returns a configuration whose rollouts have about `tokens` tokens, nearly all of them of the response."""
    return RunConfig(sampler=SamplerConfig(max_prompt_tokens=1, max_response_tokens=2 * tokens))


def test_operations_by_hand() -> None:
    """6 P per token (arXiv 2001.08361) for a model that consists mostly of matrices and a short context. Attention
    grows with the square of the length, and is most of a long response."""
    matrices = BIG.num_parameters - BIG.vocab_size * BIG.hidden_size
    rollout = mean_rollout(case(of_length(100), model=BIG))
    assert sum(rollout.forward) == pytest.approx(2 * matrices * 100, rel=0.02)
    for recompute, passes in ((Recompute.none, 6), (Recompute.full, 8)):
        assert sum(rollout.update(recompute)) == pytest.approx(passes * matrices * 100, rel=0.03)
    short, long = (mean_rollout(case(of_length(tokens))).forward for tokens in (1_000, 100_000))
    assert long[1] == pytest.approx(10_000 * short[1], rel=0.01)
    assert long[1] > 100 * short[0]
    longest = case(of_length(5_000), response_share=0.9999)
    assert longest.rollout_context == pytest.approx(5_000, rel=0.001), "half of a causal mask"


def test_a_decoding_step_reads_every_weight_once() -> None:
    """3.1 GB of weights, without the embedding table, at 3.35 TB/s take 0.9 ms; the loop takes 2 ms, and without CUDA
    graphs launches every kernel."""
    cost = decode_cost(case(RunConfig()))
    assert cost.step_s == pytest.approx(2 * (1_777_088_000 - 151936 * 1536) / 3.35e12)
    assert cost.context_token_s == pytest.approx(28_672 / 3.35e12)
    assert cost.loop_step_s == 2e-3
    eager = decode_cost(case(RunConfig(sampler=SamplerConfig(enforce_eager=True))))
    assert eager.loop_step_s == pytest.approx(2e-3 + 28 * 60e-6)


def test_one_response_takes_its_steps() -> None:
    """Engines with one sequence each, which is as long as it may be, take a loop's step for each token."""
    trainer = TrainerConfig(prompts_per_step=4, updates_per_step=1)
    sampler = replace(FITS.sampler, num_rollouts=8)
    one = case(replace(FITS, trainer=trainer, sampler=sampler, dynamic_sampling=STATIC))
    cost = decode_cost(one)
    least = 8192 * cost.loop_step_s + one.response_tokens * cost.loop_sequence_s + cost.prefill_s
    assert sampling_s(one, 100) == pytest.approx(least / FITTED.sampling)
    assert sampling_s(one, 1) == sampling_s(one, 100)


def test_without_a_kl_penalty_there_is_no_reference_pass() -> None:
    algorithms = (AlgorithmConfig(kl_beta=beta) for beta in (1e-4, 0.0))
    with_penalty, without = (logprobs_s(case(replace(FITS, algorithm=one))) for one in algorithms)
    assert with_penalty == pytest.approx(2 * without)


def test_a_bubble_is_p_minus_1_over_m() -> None:
    """arXiv 2104.04473: 4 stages and 8 micro-batches take 3/8 more time. Sequences of 16k are mostly attention."""
    cluster = Cluster(num_nodes=1, gpus_per_node=4)
    trainer = TrainerConfig(prompts_per_step=4, updates_per_step=1, micro_batch_tokens=32768)
    sampler = SamplerConfig(num_rollouts=4, max_prompt_tokens=1, max_response_tokens=2 * 16383)
    without_kl = AlgorithmConfig(kl_beta=0.0)
    flat = RunConfig(trainer=trainer, sampler=sampler, dynamic_sampling=STATIC, algorithm=without_kl)
    bubbles = replace(flat, trainer=replace(trainer, pipeline_parallel=4))
    for seconds in (updates_s, logprobs_s):  # passes take chunks of up to 16 micro-batches, so all 8 at once
        ratio = seconds(case(bubbles, cluster=cluster)) / seconds(case(flat, cluster=cluster))
        assert ratio == pytest.approx(1 + 3 / 8, rel=0.02)


def test_one_replica_has_no_gradients_to_exchange() -> None:
    assert gradient_exchange_s(case(RunConfig(), cluster=Cluster(num_nodes=1, gpus_per_node=1))) == 0
    sharded = gradient_exchange_s(case(RunConfig()))
    whole = gradient_exchange_s(case(RunConfig(trainer=TrainerConfig(distributed_optimizer=False))))
    assert 0 < sharded < whole
    sgd = TrainerConfig(optimizer=Optimizer.sgd)
    assert gradient_exchange_s(case(RunConfig(trainer=sgd))) == whole, "its state is not sharded"


def test_the_longest_response_bounds_what_more_gpus_bring() -> None:
    clusters = (Cluster(num_nodes=nodes, gpus_per_node=8) for nodes in (2, 16))
    few, many = (plan_of(case(FITS, cluster=cluster)).time.parts for cluster in clusters)
    assert few["updates"] == pytest.approx(8 * many["updates"], rel=0.2)
    assert many["sampling"] > FITS.sampler.max_response_tokens * decode_cost(case(FITS)).loop_step_s
    assert few["sampling"] < 8 * many["sampling"]


def test_prompts_that_teach_nothing_cost_sampling_and_no_update() -> None:
    good, bad = (plan_of(case(FITS, informative_share=share)).time.parts for share in (0.9, 0.4))
    assert bad["sampling"] > 1.3 * good["sampling"]
    assert bad["updates"] == good["updates"]
    assert bad["passes"] == pytest.approx(good["passes"], rel=0.01)
    static = case(replace(FITS, dynamic_sampling=STATIC))
    assert plan_of(static).rollouts_per_engine == 256 * 16 / static.num_engines


def test_what_does_not_fit_is_refused_with_a_way_out_that_fits() -> None:
    with pytest.raises(ConfigError, match=r"stage main: updates would need \d+\.\d GiB") as caught:
        plan_of(case(RunConfig()))
    way_out = str(caught.value).split("write ")[1].rstrip(".")
    assert way_out == "trainer.micro_batch_tokens=16384 sampler.release_memory=true"
    trainer, sampler = TrainerConfig(micro_batch_tokens=16384), SamplerConfig(release_memory=True)
    assert fits(case(RunConfig(trainer=trainer, sampler=sampler)))
    algorithm = AlgorithmConfig(correction_level=CorrectionLevel.token, kl_weighted=True)
    with pytest.raises(ConfigError, match=r"updates would need .* sampler\.ahead=false"):
        plan_of(case(RunConfig(sampler=SamplerConfig(ahead=True, memory_fraction=0.8), algorithm=algorithm)))
    sampler, model = SamplerConfig(memory_fraction=0.95), ModelConfig(recompute=Recompute.full)
    one = Cluster(num_nodes=1, gpus_per_node=1)
    with pytest.raises(ConfigError, match="no layout of this model fits on this cluster"):
        plan_of(case(RunConfig(sampler=sampler, model=model), model=shape_of("qwen2.5-14b"), cluster=one))


def test_layouts_that_fit_fit_and_come_fastest_first() -> None:
    seven = case(FITS, model=shape_of("qwen2.5-7b"))
    plans = fitting_layouts(seven)
    assert len(plans) > 5
    assert all(fits(replace(seven, config=plan.config)) for plan in plans)
    seconds = [plan.time.seconds for plan in plans]
    assert seconds == sorted(seconds)
