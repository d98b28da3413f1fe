"""Distribution of rows over replicas: each row goes to exactly one, with its own numbers, in any layout; and its cost
in bytes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nemo_prorl.config import Advantage, AlgorithmConfig, KlIn, RunConfig, ShapingConfig
from nemo_prorl.distributed import Layout, Ranks
from nemo_prorl.training.splitting import split_over_ranks
from nemo_prorl.types import Prompt
from tests.training.conftest import (
    MIXED,
    NUM_ROLLOUTS,
    RIGHT,
    SINGLE,
    ScriptedPolicy,
    ScriptedSampler,
    make_collector,
    make_config,
    make_prompt,
    make_rollout,
    new_state,
)
from tests.training.thread_ranks import ThreadRanks, run_as_ranks

PROMPTS = [
    make_prompt(f"p{i}", RIGHT if i % 5 == 2 else MIXED, unfinished=[i % 4] if i % 3 == 0 else [])
    for i in range(40)
]


def config_of(**algorithm: Any) -> RunConfig:
    shaping = ShapingConfig(overlong_filtering=True)
    config = make_config(prompts_per_step=12, updates_per_step=3, oversample=1.25, shaping=shaping)
    config.algorithm = AlgorithmConfig(**algorithm)
    return config


def listed(values: Any) -> Any:
    """Returns an array's values, or None if they are left to the first update."""
    return None if values is None else values.tolist()


def split(
    ranks: Ranks | ThreadRanks, config: RunConfig, prompts: Sequence[Prompt] = PROMPTS, **engines: Any
) -> list[list[Any]]:
    """Returns the content of the rows of each update that this rank trains on."""
    given = {"sampler": ScriptedSampler(weight=0.25)} | engines
    collection = make_collector(config, prompts, ranks=ranks, **given).collect(new_state(num_updates=1))
    return [
        [
            (
                row.rollout.prompt.uid,
                row.rollout.token_ids.tolist(),
                row.rollout.sampler_logprobs.tolist(),
                listed(row.rollout.old_logprobs),
                listed(row.rollout.reference_logprobs),
                row.advantage,
            )
            for row in rows
        ]
        for rows in split_over_ranks(collection, config, ranks)  # type: ignore[arg-type]
    ]


@pytest.mark.medium
@pytest.mark.parametrize("kl_in", KlIn)
@pytest.mark.parametrize(
    ("world_size", "tensor", "pipeline"), [(2, 1, 1), (4, 2, 1), (4, 1, 2), (5, 1, 1), (8, 2, 2)]
)
def test_every_row_is_trained_on_once_and_is_the_same_in_every_layout(
    world_size: int, tensor: int, pipeline: int, kl_in: KlIn
) -> None:
    config = config_of(kl_in=kl_in, kl_beta=0.1, advantage=Advantage.batch_std)

    def each(ranks: Ranks | ThreadRanks) -> list[list[Any]]:
        return split(ranks, config, policy=ScriptedPolicy(weight=0.125, reference_weight=-0.5))

    alone = each(SINGLE)
    ranks = run_as_ranks(each, world_size, tensor, pipeline)
    layout = Layout(rank=0, world_size=world_size, tensor_parallel=tensor, pipeline_parallel=pipeline)
    replicas = [layout.replica_ranks(replica) for replica in range(layout.data_parallel)]
    assert all(ranks[rank] == ranks[members[0]] for members in replicas for rank in members)
    for update in range(3):
        rows = [row for members in replicas for row in ranks[members[0]][update]]
        assert sorted(rows) == sorted(alone[update])


def test_a_row_has_the_numbers_of_its_own_rollout() -> None:
    """Rows are in prompt order, four groups per update, without those that shaping keeps out of the loss."""
    config = config_of(advantage=Advantage.group_mean)
    updates = split(SINGLE, config, policy=ScriptedPolicy(weight=0.25, reference_weight=0.75))
    kept = [prompt for index, prompt in enumerate(PROMPTS) if index % 5 != 2][:12]
    expected = [
        [
            (
                prompt.uid,
                rollout.token_ids.tolist(),
                rollout.sampler_logprobs.tolist(),
                MIXED[rollout.sibling] - 0.5,
            )
            for prompt in kept[4 * update : 4 * update + 4]
            for rollout in (make_rollout(prompt, sibling, weight=0.25) for sibling in range(NUM_ROLLOUTS))
            if rollout.sibling not in prompt.task["unfinished"]
        ]
        for update in range(3)
    ]
    assert [[(*row[:3], row[-1]) for row in rows] for rows in updates] == expected
    for update, rows in enumerate(updates):
        for _, token_ids, sampler, old, reference, _ in rows:
            assert old == (sampler if update else None), "the first update computes them"
            liked = np.array(token_ids) % 3 - 1
            assert reference == pytest.approx((np.array(sampler) + 0.5 * liked).tolist(), abs=1e-6)


def test_what_a_rank_trains_on_is_all_that_it_is_sent_and_it_is_small() -> None:
    """A row's tokens are sent to the ranks of one replica only. When all ranks got all prompts, texts, 64-bit token ids
    and log-probabilities, twice, each of four ranks received 45 to 52 bytes per response token (2026-11-22, commit
    9c8c7a6). Here all four together receive 20."""
    config, text = config_of(), "of a prompt" * 100
    prompts = [
        replace(make_prompt(f"p{i}", MIXED, lengths=[1000] * NUM_ROLLOUTS, tests=[text]), text=text)
        for i in range(15)
    ]
    rows: list[int] = []
    messages: list[bytes] = []

    def each(ranks: ThreadRanks) -> int:
        exchange, gather = ranks.exchange, ranks.gather

        def exchanging(parcels: Any) -> Any:
            rows.extend(len(parcel) for parcel in parcels.values())
            return exchange(parcels)

        def gathering(value: Any) -> Any:
            messages.append(pickle.dumps(value))
            return gather(value)

        ranks.exchange, ranks.gather = exchanging, gathering  # type: ignore[method-assign]
        return sum(map(len, split(ranks, config, prompts)))

    num_trained = sum(run_as_ranks(each, 4, 1, 1))
    num_sampled = NUM_ROLLOUTS * 15
    assert sum(rows) == num_sampled + num_trained
    assert not any(text.encode() in message for message in messages)
    num_bytes = sum(map(len, messages)) / (1000 * num_sampled)
    print(f"bytes that are sent for each response token sampled: {num_bytes:.1f}")
    assert num_bytes < 24
