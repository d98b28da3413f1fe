"""vLLM beside the policy: the same log-probabilities at the training temperature, before and after a refit; and the
same rollouts when both are at work at one time, as with `sampler.ahead`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.machine import Machine
from benchmarks.gpu_check.rows import Row

PART = "sampling"
LIMIT = 1e-3
"""Nats, in fp32; 1e-4 holds on CPU, GPUs add up in other orders."""
OTHERWISE = 0.1
"""Of the rollouts, that may differ when the policy works beside: rounding may decide a token. Without the right order
of the two streams nearly all differ."""


def run(machine: Machine, workdir: Path) -> Iterator[Row]:
    """Rows of the part. vLLM is imported here and nowhere else."""
    import time

    from nemo_prorl import distributed
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

    for version, when in enumerate(("at first", "after a refit")):
        rollouts = draw(version)
        batch = token_batch(rollouts)
        of_trainer = policy.logprobs(batch)[batch.response_mask_BT]
        of_sampler = np.concatenate([rollout.sampler_logprobs for rollout in rollouts])
        apart = float(np.abs(of_trainer - of_sampler).max())
        yield Row(
            part=PART, what=f"sampler - trainer, largest, {when}", value=apart, unit="nats", limit=LIMIT
        )
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


def _otherwise(draw: Callable[[], list[Any]], train: Callable[[], Any]) -> float:
    """Share of the rollouts that come out otherwise when they are drawn in a thread, beside `train`."""
    alone = draw()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(draw)
        while not beside.done():
            train()
    pairs = zip(alone, beside.result(), strict=True)
    return float(np.mean([not np.array_equal(one.token_ids, other.token_ids) for one, other in pairs]))
