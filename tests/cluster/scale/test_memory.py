"""Tests of the estimated GPU memory: by hand, against published sizes, and by properties that always hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.known import GPUS, shape_of
from nemo_prorl.cluster.scale.memory import (
    GIB,
    Memory,
    checkpoint_bytes,
    estimate_memory,
    gradient_bytes,
    head_bytes,
    kv_bytes_a_token,
    layer_activation_bytes,
    num_communicators,
    parameters_on_rank,
)
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import (
    AlgorithmConfig,
    ConfigError,
    CorrectionLevel,
    LayerSpec,
    ModelConfig,
    Precision,
    Recompute,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
)
from nemo_prorl.engines.megatron.architecture import Architecture

PAPER = Cluster(num_nodes=4, gpus_per_node=8)
SMALL = shape_of("r1-distill-qwen-1.5b")


def config(
    *,
    model: dict[str, object] | None = None,
    sampler: dict[str, object] | None = None,
    algorithm: AlgorithmConfig | None = None,
    **trainer: object,
) -> RunConfig:
    return RunConfig(
        algorithm=algorithm or AlgorithmConfig(),
        model=ModelConfig(**(model or {})),  # type: ignore[arg-type]
        trainer=TrainerConfig(**trainer),  # type: ignore[arg-type]
        sampler=SamplerConfig(**(sampler or {})),  # type: ignore[arg-type]
    )


def case(config: RunConfig, model: Architecture = SMALL, cluster: Cluster = PAPER) -> Case:
    return Case(model=model, config=config, cluster=cluster, gpu=GPUS["h100"])


def memory_of(config: RunConfig, model: Architecture = SMALL) -> Memory:
    return estimate_memory(case(config, model))


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("r1-distill-qwen-1.5b", 1_777_088_000),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("llama3-70b", 70_553_706_496),
    ],
)
def test_shapes_have_the_sizes_that_the_hub_shows(name: str, num_parameters: int) -> None:
    assert shape_of(name).num_parameters == num_parameters
    assert parameters_on_rank(shape_of(name), config(), 0) == num_parameters


@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen3-4b"])
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 4), (4, 2)])
def test_ranks_hold_the_whole_model_and_nothing_else_but_norms_and_tied_embeddings(
    name: str, tensor: int, pipeline: int
) -> None:
    model = shape_of(name)
    split = config(tensor_parallel=tensor, pipeline_parallel=pipeline)
    held = tensor * sum(parameters_on_rank(model, split, stage) for stage in range(pipeline))
    norms = (
        model.num_layers * (2 * model.hidden_size + 2 * model.head_dim * model.family.qk_norm)
        + model.hidden_size
    )
    second_embedding = model.vocab_size * model.hidden_size if model.tied and pipeline > 1 else 0
    assert held - (tensor - 1) * norms - second_embedding == model.num_parameters


def test_kv_cache_by_hand() -> None:
    """28 layers x 2 heads x 128 x (key and value) x 2 bytes; heads are copied if there are fewer than GPUs."""
    assert kv_bytes_a_token(SMALL, config()) == 28_672
    assert kv_bytes_a_token(SMALL, config(sampler={"tensor_parallel": 2})) == 14_336
    assert kv_bytes_a_token(SMALL, config(sampler={"tensor_parallel": 4})) == 14_336


def test_logits_exist_for_a_chunk_only() -> None:
    """8k tokens of the whole vocabulary (152k entries) would take 5 GB in fp32."""
    forward = head_bytes(SMALL, config(), 8192, backward=False)
    assert forward == 1024 * 151936 * 8 + 8192 * 1536 * 2
    assert head_bytes(SMALL, config(tensor_parallel=2), 8192, backward=False) < 0.55 * forward
    # Backward: a chunk in fp32 and 16 bits, hidden states and their gradient; the head's is in Megatron's buffer.
    backward = head_bytes(SMALL, config(), 8192, backward=True)
    assert backward == 1024 * 151936 * 6 + 2 * 8192 * 1536 * 2
    fp32 = config(model={"precision": Precision.fp32})
    assert head_bytes(SMALL, fp32, 8192, backward=True) == (1024 + 1536) * 151936 * 4 + 2 * 8192 * 1536 * 4


def test_recomputation_and_parallelism_only_ever_save_activations() -> None:
    def kept(recompute: Recompute, **trainer: object) -> float:
        return layer_activation_bytes(SMALL, config(model={"recompute": recompute}, **trainer))

    assert kept(Recompute.full) == 2 * SMALL.hidden_size
    assert kept(Recompute.full) < kept(Recompute.selective) < kept(Recompute.none)
    split = kept(Recompute.none, tensor_parallel=2)
    assert kept(Recompute.none, tensor_parallel=2, sequence_parallel=True) < split < kept(Recompute.none)
    local = config(model={"layer_spec": LayerSpec.local})
    assert layer_activation_bytes(SMALL, local) > kept(Recompute.none)


def test_policy_and_sampler_make_room_for_each_other_or_neither_does() -> None:
    awake = memory_of(config())
    asleep = memory_of(config(sampler={"release_memory": True}))
    of_updates = awake.fragmentation * sum(
        awake.phases["updates"][part] for part in ("gradients", "optimizer")
    )
    for phase in ("sampling", "passes"):
        assert awake.total(phase) - asleep.total(phase) == pytest.approx(of_updates)
    assert awake.total("updates") - asleep.total("updates") > 0.4 * 79 * GIB


@pytest.mark.parametrize(("eager", "graphs"), [(False, (51 + 32) * 20 * 2**20), (True, 0)])
def test_a_sampler_that_slept_has_its_graphs_in_updates_and_no_kv_cache_in_the_refit(
    eager: bool, graphs: int
) -> None:
    """Without CUDA graphs it keeps nothing; there are 83 sizes up to 1,024 sequences. The cache is allocated once the
    weights are loaded."""
    sampler: dict[str, object] = {"enforce_eager": eager}
    awake = memory_of(config(sampler=sampler))
    slept = memory_of(config(sampler=sampler | {"release_memory": True}))
    assert slept.phases["updates"]["vLLM"] == graphs
    held = slept.vllm_parts["weights"] + slept.vllm_parts["working memory"] + graphs
    assert slept.phases["refit"]["vLLM"] == pytest.approx(held)
    assert awake.phases["refit"]["vLLM"] == pytest.approx(0.5 * 79.1 * GIB), "it has kept its cache"


def test_vllm_takes_what_it_was_given_and_its_cache_what_the_rest_leaves() -> None:
    memory = memory_of(config())
    assert sum(memory.vllm_parts.values()) == pytest.approx(0.5 * 79.1 * GIB)
    assert memory.phases["sampling"]["vLLM"] == pytest.approx(0.5 * 79.1 * GIB)
    more = memory_of(config(sampler={"memory_fraction": 0.7}))
    assert more.num_places > memory.num_places
    rollout = 28_672 * (256 + config().sampler.max_response_tokens / 2)  # a token takes 28 KiB
    assert memory.num_fitting == int(memory.vllm_parts["KV cache"] / rollout)
    few = memory_of(config(sampler={"max_sequences": 8}))
    assert few.num_places == 8 < few.num_fitting
    wide = memory_of(config(sampler={"max_sequences": 8192, "memory_fraction": 0.7}))
    assert wide.vllm_parts["working memory"] == 4 * 8192 * SMALL.vocab_size, (
        "logits are in fp32 in any precision"
    )


@pytest.mark.parametrize(
    ("gpu", "gib", "tokens"), [("h100", 79.1, 16384), ("a100", 79.2, 8192), ("h100", 24, 8192)]
)
def test_vllm_prefills_half_as_many_tokens_at_a_time_on_smaller_gpus_and_on_a100(
    gpu: str, gib: float, tokens: int
) -> None:
    """vLLM 0.32, engine/arg_utils.py: its working memory is that of a pass of so many tokens in bf16."""
    own = replace(case(config(sampler={"max_sequences": 1})), gpu=replace(GPUS[gpu], memory_gib=gib))
    a_token = 2 * (3 * SMALL.ffn_size + 4 * SMALL.hidden_size)
    assert estimate_memory(own).vllm_parts["working memory"] == tokens * a_token


def test_the_first_pipeline_stage_is_the_fullest_of_a_deep_model() -> None:
    """The first stage holds as many micro-batches as there are stages."""
    deep = config(
        tensor_parallel=8,
        pipeline_parallel=4,
        sequence_parallel=True,
        micro_batch_tokens=8192,
        sampler={"tensor_parallel": 8},
    )
    model = shape_of("llama3-70b")
    memory = estimate_memory(case(deep, model, Cluster(num_nodes=32, gpus_per_node=8)))
    assert memory.phases["updates"]["gradients"] == gradient_bytes(parameters_on_rank(model, deep, 0))
    assert memory.fullest_phase == "updates"


def test_a_sampler_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="no room for the sampler's weights"):
        memory_of(config(), shape_of("qwen2.5-32b"))


@pytest.mark.parametrize(
    ("trainer", "sampler", "model", "num_gpus", "expected"),
    [
        ({}, 1, "qwen2.5-7b", 1, 0),
        ({}, 1, "qwen2.5-7b", 8, 2),  # all ranks, and the replicas
        ({"tensor_parallel": 8}, 1, "qwen2.5-7b", 8, 2),  # all ranks, and the tensor-parallel ones
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, 1, "qwen2.5-7b", 8, 4),
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, 4, "qwen3-4b", 8, 7),  # tied, and vLLM's two
    ],
)
def test_communicators_are_counted(
    trainer: dict[str, object], sampler: int, model: str, num_gpus: int, expected: int
) -> None:
    split = config(sampler={"tensor_parallel": sampler}, **trainer)
    cluster = Cluster(num_nodes=1, gpus_per_node=num_gpus)
    assert num_communicators(case(split, shape_of(model), cluster)) == expected


def test_the_margin_by_hand() -> None:
    """3 GiB, 0.4 for each of two communicators, and 5 % of what is not vLLM's; 25 % and two more communicators if vLLM
    spans two GPUs, because then expandable segments are off."""
    one = memory_of(config())
    two = memory_of(config(sampler={"tensor_parallel": 2}))
    for memory, fixed, reserved in ((one, 3.8, 1.05), (two, 4.6, 1.25)):
        parts = memory.phases["passes"]
        others = sum(parts.values()) - parts["vLLM"]
        assert memory.total("passes") == pytest.approx(fixed * GIB + parts["vLLM"] + reserved * others)


def test_a_refit_holds_the_embedding_twice_where_it_is_split() -> None:
    """32B at TP8: 1.5 GB of embedding, gathered from its shards, and 1 GB / 8 of a layer that vLLM has not yet
    completed."""
    model, whole = shape_of("qwen2.5-32b"), 2 * 152064 * 5120
    layer = 2 * (model.num_parameters - 2 * 152064 * 5120) / 64
    split = config(tensor_parallel=8, sampler={"tensor_parallel": 8})
    memory = memory_of(split, model)
    assert memory.phases["refit"]["refit"] == pytest.approx(2 * whole + layer / 8)
    assert memory.phases["refit"]["vLLM"] == memory.phases["sampling"]["vLLM"]
    alone = memory_of(config()).phases["refit"]["refit"]
    assert alone == pytest.approx(2 * (1_777_088_000 - 2 * 151936 * 1536) / 28)


def test_each_phase_holds_what_it_works_with() -> None:
    memory = memory_of(config(sampler={"release_memory": True}))
    assert "reference" not in memory.phases["updates"]
    assert "gradients" not in memory.phases["sampling"]
    assert memory.phases["passes"]["reference"] == memory.host["reference"] == 2 * 1_777_088_000
    without_kl = memory_of(config(algorithm=AlgorithmConfig(kl_beta=0.0)))
    assert "reference" not in without_kl.phases["passes"]


def test_a_checkpoint_on_disk_by_hand() -> None:
    """In bf16 a parameter takes two bytes for the weights, two for the reference and twelve for the optimizer, in any
    layout."""
    for split in (1, 2):
        size = checkpoint_bytes(SMALL, config(tensor_parallel=split, pipeline_parallel=split))
        assert size == pytest.approx(16 * 1_777_088_000, rel=0.001), "norms are on every tensor-parallel rank"


def test_what_the_host_holds_for_a_gpu_by_hand() -> None:
    """A checkpoint takes 14 bytes per parameter, including weights, shared by 32 replicas; a sleeping sampler takes
    nothing."""
    asleep = config(sampler={"release_memory": True, "tensor_parallel": 2})
    host = memory_of(asleep).host
    assert host == memory_of(config()).host | {"optimizer": host["optimizer"]}
    assert host["checkpoint"] == 14 * 1_777_088_000 / 32
    assert host["optimizer"] == 12 * 1_777_088_000 / 32


def test_sampling_ahead_holds_the_samplers_logits_beside_everything_else() -> None:
    logits = 4 * 1024 * SMALL.vocab_size
    for ahead, beside in ((False, 0), (True, logits)):
        begun = config(
            sampler={"ahead": ahead},
            algorithm=AlgorithmConfig(correction_level=CorrectionLevel.token, kl_weighted=True),
        )
        memory = memory_of(begun)
        assert memory.phases["sampling"]["logits"] == logits
        tokens = config().trainer.micro_batch_tokens
        for phase, backward in (("passes", False), ("updates", True)):
            alone = head_bytes(SMALL, config(), tokens, backward=backward)
            assert memory.phases[phase]["logits"] == alone + beside
