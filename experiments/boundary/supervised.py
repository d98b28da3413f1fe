"""Supervised training of a tiny policy on the same Megatron engine that RL trains it with: the base policy
(base_policy.py) and the control (arms.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import AutoTokenizer

from experiments.boundary.tiny_policy import write_random_policy
from nemo_prorl.algorithm.objective import token_shares
from nemo_prorl.config import (
    Aggregation,
    Decay,
    LayerSpec,
    ModelConfig,
    Precision,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
)
from nemo_prorl.data.mix import Tokenizer, render
from nemo_prorl.data.rows import Row
from nemo_prorl.distributed import initialise
from nemo_prorl.engines.megatron.conversion import save_hf
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.types import TokenBatch, Totals, TrainBatch

Example = tuple[Row, str]
"""A problem and a response to it, with the end-of-sequence token as text if the response ends."""


def train_from_scratch(
    out: Path, examples: Callable[[int], Sequence[Example]], *, num_updates: int, seed: int
) -> None:
    """Trains random weights (`write_random_policy`) by `train_supervised`, with a high learning rate that decays to
    0."""
    trainer = TrainerConfig(
        learning_rate=2e-3,
        warmup_updates=40,
        decay=Decay.linear,
        decay_updates=num_updates,
        adam_beta2=0.98,
        weight_decay=0.01,
        packing=False,
        micro_batch_tokens=1536,
    )
    with TemporaryDirectory() as folder:
        start = Path(folder)
        write_random_policy(start, seed=seed)
        train_supervised(
            start, out, examples, num_updates=num_updates, seed=seed, trainer=trainer, name="warm start"
        )


def train_supervised(
    start: Path,
    out: Path,
    examples: Callable[[int], Sequence[Example]],
    *,
    num_updates: int,
    seed: int,
    trainer: TrainerConfig,
    name: str,
) -> None:
    """Trains the policy in `start` on the batch `examples(update)` of every update, and writes it to `out` as a Hugging
    Face checkpoint. `name` is what the progress line calls it."""
    config = RunConfig(
        seed=seed,
        model=ModelConfig(path=str(start), precision=Precision.fp32, layer_spec=LayerSpec.local),
        trainer=trainer,
        sampler=SamplerConfig(temperature=1.0, max_prompt_tokens=64, max_response_tokens=128),
    )
    tokenizer = AutoTokenizer.from_pretrained(start)
    policy = MegatronPolicy(config, initialise(1, 1))
    for update in range(num_updates):
        report = policy.update(_batch(examples(update), tokenizer), supervised_loss)
        if update % 25 == 0 or update == num_updates - 1:
            print(
                f"\r   {name} {update + 1:>4}/{num_updates}  loss {report.loss:.3f}", end="", file=sys.stderr
            )
    print(file=sys.stderr)
    save_hf(policy.named_weights(), start, out)


def supervised_loss(
    current_logprobs_BT: torch.Tensor, entropy_BT: torch.Tensor, batch: TrainBatch, totals: Totals
) -> torch.Tensor:
    """Returns the mean negative log-likelihood of an update's response tokens, in nats per token: this micro-batch's
    share, as in `policy_loss`."""
    mask_BT = torch.tensor(batch.tokens.response_mask_BT, device=current_logprobs_BT.device)
    current_BT = torch.where(mask_BT, current_logprobs_BT.float(), 0.0)
    return -(current_BT * token_shares(mask_BT, totals, Aggregation.token_mean).float()).sum()


def _batch(examples: Sequence[Example], tokenizer: Tokenizer) -> TrainBatch:
    """Builds a batch of prompts and responses; only the responses are trained on."""
    pairs = []
    for row, response in examples:
        prompt = list(render(row, tokenizer).token_ids)
        pairs.append((prompt, tokenizer.encode(response, add_special_tokens=False)))
    lengths = np.array([len(prompt) + len(response) for prompt, response in pairs])
    token_ids = np.zeros((len(pairs), int(lengths.max())), dtype=np.int64)
    mask = np.zeros(token_ids.shape, dtype=np.bool_)
    for place, (prompt, answer) in enumerate(pairs):
        token_ids[place, : lengths[place]] = prompt + answer
        mask[place, len(prompt) : lengths[place]] = True
    zeros = np.zeros(token_ids.shape, dtype=np.float32)
    return TrainBatch(
        tokens=TokenBatch(token_ids_BT=token_ids, response_mask_BT=mask, lengths_B=lengths),
        advantages_B=np.ones(len(pairs), dtype=np.float32),
        sampler_logprobs_BT=zeros,
        old_logprobs_BT=zeros,
        reference_logprobs_BT=zeros,
    )
