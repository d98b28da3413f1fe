"""sampler.engine_args: what a user passes through reaches the engine, and cannot undo what the trainer sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import CompilationConfig, VllmConfig

from nemo_prorl.cluster.scale.memory import num_graph_sizes
from nemo_prorl.config import ConfigError, ModelConfig, RunConfig, SamplerConfig
from nemo_prorl.engines import passthrough
from nemo_prorl.engines.vllm import sampler as vllm_sampler


def test_values_arrive_in_the_engine_and_rollouts_stay_the_same(start, sampler, make_prompt, draw):
    given = {
        "enable_prefix_caching": False,
        "scheduling_policy": "priority",
        "max_num_scheduled_tokens": 2048,
    }
    other = start("base", engine_args=given)
    config = other._llm.llm_engine.vllm_config
    assert config.cache_config.enable_prefix_caching is False
    assert config.scheduler_config.policy == "priority"
    assert config.scheduler_config.max_num_scheduled_tokens == 2048
    assert sampler._llm.llm_engine.vllm_config.cache_config.enable_prefix_caching, "it would be so anyway"
    ((got,), (expected,)) = (
        draw(engine, [make_prompt("3+4=?")], num_rollouts=1) for engine in (other, sampler)
    )
    assert got[0].token_ids.tolist() == expected[0].token_ids.tolist()


@pytest.mark.parametrize("given", [{"max_num_scheduled_tokens": -1}, {"compilation_config": {"zebra": 1}}])
def test_what_vllm_itself_refuses_is_one_sentence(start, given):
    with pytest.raises(
        ConfigError, match=r"^the engine cannot be built with sampler.engine_args={.*}: .*\.$"
    ) as raised:
        start("base", engine_args=given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_everything_that_the_trainer_sets_is_refused(start, monkeypatch, on_cpu):
    """On either device: the tables of passthrough.py name what the call has."""
    passed: dict[str, Any] = {}

    class Recorded(Exception):
        pass

    def record(**settings):
        passed.update(settings)
        raise Recorded

    monkeypatch.setattr(vllm_sampler, "LLM", record)
    monkeypatch.setattr(passthrough, "has_cuda", lambda: not on_cpu)
    monkeypatch.setattr(vllm_sampler, "current_platform", SimpleNamespace(is_cpu=lambda: on_cpu))
    with pytest.raises(Recorded):
        start("base", max_sequences=1000)
    assert len(passed) > 12
    assert on_cpu or "max_cudagraph_capture_size" in passed
    for name in passed:
        with pytest.raises(ConfigError, match=f"sampler.engine_args.{name} (is set by|cannot be set)"):
            start("base", engine_args={name: passed[name]})


@pytest.mark.parametrize(
    ("sequences", "largest"), [(64, 128), (512, 512), (513, 528), (1000, 1008), (1024, 1024)]
)
def test_every_number_of_sequences_has_a_graph_and_is_planned_with_one(sequences, largest):
    """On Hopper, whose largest graph is 512 by default. vLLM itself says which it would capture."""
    sampler = SamplerConfig(max_prompt_tokens=8, max_response_tokens=8, max_sequences=sequences)
    settings = vllm_sampler._settings(
        RunConfig(model=ModelConfig(path="base"), sampler=sampler), reads_weights=False, on_cpu=False
    )
    graphs = CompilationConfig(
        cudagraph_mode="FULL_AND_PIECEWISE",
        max_cudagraph_capture_size=settings.get("max_cudagraph_capture_size"),
    )
    engine: Any = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False),
        compilation_config=graphs,
        scheduler_config=SimpleNamespace(max_num_seqs=sequences, max_num_batched_tokens=16384),
        uniform_decode_query_len=1,
        performance_mode="balanced",
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    VllmConfig._set_cudagraph_sizes(engine)
    assert graphs.max_cudagraph_capture_size == largest >= sequences
    assert len(graphs.cudagraph_capture_sizes) <= num_graph_sizes(sequences)


@pytest.mark.parametrize(
    "given", [{"cudagraph_capture_sizes": [8]}, {"compilation_config": {"max_cudagraph_capture_size": 8}}]
)
def test_sizes_of_graphs_that_a_user_gives_stay(given):
    sampler = SamplerConfig(max_prompt_tokens=8, max_response_tokens=8, engine_args=given)
    settings = vllm_sampler._settings(
        RunConfig(model=ModelConfig(path="base"), sampler=sampler), reads_weights=False, on_cpu=False
    )
    assert "max_cudagraph_capture_size" not in settings
