"""Tests of batches: padding, its removal, and balanced shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.data.batch import (
    TrainingRow,
    balance,
    chunks,
    responses,
    token_batch,
    train_batch,
)
from nemo_prorl.data.mix import render
from nemo_prorl.types import (
    Finish,
    PreparedRollout,
    Prompt,
    Rollout,
    TrainBatch,
)
from tests.data.conftest import CharacterTokenizer, make_row

LENGTHS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=7)
"""(prompt tokens, response tokens) of each rollout."""


def rollout(num_prompt_tokens: int, num_response_tokens: int, index: int = 0) -> Rollout:
    """Returns a rollout in which every token has its own id and every log-probability its own value."""
    first = 1000 * (index + 1)
    prompt = Prompt(
        uid=f"p{index}", domain="math", source="", text="", task={},
        token_ids=tuple(range(first, first + num_prompt_tokens)),
    )  # fmt: skip
    return Rollout(
        prompt=prompt,
        sibling=0,
        token_ids=np.arange(first + 500, first + 500 + num_response_tokens),
        sampler_logprobs=-np.arange(1, num_response_tokens + 1, dtype=np.float32) - index,
        text="",
        finish=Finish.stop,
        policy_version=0,
    )


def row(num_prompt_tokens: int, num_response_tokens: int, index: int) -> TrainingRow:
    made = rollout(num_prompt_tokens, num_response_tokens, index)
    prepared = PreparedRollout(
        prompt=made.prompt,
        token_ids=made.token_ids,
        sampler_logprobs=made.sampler_logprobs,
        old_logprobs=made.sampler_logprobs - 100,
        reference_logprobs=made.sampler_logprobs - 200,
    )
    return TrainingRow(key=(index, 0), rollout=prepared, advantage=float(index), policy_version=0)


def test_a_begun_answer_is_out_of_the_loss() -> None:
    turns = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "It "})
    prompt = render(make_row("a", messages=turns), CharacterTokenizer())
    tokens = token_batch([replace(rollout(0, 2), prompt=prompt, token_ids=np.array([*map(ord, "is")]))])
    assert "".join(map(chr, tokens.token_ids_BT[0])) == "<u>?<a>It is"
    assert tokens.response_mask_BT.tolist() == [[False] * len("<u>?<a>It ") + [True, True]]


def per_token(batch: TrainBatch) -> dict[str, np.ndarray]:
    return {
        "sampler": batch.sampler_logprobs_BT,
        "old": batch.old_logprobs_BT,
        "reference": batch.reference_logprobs_BT,
    }


def test_a_batch_by_hand() -> None:
    batch = token_batch([rollout(3, 2, 0), rollout(3, 1, 0)])
    assert batch.token_ids_BT.tolist() == [[1000, 1001, 1002, 1500, 1501], [1000, 1001, 1002, 1500, 0]]
    assert batch.response_mask_BT.astype(int).tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 0]]
    assert batch.lengths_B.tolist() == [5, 4]


@settings(deadline=None)
@given(lengths=LENGTHS)
def test_every_position_holds_its_token_or_nothing(lengths: list[tuple[int, int]]) -> None:
    rollouts = [rollout(p, r, index) for index, (p, r) in enumerate(lengths)]
    batch = token_batch(rollouts)
    for index, made in enumerate(rollouts):
        whole = [*made.prompt.token_ids, *made.token_ids]
        width = batch.token_ids_BT.shape[1]
        assert batch.token_ids_BT[index].tolist() == whole + [0] * (width - len(whole))
        start, end = len(made.prompt.token_ids), len(whole)
        assert np.flatnonzero(batch.response_mask_BT[index]).tolist() == list(range(start, end))
        assert batch.lengths_B[index] == end
    assert batch.token_ids_BT.shape[1] == max(batch.lengths_B)


@settings(deadline=None)
@given(lengths=LENGTHS)
def test_responses_undo_the_padding(lengths: list[tuple[int, int]]) -> None:
    rows = [row(p, r, index) for index, (p, r) in enumerate(lengths)]
    batch = train_batch(rows)
    rollouts = [each.rollout for each in rows]
    for name, wanted in (
        ("sampler", [each.rollout.sampler_logprobs for each in rows]),
        ("old", [each.rollout.old_logprobs for each in rows]),
        ("reference", [each.rollout.reference_logprobs for each in rows]),
    ):
        values = per_token(batch)[name]
        for got, want in zip(responses(values, rollouts), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        assert not values[~batch.tokens.response_mask_BT].any(), f"{name} is 0 outside of responses"
    ids = responses(batch.tokens.token_ids_BT.astype(np.float32), rollouts)
    assert [part.tolist() for part in ids] == [made.token_ids.tolist() for made in rollouts]


def test_responses_are_copies() -> None:
    made = rollout(2, 3)
    values = np.ones((1, 5), dtype=np.float32)
    (part,) = responses(values, [made])
    values[:] = 0
    assert part.tolist() == [1, 1, 1]


@settings(deadline=None)
@given(lengths=LENGTHS, data=st.data())
def test_selecting_rows_is_batching_them(lengths: list[tuple[int, int]], data: st.DataObject) -> None:
    rows = [row(p, r, index) for index, (p, r) in enumerate(lengths)]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    selected, built = train_batch(rows).select(chosen), train_batch([rows[index] for index in chosen])
    np.testing.assert_array_equal(selected.tokens.token_ids_BT, built.tokens.token_ids_BT)
    np.testing.assert_array_equal(selected.tokens.response_mask_BT, built.tokens.response_mask_BT)
    np.testing.assert_array_equal(selected.tokens.lengths_B, built.tokens.lengths_B)
    np.testing.assert_array_equal(selected.advantages_B, built.advantages_B)
    for name, values in per_token(selected).items():
        np.testing.assert_array_equal(values, per_token(built)[name])
    assert selected.num_tokens == built.num_tokens == sum(lengths[index][1] for index in chosen)


def test_an_empty_batch_is_a_batch() -> None:
    """A replica may have no rows."""
    batch = train_batch([])
    assert (len(batch), batch.num_tokens, batch.tokens.token_ids_BT.shape) == (0, 0, (0, 0))
    assert len(train_batch([row(1, 1, 0)]).select([])) == 0


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 10_000), max_size=80), num_parts=st.integers(1, 9))
def test_shares_are_whole_and_nearly_equal(lengths: list[int], num_parts: int) -> None:
    parts = balance(lengths, num_parts)
    assert len(parts) == num_parts
    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in parts)
    loads = [sum(lengths[index] for index in part) for part in parts]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert parts == balance(lengths, num_parts), "every rank comes to the same shares"


@settings(deadline=None)
@given(lengths=st.lists(st.integers(0, 30), max_size=60), num_parts=st.integers(1, 9))
def test_the_next_longest_goes_to_the_least_loaded_of_equals_to_the_first(
    lengths: list[int], num_parts: int
) -> None:
    """Returns the shares by comparing all parts for every row, which takes rows times parts."""
    loads, parts = [0] * num_parts, [[] for _ in range(num_parts)]  # type: tuple[list[int], list[list[int]]]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        part = min(range(num_parts), key=lambda p: (loads[p], p))
        loads[part] += lengths[index]
        parts[part].append(index)
    assert balance(lengths, num_parts) == [sorted(part) for part in parts]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([5, 4, 2], 9, [[0, 1], [2]]),
        ([5, 4, 2], 4, [[0], [1], [2]]),
        ([9, 1, 1], 2, [[0], [1, 2]]),
        ([1, 9, 1], 2, [[0], [1], [2]]),
        ([3], 1, [[0]]),
        ([], 1, []),
    ],
)
def test_chunks_are_consecutive_and_no_larger_than_need_be(
    sizes: list[int], limit: int, expected: list[list[int]]
) -> None:
    assert chunks(range(len(sizes)), sizes, limit) == expected
