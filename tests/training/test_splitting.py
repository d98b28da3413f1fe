"""Distribution of rows over replicas: each row goes to exactly one, with its own numbers, in any layout; and its cost
in bytes."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nemo_prorl.config import Advantage, AlgorithmConfig, KlIn, RunConfig, ShapingConfig
from nemo_prorl.distributed import Layout, Ranks, initialise
from nemo_prorl.training.splitting import split_over_ranks
from nemo_prorl.types import Prompt, Rollout
from tests.engines.conftest import run_ranks
from tests.training.conftest import (
    MIXED,
    NUM_ROLLOUTS,
    RIGHT,
    SINGLE,
    ScriptedGrader,
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


def split(ranks: Ranks | ThreadRanks, config: RunConfig, policy: ScriptedPolicy) -> list[list[Any]]:
    """Returns the content of the rows of each update that this rank trains on."""
    collection = make_collector(
        config, PROMPTS, sampler=ScriptedSampler(weight=0.25), policy=policy, ranks=ranks
    ).collect(new_state(num_updates=1))
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
        return split(ranks, config, ScriptedPolicy(weight=0.125, reference_weight=-0.5))

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
    updates = split(SINGLE, config, ScriptedPolicy(weight=0.25, reference_weight=0.75))
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


def test_what_a_rank_trains_on_is_all_that_it_is_sent() -> None:
    """A row's tokens are sent to the ranks of one replica only."""
    config = config_of()
    sent: list[int] = []

    def each(ranks: ThreadRanks) -> int:
        exchange = ranks.exchange

        def counting(parcels: Any) -> Any:
            sent.extend(len(parcel) for parcel in parcels.values())
            return exchange(parcels)

        ranks.exchange = counting  # type: ignore[method-assign]
        return sum(map(len, split(ranks, config, ScriptedPolicy())))

    num_trained = sum(run_as_ranks(each, 4, 1, 1))
    num_sampled = NUM_ROLLOUTS * 15
    assert sum(sent) == num_sampled + num_trained


# What it costs


class WordySampler(ScriptedSampler):
    """A sampler whose rollouts have about four characters of text per token, like those of real models."""

    def sample(
        self, prompts: Any, settings: Any, on_finish: Any, siblings: Any = None
    ) -> list[list[Rollout]]:
        groups = super().sample(prompts, settings, lambda rollout: None, siblings)
        groups = [[replace(r, text=r.text.ljust(4 * len(r.token_ids))) for r in group] for group in groups]
        for group in groups:
            for rollout in group:
                on_finish(rollout)
        return groups


def realistic_prompts(count: int) -> list[Prompt]:
    """Returns prompts of 250 tokens with responses of 400 to 1,600 tokens. Every fifth has 60 KB of tests, like prompts
    for code."""
    prompts = []
    for index in range(count):
        lengths = np.random.default_rng(index).integers(400, 1600, NUM_ROLLOUTS).tolist()
        tests = {"inputs": [f"{index}" * 30_000], "outputs": [f"{index}" * 30_000]} if index % 5 == 0 else {}
        prompt = make_prompt(
            f"p{index}", MIXED if zlib.crc32(b"%d" % index) % 5 < 3 else RIGHT, lengths=lengths, **tests
        )
        prompts.append(replace(prompt, text="p" * 900, token_ids=(7,) * 250))
    return prompts


def received_by_each_rank() -> tuple[int, int]:
    """Returns (bytes that this rank received in one step, from sampling to the rows that it trains on; response tokens
    sampled)."""
    ranks = initialise(1, 1)
    config = make_config(prompts_per_step=32, oversample=1.25)
    state = new_state(num_updates=1)
    state.sampling_yield = 0.6
    collector = make_collector(
        config,
        realistic_prompts(200),
        sampler=WordySampler(),
        policy=ScriptedPolicy(reference_weight=0.5),
        grader=ScriptedGrader(at_once=True),
        ranks=ranks,
    )
    collection = collector.collect(state)
    assert sum(map(len, split_over_ranks(collection, config, ranks))) > 0
    num_tokens = sum(m.rollout.num_tokens for group in collection.sampled for m in group.members)
    return ranks.traffic.take(), num_tokens


@pytest.mark.slow
def test_a_step_costs_a_fraction_of_what_it_did() -> None:
    """Four ranks over gloo. When all ranks got all prompts, texts, 64-bit token ids and log-probabilities, twice, a
    rank received 45 to 52 bytes per response token in this step (2026-11-22, commit 9c8c7a6); now 2.8 to 3.0."""
    per_token = [num_bytes / num_tokens for num_bytes, num_tokens in run_ranks(received_by_each_rank, 4)]
    print(f"bytes that a rank receives for each response token sampled: {[round(n, 2) for n in per_token]}")
    assert max(per_token) < 45 / 12
