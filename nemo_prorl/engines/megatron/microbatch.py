"""Splits a batch of rollouts into micro-batches that fit into memory, and builds the model's input for each.

Shapes: B rows, T tokens of the longest, N response tokens. The model returns hidden states as [T, B, H] (padded) or
[all tokens, 1, H] (packed). Both flatten to one row per token, which `Feed.predict_at_N` indexes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from nemo_prorl.algorithm.numerics import on_device
from nemo_prorl.engines.megatron.core import PackedSeqParams
from nemo_prorl.types import IntArray, TokenBatch

A_PASS = 1 / 16
"""What one more pass costs, as a share of the tokens that a pass may have: measured on a CPU with 4,096."""


def plan_micro_batches(
    lengths_B: IntArray, budget_tokens: int, multiple: int = 1, *, packed: bool = False
) -> list[list[int]]:
    """Returns the row indices of each forward pass, longest rows first, so that the rows of a pass have similar
    lengths. A pass has at most `budget_tokens` tokens, and a row that is longer gets a pass of its own. Padded rows
    count as long as the longest, rounded up to `multiple`; of packed rows only the sum is rounded up. A pass also ends
    where the rows that it has room for would be padded by more than another pass costs.

    Example: plan_micro_batches([3, 9, 4, 8], 20) -> [[1, 3], [2, 0]], with 18 + 8 tokens
    """
    plan: list[list[int]] = []
    width = tokens = 0
    order = np.argsort(-lengths_B, kind="stable").tolist()
    for index, row in enumerate(order):
        length = _round_up(int(lengths_B[row]), 1 if packed else multiple)
        grown = tokens + (length if packed else width)
        padding = 0
        if plan and not packed:
            padding = (width - length) * min(len(order) - index, (budget_tokens - tokens) // width)
        if plan and _round_up(grown, multiple) <= budget_tokens and padding <= A_PASS * budget_tokens:
            plan[-1].append(row)
            tokens = grown
        else:
            plan.append([row])
            tokens = width = length
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The input of one forward pass, on the device."""

    token_ids: torch.Tensor
    """[B, T], or [1, all tokens] when packed."""
    predict_at_N: torch.Tensor
    """Flat index of the hidden state that predicts each response token, which is the one before it."""
    labels_N: torch.Tensor
    """The response tokens, row by row."""
    place_N: torch.Tensor
    """Flat index of each response token in a [B, T] array."""
    shape: tuple[int, int]
    """Shape (B, T) of the micro-batch before padding to a multiple."""
    packed: PackedSeqParams | None = None

    def scatter(self, values_N: torch.Tensor) -> torch.Tensor:
        """Returns [B, T] with `values_N` at the response tokens and 0 elsewhere. Differentiable."""
        rows, width = self.shape
        return values_N.new_zeros(rows * width).index_put((self.place_N,), values_N).view(rows, width)


def padded_feed(batch: TokenBatch, multiple: int, device: torch.device) -> Feed:
    """Returns rows padded on the right to the longest, rounded up to `multiple` tokens. Raises ValueError if a response
    starts at token 0."""
    rows, positions = _response_positions(batch)
    num_rows, width = batch.token_ids_BT.shape
    tokens = np.pad(batch.token_ids_BT, ((0, 0), (0, _round_up(width, multiple) - width)))
    return _feed(batch, rows, positions, tokens, (positions - 1) * num_rows + rows, device)


def packed_feed(batch: TokenBatch, multiple: int, device: torch.device) -> Feed:
    """Returns rows concatenated without padding. The total is rounded up to `multiple` by a separate dummy sequence:
    tokens appended to the last sequence would corrupt Transformer Engine's gradients (TransformerEngine issue 2892).
    Raises ValueError if a response starts at token 0."""
    rows, positions = _response_positions(batch)
    starts = np.concatenate([[0], np.cumsum(batch.lengths_B)])
    tokens = np.concatenate(
        [row[:length] for row, length in zip(batch.token_ids_BT, batch.lengths_B, strict=True)]
    )
    longest = int(batch.lengths_B.max())
    if filler := _round_up(len(tokens), multiple) - len(tokens):
        tokens = np.pad(tokens, (0, filler))
        starts = np.append(starts, len(tokens))
        longest = max(longest, filler)
    bounds = on_device(starts, device, torch.int32)
    packed = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )
    return _feed(batch, rows, positions, tokens[None], starts[rows] + positions - 1, device, packed)


def empty_batch() -> TokenBatch:
    """Returns one row without a response, which a replica without rollouts computes so that it takes part in all
    collectives."""
    return TokenBatch(
        token_ids_BT=np.zeros((1, 2), dtype=np.int64),
        response_mask_BT=np.zeros((1, 2), dtype=np.bool_),
        lengths_B=np.array([2]),
    )


def _response_positions(batch: TokenBatch) -> tuple[IntArray, IntArray]:
    rows, positions = np.nonzero(batch.response_mask_BT)
    if len(positions) and positions.min() == 0:
        raise ValueError("A response starts at token 0: there is no prompt to predict its first token from.")
    return rows, positions


def _feed(
    batch: TokenBatch,
    rows: IntArray,
    positions: IntArray,
    tokens: IntArray,
    predict_at: IntArray,
    device: torch.device,
    packed: PackedSeqParams | None = None,
) -> Feed:
    num_rows, width = batch.token_ids_BT.shape
    put = partial(on_device, device=device, dtype=torch.int64)
    return Feed(
        token_ids=put(tokens),
        predict_at_N=put(predict_at),
        labels_N=put(batch.token_ids_BT[rows, positions]),
        place_N=put(rows * width + positions),
        shape=(num_rows, width),
        packed=packed,
    )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
