"""Builders of batches that several files of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from nemo_prorl.types import TokenBatch, Totals, TrainBatch

MakeBatch = Callable[..., TrainBatch]


def _make_batch(
    *,
    advantages: Sequence[float],
    old: Sequence[Sequence[float]],
    sampler: Sequence[Sequence[float]] | None = None,
    reference: Sequence[Sequence[float]] | None = None,
    num_prompt_tokens: int = 2,
    padding: int = 0,
    outside: float = 0.0,
) -> TrainBatch:
    """Returns a padded batch from ragged lists, one per response; `outside` fills the positions outside of
    responses."""
    lengths = [num_prompt_tokens + len(row) for row in old]
    width = max(lengths, default=0) + padding

    def padded(rows: Sequence[Sequence[float]]) -> np.ndarray:
        array = np.full((len(rows), width), outside, dtype=np.float32)
        for i, row in enumerate(rows):
            array[i, num_prompt_tokens : num_prompt_tokens + len(row)] = row
        return array

    mask = np.zeros((len(old), width), dtype=bool)
    for i, row in enumerate(old):
        mask[i, num_prompt_tokens : num_prompt_tokens + len(row)] = True
    return TrainBatch(
        tokens=TokenBatch(
            token_ids_BT=np.zeros((len(old), width), dtype=np.int64),
            response_mask_BT=mask,
            lengths_B=np.array(lengths, dtype=np.int64),
        ),
        advantages_B=np.array(advantages, dtype=np.float32),
        sampler_logprobs_BT=padded(old if sampler is None else sampler),
        old_logprobs_BT=padded(old),
        reference_logprobs_BT=padded(old if reference is None else reference),
    )


def _random_batch(seed: int, lengths: Sequence[int], *, padding: int = 0, outside: float = 0.0) -> TrainBatch:
    """Returns a batch with four policies that differ by a few tenths of a nat, and advantages of both signs."""
    random = np.random.default_rng(seed)
    old = [random.uniform(-3.0, -0.1, length) for length in lengths]
    return _make_batch(
        advantages=random.normal(size=len(lengths)).tolist(),
        old=old,
        sampler=[row + random.normal(0, 0.3, len(row)) for row in old],
        reference=[row + random.normal(0, 0.5, len(row)) for row in old],
        padding=padding,
        outside=outside,
    )


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    return _make_batch


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., TrainBatch]:
    return _random_batch


@pytest.fixture(scope="session")
def totals_of() -> Callable[..., Totals]:
    """Returns the totals of an update that consists of these batches."""

    def totals(*batches: TrainBatch) -> Totals:
        return Totals(
            num_tokens=sum(batch.num_tokens for batch in batches),
            num_rollouts=sum(len(batch) for batch in batches),
        )

    return totals
