"""Which rows share a forward pass, and where their tokens are found again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nemo_prorl.engines.megatron.microbatch import packed_feed, padded_feed, plan_micro_batches
from nemo_prorl.types import TokenBatch
from tests.engines.megatron.helpers import token_batch

CPU = torch.device("cpu")


def test_the_example_of_the_docstring() -> None:
    assert plan_micro_batches(np.array([3, 9, 4, 8]), 20) == [[1, 3], [2, 0]]


@pytest.mark.parametrize("budget", [1, 40, 41, 97, 200, 10_000])
@pytest.mark.parametrize("multiple", [1, 2, 16])
def test_every_row_passes_once_within_the_budget(budget: int, multiple: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 50)
    plan = plan_micro_batches(lengths, budget, multiple)
    assert sorted(row for rows in plan for row in rows) == list(range(50))
    for rows in plan:
        width = -(-max(lengths[rows]) // multiple) * multiple
        assert len(rows) == 1 or len(rows) * width <= budget
    longest = [max(lengths[rows]) for rows in plan]
    assert longest == sorted(longest, reverse=True), (
        "the largest pass comes first: it shows whether memory suffices"
    )


def test_no_rows_need_no_pass() -> None:
    assert plan_micro_batches(np.array([], dtype=np.int64), 100) == []


def hidden_of(feed_tokens: torch.Tensor, *, packed: bool) -> torch.Tensor:
    """As the model lays them out, each hidden state being the token id itself."""
    return feed_tokens[0] if packed else feed_tokens.t().flatten()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("multiple", [1, 16])
def test_each_response_token_is_predicted_from_the_one_before(packed: bool, multiple: int) -> None:
    batch = token_batch(6, 30)
    feed = (packed_feed if packed else padded_feed)(batch, multiple, CPU)
    assert feed.token_ids.shape[1] % multiple == 0
    before = hidden_of(feed.token_ids, packed=packed)[feed.predict_at_N].double()
    wanted = np.where(batch.response_mask_BT, np.roll(batch.token_ids_BT, 1, axis=1), 0)
    assert np.array_equal(feed.scatter(before).numpy(), wanted)
    labels = feed.scatter(feed.labels_N.double()).numpy()
    assert np.array_equal(labels, np.where(batch.response_mask_BT, batch.token_ids_BT, 0))


def test_packing_fills_up_with_a_sequence_of_its_own() -> None:
    batch = token_batch(3, 20)
    feed = packed_feed(batch, 128, CPU)
    bounds = feed.packed.cu_seqlens_q.tolist()
    assert bounds == [0, *np.cumsum(batch.lengths_B).tolist(), 128]
    assert feed.packed.max_seqlen_q == max(20, 128 - batch.lengths_B.sum())


def test_a_response_without_a_prompt_is_refused() -> None:
    ones = np.ones((1, 3), dtype=np.int64)
    batch = TokenBatch(token_ids_BT=ones, response_mask_BT=ones.astype(bool), lengths_B=np.array([3]))
    with pytest.raises(ValueError, match="no prompt to predict"):
        padded_feed(batch, 1, CPU)
