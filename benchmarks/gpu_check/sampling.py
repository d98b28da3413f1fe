"""Checks vLLM against the policy: equal log-probabilities at the training temperature, before and after a refit, and
equal rollouts when both compute at the same time, as with `sampler.ahead`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.machine import Machine
from benchmarks.gpu_check.rows import Row

LIMIT = 1e-4
"""In nats, if attention multiplies in fp32: 6e-6 on an H100."""
LIMIT_TF32 = 8e-3
"""In nats, if attention multiplies in TF32, with 10 bits of mantissa (a guess)."""
MAX_CHANGED = 0.1
"""Fraction of the rollouts that may change when the policy computes at the same time, because rounding may change a
token. If the two streams were not synchronised correctly, nearly all would change."""

FAILURES = {
    "at first": "vLLM's attention or head rounds more than the note says, or the temperature is applied twice or never",
    "after a refit": "if it passed at first: the sampler's weights are not the policy's after load_weights",
    "held": "vLLM's reload put a tensor elsewhere or in another form; a run would stop at its first refit",
    "ahead": "the streams of policy and sampler are not synchronised: write sampler.ahead=false",
}


def run(machine: Machine, workdir: Path) -> Iterator[Row]:
    """Yields the rows of the part. Imports vLLM."""
    import time

    from benchmarks.gpu_check.batches import loss_function, train_batch
    from benchmarks.gpu_check.tiny_model import build_model, character_tokenizer, run_config
    from nemo_prorl import distributed
    from nemo_prorl.config import LayerSpec
    from nemo_prorl.data.batch import token_batch
    from nemo_prorl.engines.interface import SamplingSettings
    from nemo_prorl.engines.megatron.policy import MegatronPolicy
    from nemo_prorl.engines.vllm.sampler import VllmSampler
    from nemo_prorl.types import Prompt, Rollout

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
    # Triton's products of fp32 numbers depend on this variable (engines/environment.py).
    is_tf32 = "TRITON" in attention and os.environ.get("TRITON_F32_DEFAULT", "tf32") != "ieee"
    limit = LIMIT_TF32 if is_tf32 else LIMIT
    note = f"runner {used['model runner']}, {attention} in {'TF32' if is_tf32 else 'fp32'}"
    for version, when in enumerate(("at first", "after a refit")):
        rollouts = draw(version)
        batch = token_batch(rollouts)
        trainer_logprobs = policy.logprobs(batch)[batch.response_mask_BT]
        sampler_logprobs = np.concatenate([rollout.sampler_logprobs for rollout in rollouts])
        largest = float(np.abs(trainer_logprobs - sampler_logprobs).max())
        what = f"sampler - trainer, largest, {when}"
        yield Row(what=what, value=largest, unit="nats", limit=limit, note=note, means=FAILURES[when])
        policy.update(train_batch(batch), loss_function)
        start = time.perf_counter()
        loaded = sampler.load_weights(policy.named_weights(), version + 1)
        seconds = time.perf_counter() - start
    num_wrong = float(len(loaded.not_held))
    what = "tensors that the sampler does not hold"
    yield Row(what=what, value=num_wrong, unit="", limit=0.0, means=FAILURES["held"])
    yield Row(what="refit of a tiny model", value=seconds, unit="s")
    changed = _fraction_changed(lambda: draw(2), lambda: policy.logprobs(batch))
    what = "rollouts changed by concurrent training"
    yield Row(what=what, value=changed, unit="", limit=MAX_CHANGED, means=FAILURES["ahead"])
    sampler.close()


def _fraction_changed(draw: Callable[[], list[Any]], train: Callable[[], Any]) -> float:
    """Returns the fraction of the rollouts that change if they are drawn in a thread while `train` runs in this one."""
    alone = draw()
    with ThreadPoolExecutor(1) as pool:
        concurrent = pool.submit(draw)
        while not concurrent.done():
            train()
    pairs = zip(alone, concurrent.result(), strict=True)
    return float(np.mean([not np.array_equal(one.token_ids, other.token_ids) for one, other in pairs]))
