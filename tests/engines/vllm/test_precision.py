"""In bf16 the sampler's head yields fp32 logits, as the trainer's does: rounded ones would be the largest part of the
difference between the two."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen2ForCausalLM

from nemo_prorl import distributed
from nemo_prorl.config import Precision
from nemo_prorl.data.batch import token_batch
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.engines.vllm import sampler as vllm_sampler
from tests.engines.vllm.conftest import build_model, run_config


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def sharp(request, models_dir):
    """A checkpoint in bf16 whose logits are as large as those of trained language models, 16 and more, where bf16 has
    steps of 0.125: embedding and head have a direction in common, so that every logit has the same large part."""
    folder = build_model(models_dir / f"sharp-{request.param}", seed=3, tied=request.param)
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.model.embed_tokens.weight.data += 0.5
    if not request.param:
        model.lm_head.weight.data += 0.5
    model.bfloat16().save_pretrained(folder)
    return folder


def apart(sampler, policy, draw, prompts):
    """|sampler - trainer| of each token, and again after a refit."""
    differences = []
    for version in (0, 1):
        groups = draw(sampler, prompts, num_rollouts=8, max_response_tokens=48, seed=version)
        rollouts = [rollout for group in groups for rollout in group]
        batch = token_batch(rollouts)
        of_sampler = np.concatenate([rollout.sampler_logprobs for rollout in rollouts])
        differences.append(np.abs(policy.logprobs(batch)[batch.response_mask_BT] - of_sampler))
        assert not sampler.load_weights(policy.named_weights(), version + 1).not_held
    return differences


def test_fp32_logits_bring_the_sampler_near_the_trainer(sharp, start, make_prompt, draw, monkeypatch):
    config = run_config(sharp, precision=Precision.bf16)
    policy = MegatronPolicy(config, distributed.initialise(1, 1))
    prompts = [make_prompt(text) for text in ("3+4=?", "abc " * 20, "the quick brown fox", "(a+b)^2 =")]
    ours = apart(start(sharp.name, precision=Precision.bf16), policy, draw, prompts)

    llm = vllm_sampler.LLM
    monkeypatch.setattr(vllm_sampler, "LLM", lambda *, hf_overrides, **settings: llm(**settings))
    rounded = apart(start(sharp.name, precision=Precision.bf16), policy, draw, prompts)
    for with_fp32, without in zip(ours, rounded, strict=True):
        assert with_fp32.mean() < 0.75 * without.mean()
    assert without.mean() > 0.005, "the comparison would not notice rounded logits"
