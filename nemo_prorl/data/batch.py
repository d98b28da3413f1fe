"""Turns rollouts into right-padded batches, and divides them evenly over replicas."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nemo_prorl.types import FloatArray, PreparedRollout, RolloutTokens, TokenBatch, TrainBatch

PASSES_A_CHUNK = 16
"""How many forward passes' worth of rollouts form one request for log-probabilities: enough that most rollouts find
others of about the same length, and at 8k tokens no more than a few groups."""


def token_batch(rollouts: Sequence[RolloutTokens]) -> TokenBatch:
    """Returns a [B, T] batch of prompts and responses; T is the longest of them."""
    lengths = np.array([rollout.length for rollout in rollouts], dtype=np.int64)
    shape = (len(rollouts), int(lengths.max(initial=0)))
    token_ids, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    for row, rollout in enumerate(rollouts):
        start = len(rollout.prompt.token_ids)
        token_ids[row, :start] = rollout.prompt.token_ids
        token_ids[row, start : lengths[row]] = rollout.token_ids
        mask[row, start : lengths[row]] = True
    return TokenBatch(token_ids_BT=token_ids, response_mask_BT=mask, lengths_B=lengths)


def responses(values_BT: FloatArray, rollouts: Sequence[RolloutTokens]) -> tuple[FloatArray, ...]:
    """Returns the response part of each row: one [R] array per rollout."""
    starts = [len(rollout.prompt.token_ids) for rollout in rollouts]
    return tuple(
        values_BT[row, start : start + len(rollout.token_ids)].copy()
        for row, (start, rollout) in enumerate(zip(starts, rollouts, strict=True))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One rollout, ready for training."""

    key: tuple[int, int]
    """Index of its prompt in the step, and sibling."""
    rollout: PreparedRollout
    advantage: float
    policy_version: int
    """Optimizer updates of the run that the weights that sampled it had behind them."""


def train_batch(rows: Sequence[TrainingRow]) -> TrainBatch:
    """Returns the rows as right-padded [B, T] arrays. Log-probabilities that a row lacks are None for all."""
    tokens = token_batch([row.rollout for row in rows])

    def padded(per_row: Sequence[FloatArray]) -> FloatArray:
        values = np.zeros(tokens.token_ids_BT.shape, dtype=np.float32)
        for index, (row, response) in enumerate(zip(rows, per_row, strict=True)):
            start = len(row.rollout.prompt.token_ids)
            values[index, start : start + len(response)] = response
        return values

    def padded_if_known(per_row: Sequence[FloatArray | None]) -> FloatArray | None:
        known = [response for response in per_row if response is not None]
        return padded(known) if len(known) == len(rows) else None

    return TrainBatch(
        tokens=tokens,
        advantages_B=np.array([row.advantage for row in rows], dtype=np.float32),
        sampler_logprobs_BT=padded([row.rollout.sampler_logprobs for row in rows]),
        old_logprobs_BT=padded_if_known([row.rollout.old_logprobs for row in rows]),
        reference_logprobs_BT=padded_if_known([row.rollout.reference_logprobs for row in rows]),
    )


def with_old_logprobs(rows: Sequence[TrainingRow], logprobs_BT: FloatArray) -> list[TrainingRow]:
    """Returns the rows with these old log-probabilities, which are the reference's, too, where those are missing."""
    found = responses(logprobs_BT, [row.rollout for row in rows])
    return [replace(row, rollout=completed(row.rollout, old)) for row, old in zip(rows, found, strict=True)]


def completed(rollout: PreparedRollout, old: FloatArray) -> PreparedRollout:
    """Returns a rollout with its old log-probabilities, which are the reference's, too, if those are missing."""
    reference = old if rollout.reference_logprobs is None else rollout.reference_logprobs
    return replace(rollout, old_logprobs=old, reference_logprobs=reference)


def chunks(indices: Sequence[int], sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Cuts `indices` where the sum of their sizes since the last cut would exceed `limit`; a larger one is alone.

    Example: chunks([0, 2, 3], [5, 9, 4, 2], 9) -> [[0, 2], [3]]
    """
    found: list[list[int]] = []
    room = -1
    for index in indices:
        room -= sizes[index]
        if room < 0:
            found.append([])
            room = limit - sizes[index]
        found[-1].append(index)
    return found


def balance(lengths: Sequence[int], num_parts: int) -> list[list[int]]:
    """Returns the indices for each part, ascending, so that no part is much longer than another: longest first, to the
    shortest part. The division does not change the loss, only who computes it."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    # A heap: the shortest part first, among equals the one with the lowest number.
    loads = [(0, part) for part in range(num_parts)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, part = loads[0]
        heapq.heapreplace(loads, (load + lengths[index], part))
        parts[part].append(index)
    return [sorted(part) for part in parts]
