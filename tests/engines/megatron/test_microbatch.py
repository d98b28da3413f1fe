"""Which rows share a forward pass, and where their tokens are found again."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from nemo_prorl.algorithm.objective import policy_loss
from nemo_prorl.config import AlgorithmConfig
from nemo_prorl.engines.megatron.microbatch import A_PASS, packed_feed, padded_feed, plan_micro_batches
from nemo_prorl.types import TokenBatch, Totals
from tests.engines.megatron.helpers import token_batch, train_batch_of_a_step
from tests.waits import Waits

CPU = torch.device("cpu")


def test_the_example_of_the_docstring() -> None:
    assert plan_micro_batches(np.array([3, 9, 4, 8]), 20) == [[1, 3], [2, 0]]


@pytest.mark.parametrize("budget", [1, 40, 41, 97, 200, 10_000])
@pytest.mark.parametrize("multiple", [1, 2, 16, 128])
@pytest.mark.parametrize("packed", [False, True])
def test_every_row_passes_once_within_the_budget(budget: int, multiple: int, packed: bool) -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 50)
    plan = plan_micro_batches(lengths, budget, multiple, packed=packed)
    assert sorted(row for rows in plan for row in rows) == list(range(50))
    make = packed_feed if packed else padded_feed
    for rows, following in pairwise([*plan, []]):
        of_rows, with_one_more = (
            make(rows_of(lengths[wanted]), multiple, CPU).token_ids.numel()
            for wanted in (rows, [*rows, *following[:1]])
        )
        assert len(rows) == 1 or of_rows <= budget
        saved = 0 if packed or not following else (max(lengths[rows]) - lengths[following[0]] + multiple) * 50
        assert not following or with_one_more > budget or saved > A_PASS * budget, (
            "a row of the next pass would have found room without much padding"
        )
    longest = [max(lengths[rows]) for rows in plan]
    assert longest == sorted(longest, reverse=True), (
        "the largest pass comes first: it shows whether memory suffices"
    )


def test_a_few_long_rows_do_not_pad_many_short_ones() -> None:
    lengths = np.array([40] * 30 + [176, 170])
    assert [len(rows) for rows in plan_micro_batches(lengths, 6144)] == [2, 30]
    assert [len(rows) for rows in plan_micro_batches(lengths, 6144, packed=True)] == [32]
    similar = np.arange(40, 72)
    assert [len(rows) for rows in plan_micro_batches(similar, 4096)] == [32]
    assert len(plan_micro_batches(np.array([16_000, 15_900, 15_800]), 32_000)) == 2, (
        "there is room for one more only"
    )


@pytest.mark.parametrize("budget", [512, 4096])
def test_a_split_saves_more_than_the_pass_that_it_adds(budget: int) -> None:
    """Beside passes that are as full as they can be, at lengths with a long tail."""
    random = np.random.default_rng(1)
    costs = []
    for _ in range(20):
        lengths = np.minimum(random.lognormal(4, 0.6, 64).astype(int), 200)
        full = np.sort(lengths)[::-1]
        plain, start = 0, 0
        while start < len(full):
            plain += max(1, budget // full[start]) * full[start] + A_PASS * budget
            start += max(1, budget // full[start])
        plan = plan_micro_batches(lengths, budget)
        costs.append((sum(len(rows) * max(lengths[rows]) + A_PASS * budget for rows in plan), plain))
    assert all(found <= full for found, full in costs)
    assert np.mean([found / full for found, full in costs]) < (0.9 if budget == 4096 else 1)


def rows_of(lengths: np.ndarray) -> TokenBatch:
    """Rows without responses."""
    zeros = np.zeros((len(lengths), max(lengths)), dtype=np.int64)
    return TokenBatch(token_ids_BT=zeros, response_mask_BT=zeros.astype(bool), lengths_B=lengths)


def test_packed_rows_do_not_count_as_blocks() -> None:
    """Rows of 96 tokens, of which FP8's blocks of 128 take the sum: four need 384 tokens, padded ones 512."""
    lengths = np.full(8, 96)
    assert len(plan_micro_batches(lengths, 384, 128, packed=True)) == 2
    assert len(plan_micro_batches(lengths, 384, 128)) == 3


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


@pytest.mark.parametrize("packed", [False, True])
def test_nothing_of_a_pass_makes_the_host_wait(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its feed nor its loss, on a stand-in for a GPU. A copy does not wait only if the host's memory is
    pinned."""
    device, pinned = torch.device("meta"), []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    batch = train_batch_of_a_step(token_batch(6, 30))
    with Waits() as waits:
        feed = (packed_feed if packed else padded_feed)(batch.tokens, 16, device)
        states = torch.rand(feed.labels_N.shape, device=device, requires_grad=True)
        logprobs = feed.scatter(states)
        algorithm = AlgorithmConfig()
        totals = Totals(num_tokens=batch.num_tokens, num_rollouts=len(batch))
        policy_loss(logprobs, logprobs, batch, totals, config=algorithm, entropy_coefficient=0.1).backward()
    assert waits.count == 0
    assert len(pinned) == 9 + packed
