"""The sampler of every family of models: it agrees with the policy that streams its weights, and a refit in place gives
exactly the engine that would have started from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import Qwen2Tokenizer

from benchmarks.gpu_check import batches, tiny_model
from nemo_prorl import distributed
from nemo_prorl.data.batch import token_batch
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.engines.vllm.sampler import VllmSampler
from nemo_prorl.types import Prompt, Rollout
from tests.engines.conftest import FAMILIES, build_hf_model

PROMPTS = tuple(
    Prompt(uid=f"p{n}", domain="logic", source="test", text="", token_ids=tuple(range(4, 4 + n)), task={})
    for n in (3, 40)
)


def sampled(draw: Callable[..., list[list[Rollout]]], sampler: VllmSampler) -> list[Rollout]:
    groups = draw(sampler, PROMPTS, num_rollouts=4, max_response_tokens=100)
    return [rollout for group in groups for rollout in group]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_sampler_is_the_policy_and_a_refit_a_fresh_engine(
    family: str, tmp_path: Path, tokenizer: Qwen2Tokenizer, draw: Callable[..., list[list[Rollout]]]
) -> None:
    folders = [build_hf_model(tmp_path / str(seed), family, seed=seed) for seed in (0, 1)]
    ranks = distributed.initialise(1, 1)
    first, second = (MegatronPolicy(batches.run_config(folder), ranks) for folder in folders)
    sampler = VllmSampler(tiny_model.run_config(folders[0]), ranks, tokenizer)
    try:
        fresh = sampled(draw, sampler)
        policy_logprobs = first.logprobs(token_batch(fresh))
        for row, rollout in enumerate(fresh):
            start = len(rollout.prompt.token_ids)
            wanted = policy_logprobs[row, start : rollout.length]
            np.testing.assert_allclose(rollout.sampler_logprobs, wanted, atol=1e-4, rtol=0)
        assert not sampler.load_weights(second.named_weights(), 1).not_held
        others = sampled(draw, sampler)
        sampler.load_weights(first.named_weights(), 2)
        again = sampled(draw, sampler)
    finally:
        sampler.close()
    assert [o.token_ids.tolist() for o in others] != [f.token_ids.tolist() for f in fresh]
    for mine, theirs in zip(again, fresh, strict=True):
        assert mine.token_ids.tolist() == theirs.token_ids.tolist()
        assert mine.sampler_logprobs.tolist() == theirs.sampler_logprobs.tolist()
