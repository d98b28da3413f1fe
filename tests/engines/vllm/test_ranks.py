"""Engines inside a job of two ranks: one each with prompts of its own, or one that both share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import AutoTokenizer

from nemo_prorl import distributed
from nemo_prorl.config import ModelConfig, Precision, RunConfig, SamplerConfig
from nemo_prorl.engines.interface import SamplingSettings
from nemo_prorl.engines.vllm.sampler import VllmSampler
from nemo_prorl.types import Prompt
from tests.engines.conftest import run_ranks
from tests.engines.vllm.test_sampling import reference_logprobs


def sample_as_rank(
    models_dir: Path, tensor_parallel: int, texts: list[list[str]], precision: Precision = Precision.fp32
) -> dict[str, Any]:
    """Samples this rank's texts with one checkpoint, takes the weights of another, samples again, closes, and shows
    that the job's process group is alive."""
    ranks = distributed.initialise(1, 1)
    rank = ranks.layout.rank
    config = RunConfig(
        model=ModelConfig(path=str(models_dir / "base"), precision=precision),
        sampler=SamplerConfig(
            max_prompt_tokens=256, max_response_tokens=256, kv_cache_mib=64, tensor_parallel=tensor_parallel
        ),
    )
    tokenizer = AutoTokenizer.from_pretrained(models_dir / "base")
    sampler = VllmSampler(config, ranks, tokenizer)
    settings = SamplingSettings(num_rollouts=4, temperature=1.2, top_p=1.0, max_response_tokens=24, seed=7)
    prompts = [
        Prompt(uid=text, domain="", source="", text=text, token_ids=tuple(tokenizer.encode(text)), task={})
        for text in texts[rank]
    ]

    def sample() -> dict[str, list[Any]]:
        groups = sampler.sample(prompts, settings, lambda rollout: None)
        return {g[0].prompt.uid: [(r.token_ids.tolist(), r.sampler_logprobs) for r in g] for g in groups}

    before = sample()
    loaded = sampler.load_weights(load_file(models_dir / "other" / "model.safetensors").items(), 1)
    after = sample()
    sampler.close()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    engine = (sampler.engine, sampler.num_engines)
    return {
        "before": before,
        "after": after,
        "engine": engine,
        "sum_after_close": total.item(),
        "not_held": loaded.not_held,
    }


@pytest.fixture
def left_behind() -> Iterator[None]:
    """The memory of an engine of two ranks that were killed, under the name that vLLM gives it."""
    files = [Path(f"/dev/shm/-tp:0-[0-1]-cpushm_{rank}") for rank in range(2)]
    for file in files:
        file.touch()
    yield
    for file in files:
        file.unlink(missing_ok=True)
    assert not list(Path("/dev/shm").glob("nemo_prorl-*")), "it ends with the processes that use it"


@pytest.mark.slow
@pytest.mark.usefixtures("left_behind")
@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_two_ranks_sample_what_one_does(sampler, weights_of, make_prompt, draw, models_dir, tensor_parallel):
    texts = ["3+4=?", "other", "x" * 70]
    # Engines of their own get different and different amounts of work; a shared one the same.
    prompts = [texts, texts[1:2]] if tensor_parallel == 1 else [texts, texts]
    expected = {}
    for moment, name in (("before", "base"), ("after", "other")):
        sampler.load_weights(weights_of(name).items(), 0)
        expected[moment] = dict(zip(texts, draw(sampler, [make_prompt(text) for text in texts]), strict=True))

    job = {"models_dir": models_dir, "tensor_parallel": tensor_parallel, "texts": prompts}
    for rank, got in enumerate(run_ranks(sample_as_rank, 2, **job)):
        assert got["engine"] == (rank if tensor_parallel == 1 else 0, 2 // tensor_parallel)
        assert got["sum_after_close"] == 3.0, "the process group must outlive the engine"
        assert got["not_held"] == (), "whole or in shards"
        for moment in ("before", "after"):
            assert list(got[moment]) == prompts[rank]
            for text, rollouts in got[moment].items():
                for rollout, (token_ids, logprobs) in zip(expected[moment][text], rollouts, strict=True):
                    assert rollout.token_ids.tolist() == token_ids
                    # Two ranks add up each layer in another order than one does.
                    tolerance = 0 if tensor_parallel == 1 else 1e-4
                    np.testing.assert_allclose(rollout.sampler_logprobs, logprobs, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_a_shared_engine_has_fp32_logits_in_bf16(hf_model, make_prompt, models_dir):
    """Each rank computes logits of its part of the vocabulary, and vLLM gathers them."""
    texts = ["3+4=?", "x" * 70]
    job = {"models_dir": models_dir, "tensor_parallel": 2, "texts": [texts, texts]}
    first, second = run_ranks(sample_as_rank, 2, precision=Precision.bf16, **job)
    assert first["not_held"] == second["not_held"] == ()
    for moment, name in (("before", "base"), ("after", "other")):
        apart = []
        for text in texts:
            pairs = zip(first[moment][text], second[moment][text], strict=True)
            for (token_ids, logprobs), other in pairs:
                assert token_ids == other[0]
                np.testing.assert_array_equal(logprobs, other[1])
                rollout = SimpleNamespace(prompt=make_prompt(text), token_ids=token_ids)
                apart.append(np.abs(logprobs - reference_logprobs(hf_model(name), rollout, 1.2)))
        assert np.concatenate(apart).mean() < 0.05
