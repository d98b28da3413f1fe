"""vLLM beside the policy: the same log-probabilities at the training temperature, before and after a refit; and the
same rollouts when both are at work at one time, as with `sampler.ahead`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.machine import Machine
from benchmarks.gpu_check.rows import Row

PART = "sampling"
LIMIT = 1e-3
"""Nats, where attention multiplies in fp32; 1e-4 holds on CPU, GPUs add up in other orders."""
LIMIT_TF32 = 8 * LIMIT
"""Where it multiplies in TF32 (a guess until a GPU has shown it): the products keep ten bits of the mantissa."""
OTHERWISE = 0.1
"""Share of the rollouts that may differ when the policy computes at the same time, because rounding may change a token.
If the two streams are in the wrong order, nearly all differ."""


def run(machine: Machine, workdir: Path) -> Iterator[Row]:
    """Rows of the part. vLLM is imported here and nowhere else."""
    import time

    from nemo_prorl import distributed
    from nemo_prorl.config import LayerSpec
    from nemo_prorl.data.batch import token_batch
    from nemo_prorl.engines.interface import SamplingSettings
    from nemo_prorl.engines.megatron.policy import MegatronPolicy
    from nemo_prorl.engines.vllm_sampler import VllmSampler
    from nemo_prorl.types import Prompt, Rollout
    from tests.engines.megatron.helpers import loss_function, train_batch
    from tests.engines.vllm.conftest import build_model, character_tokenizer, run_config

    ranks = distributed.initialise(1, 1)
    config = run_config(build_model(workdir / "sampled", seed=1))
    config.trainer.learning_rate, config.sampler.ahead = 1e-3, True
    config.model.layer_spec = LayerSpec.local  # Transformer Engine multiplies fp32 as TF32
    tokenizer = character_tokenizer()
    sampler = VllmSampler(config, ranks, tokenizer)
    policy = MegatronPolicy(config, ranks)
    prompts = [
        Prompt(
            uid=text,
            domain="logic",
            source="check",
            text=text,
            token_ids=tuple(tokenizer.encode(text)),
            task={},
        )
        for text in ("1+1=", "Once upon a time", "the quick brown fox", "(a+b)^2 =")
    ]

    def draw(seed: int) -> list[Rollout]:
        settings = SamplingSettings(
            num_rollouts=8, temperature=1.2, top_p=1.0, max_response_tokens=64, seed=seed
        )
        return [one for group in sampler.sample(prompts, settings, lambda rollout: None) for one in group]

    used = sampler.in_use()
    attention = used["sampler's attention"]
    precision = _precision(attention)
    limit = LIMIT_TF32 if precision == "TF32" else LIMIT
    note = f"runner {used['model runner']}, {attention} in {precision}"
    for version, when in enumerate(("at first", "after a refit")):
        rollouts = draw(version)
        batch = token_batch(rollouts)
        of_trainer = policy.logprobs(batch)[batch.response_mask_BT]
        of_sampler = np.concatenate([rollout.sampler_logprobs for rollout in rollouts])
        apart = float(np.abs(of_trainer - of_sampler).max())
        what = f"sampler - trainer, largest, {when}"
        yield Row(part=PART, what=what, value=apart, unit="nats", limit=limit, note=note)
        policy.update(train_batch(batch), loss_function)
        start = time.perf_counter()
        loaded = sampler.load_weights(policy.named_weights(), version + 1)
        taken = time.perf_counter() - start
    wrong = float(len(loaded.not_held))
    yield Row(part=PART, what="tensors that the sampler does not hold", value=wrong, unit="", limit=0.0)
    yield Row(part=PART, what="refit of a tiny model", value=taken, unit="s")
    share = _otherwise(lambda: draw(2), lambda: policy.logprobs(batch))
    yield Row(part=PART, what="rollouts that training beside changes", value=share, unit="", limit=OTHERWISE)
    sampler.close()


def _precision(attention: str) -> str:
    """Returns the precision of fp32 products in vLLM's attention: Triton's depends on an environment variable
    (engines/environment.py)."""
    on_tensor_cores = "TRITON" in attention and os.environ.get("TRITON_F32_DEFAULT", "tf32") != "ieee"
    return "TF32" if on_tensor_cores else "fp32"


def _otherwise(draw: Callable[[], list[Any]], train: Callable[[], Any]) -> float:
    """Share of the rollouts that come out otherwise when they are drawn in a thread, beside `train`."""
    alone = draw()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(draw)
        while not beside.done():
            train()
    pairs = zip(alone, beside.result(), strict=True)
    return float(np.mean([not np.array_equal(one.token_ids, other.token_ids) for one, other in pairs]))
