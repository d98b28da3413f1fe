"""Tests of which chains a cluster can run."""

from dataclasses import replace

import pytest

from nemo_prorl.cluster.plan.fit import Cluster, check_handovers, check_stage
from nemo_prorl.cluster.scale.known import shape_of
from nemo_prorl.config import (
    ConfigError,
    ExpManagerConfig,
    ModelConfig,
    RunConfig,
    SamplerConfig,
    StageConfig,
)
from nemo_prorl.config import TrainerConfig as T
from nemo_prorl.engines.megatron.architecture import Architecture

PAPER = Cluster(num_nodes=4, gpus_per_node=8)
MODEL = shape_of("r1-distill-qwen-1.5b")


def run(trainer: T | None = None, sampler: SamplerConfig | None = None) -> RunConfig:
    return RunConfig(
        stage=StageConfig(name="run1"), trainer=trainer or T(), sampler=sampler or SamplerConfig()
    )


@pytest.mark.parametrize(
    ("config", "cluster"),
    [
        (run(), PAPER),
        (run(T(tensor_parallel=2, pipeline_parallel=4)), PAPER),
        (run(T(pipeline_parallel=16)), PAPER),
        (run(T(prompts_per_step=2, updates_per_step=1)), PAPER),  # 32 rollouts for 32 replicas
        (run(sampler=SamplerConfig(tensor_parallel=2)), PAPER),
        (run(), Cluster(num_nodes=1, gpus_per_node=1)),
        (run(sampler=SamplerConfig(max_prompt_tokens=2048, max_response_tokens=129024)), PAPER),
    ],
)
def test_what_works_passes(config: RunConfig, cluster: Cluster) -> None:
    check_stage(config, cluster, MODEL)
    check_stage(config, cluster, None)


@pytest.mark.parametrize(
    ("config", "cluster", "words"),
    [
        (run(T(pipeline_parallel=5)), PAPER, "cannot hold whole replicas"),
        (run(T(tensor_parallel=3)), PAPER, "trainer.tensor_parallel=3 does not divide the 8 GPUs of a node"),
        (
            run(T(tensor_parallel=16)),
            PAPER,
            "trainer.tensor_parallel=16 does not divide the 8 GPUs of a node",
        ),
        (run(sampler=SamplerConfig(tensor_parallel=16)), PAPER, "sampler.tensor_parallel=16 does not divide"),
        (run(T(prompts_per_step=1, updates_per_step=1)), PAPER, "x 16 rollouts cannot feed 32 replicas"),
        (run(T(prompts_per_step=4, updates_per_step=4)), PAPER, "an update of 1 prompts"),
        (run(), Cluster(num_nodes=200, gpus_per_node=8), "cannot feed 1600 replicas"),
    ],
)
def test_what_the_cluster_cannot_run_is_refused_with_and_without_a_model(
    config: RunConfig, cluster: Cluster, words: str
) -> None:
    for model in (MODEL, None):
        with pytest.raises(ConfigError) as caught:
            check_stage(config, cluster, model)
        assert words in str(caught.value)
        assert str(caught.value).startswith("stage run1: ")


@pytest.mark.parametrize(
    ("config", "model", "words"),
    [
        (
            run(sampler=SamplerConfig(max_prompt_tokens=2048, max_response_tokens=129025)),
            MODEL,
            "max_position_embeddings=131072",
        ),
        (run(T(tensor_parallel=4)), MODEL, "does not divide the model's 2 key-value heads"),
        (run(T(pipeline_parallel=32)), MODEL, "more than the model's 28 layers"),
        (run(sampler=SamplerConfig(tensor_parallel=8)), MODEL, "12 attention heads"),
    ],
)
def test_what_the_model_cannot_do_is_refused_when_the_model_is_here(
    config: RunConfig, model: Architecture, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_stage(config, PAPER, model)
    check_stage(config, PAPER, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": ModelConfig(path="other")}, "model.path=other"),
        ({"exp_manager": ExpManagerConfig(explicit_log_dir="runs/x")}, "explicit_log_dir=runs/x"),
    ],
)
def test_a_child_lives_in_its_parents_folder_and_has_its_model(change: dict[str, object], words: str) -> None:
    child = replace(run(), stage=StageConfig(name="run2", parent="run1"), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{words}, but continues stage run1"):
        check_handovers((run(), child))
