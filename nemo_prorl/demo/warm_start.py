"""Supervised warm start of the tiny policy, on the same Megatron engine that RL trains it with.

It first teaches the skill, from careful demonstrations only, then the habits, from demonstrations of mixed quality.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemo_prorl.algorithm.objective import supervised_loss
from nemo_prorl.config import (
    Decay,
    LayerSpec,
    ModelConfig,
    Precision,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
)
from nemo_prorl.conversion import save_hf
from nemo_prorl.data.mix import Tokenizer, render
from nemo_prorl.demo import tiny_policy
from nemo_prorl.demo.tasks import ENDLESS, Problem, demonstration, draw_style
from nemo_prorl.distributed import initialise
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.types import TokenBatch, TrainBatch

BATCH = 32
SKILL_SHARE = 0.65
"""Fraction of the updates that teach the skill; the rest teaches the habits."""


def warm_start(
    random_policy: Path,
    out: Path,
    problems: Sequence[Problem],
    *,
    num_updates: int,
    seed: int,
    tokenizer: Tokenizer,
) -> None:
    """Trains `random_policy` on demonstrations and writes it to `out` as a Hugging Face checkpoint."""
    config = RunConfig(
        seed=seed,
        model=ModelConfig(path=str(random_policy), precision=Precision.fp32, layer_spec=LayerSpec.local),
        trainer=TrainerConfig(
            learning_rate=2e-3,
            warmup_updates=40,
            decay=Decay.linear,
            decay_updates=num_updates,
            adam_beta2=0.98,
            weight_decay=0.01,
            packing=False,
            micro_batch_tokens=1536,
        ),
        sampler=SamplerConfig(temperature=1.0, max_prompt_tokens=64, max_response_tokens=64),
    )
    ranks = initialise(1, 1)
    policy = MegatronPolicy(config, ranks)
    random_stream = random.Random(seed)
    for update in range(num_updates):
        examples = []
        for problem in random_stream.choices(problems, k=BATCH):
            style = "careful" if update < SKILL_SHARE * num_updates else draw_style(random_stream)
            examples.append((problem, demonstration(problem, style, random_stream)))
        batch = _batch(examples, tokenizer)
        report = policy.update(batch, supervised_loss)
        if update % 25 == 0 or update == num_updates - 1:
            print(
                f"\r   warm start {update + 1:>4}/{num_updates}  loss {report.loss:.3f}",
                end="",
                file=sys.stderr,
            )
    print(file=sys.stderr)

    save_hf(policy.named_weights(), random_policy, out)


def _batch(examples: Sequence[tuple[Problem, str]], tokenizer: Tokenizer) -> TrainBatch:
    """Builds a batch of prompts and responses; only the responses are trained on."""
    pairs = []
    for problem, response in examples:
        prompt = list(render(problem.row, tokenizer).token_ids)
        ended = response if response.endswith(ENDLESS) else response + tiny_policy.END
        pairs.append((prompt, tokenizer.encode(ended, add_special_tokens=False)))
    lengths = np.array([len(prompt) + len(response) for prompt, response in pairs])
    token_ids = np.zeros((len(pairs), int(lengths.max())), dtype=np.int64)
    mask = np.zeros(token_ids.shape, dtype=np.bool_)
    for row, (prompt, answer) in enumerate(pairs):
        token_ids[row, : lengths[row]] = prompt + answer
        mask[row, len(prompt) : lengths[row]] = True
    zeros = np.zeros(token_ids.shape, dtype=np.float32)
    return TrainBatch(
        tokens=TokenBatch(token_ids_BT=token_ids, response_mask_BT=mask, lengths_B=lengths),
        advantages_B=np.ones(len(pairs), dtype=np.float32),
        sampler_logprobs_BT=zeros,
        old_logprobs_BT=zeros,
        reference_logprobs_BT=zeros,
    )
