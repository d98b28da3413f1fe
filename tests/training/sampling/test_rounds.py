"""Dynamic sampling on scripted engines: what it keeps, what it counts, and when it gives up."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.selection import Informativeness as Kind
from nemo_prorl.config import InformativeBy, ShapingConfig
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.training.sampling.rounds import Collection, NothingToLearn
from tests.training.conftest import (
    FAILED,
    MIXED,
    NUM_ROLLOUTS,
    RIGHT,
    WRONG,
    Clock,
    ScriptedGrader,
    ScriptedSampler,
    make_collector,
    make_config,
    make_prompt,
    make_prompts,
    new_state,
    uids,
)
from tests.training.test_splitting import listed
from tests.training.thread_ranks import run_as_ranks


def contents(collection: Collection) -> tuple[list[Any], dict[Any, Any]]:
    """Returns everything that training uses, comparable by ==: (what every rank has, what this replica has
    prepared)."""
    groups = [
        (group.prompt.uid, group.rewards, [member.rollout.num_tokens for member in group.members])
        for group in collection.groups
    ]
    prepared = {
        key: (
            row.prompt.uid,
            row.token_ids.tolist(),
            row.sampler_logprobs.tolist(),
            listed(row.old_logprobs),
            listed(row.reference_logprobs),
        )
        for key, row in collection.prepared.items()
    }
    return groups, prepared


# Which groups are kept


@pytest.mark.medium
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    scripts=st.lists(st.sampled_from([MIXED, RIGHT, WRONG, [0.5] * 4, [0.2, 0.4, 0.2, 0.2]]), min_size=40, max_size=40),
    orders=st.tuples(st.randoms(use_true_random=False), st.randoms(use_true_random=False)),
)  # fmt: skip
def test_nothing_depends_on_what_finishes_first(
    clock: Clock, scripts: list[Any], orders: tuple[Random, Random]
) -> None:
    """Rollouts end and verdicts arrive in any order; the batch is bit for bit the same."""
    config = make_config(prompts_per_step=4, oversample=1.5, min_fill=0.0)
    config.trainer.micro_batch_tokens = 1  # so that every group is a chunk
    collections = []
    for order in (None, *orders):
        sampler, grader = ScriptedSampler(), ScriptedGrader()
        if order is not None:
            sampler.finishing_order = lambda rollouts, order=order: order.sample(rollouts, len(rollouts))
            grader.choose = order.randrange
        try:
            collection = make_collector(
                config, make_prompts(*scripts), sampler=sampler, grader=grader
            ).collect(new_state())
        except (NothingToLearn, AssertionError) as error:
            collections.append(str(error))
        else:
            in_order = list(collection.prepared)  # sums of floats depend on it
            collections.append((contents(collection), in_order, collection.kinds, collection.surplus))
    assert collections[0] == collections[1] == collections[2]


@pytest.mark.parametrize("longest_first", [True, False])
def test_short_answers_have_no_advantage(clock: Clock, longest_first: bool) -> None:
    """Four informative prompts for two places; the last two finish much earlier."""
    prompts = [make_prompt(f"p{i}", MIXED, lengths=[30 if i < 2 else 1] * 4) for i in range(4)]
    sampler = ScriptedSampler(
        finishing_order=lambda rollouts: sorted(
            rollouts, key=lambda r: len(r.token_ids), reverse=longest_first
        )
    )
    config = make_config(prompts_per_step=2, oversample=2.0)
    collection = make_collector(config, prompts, sampler=sampler, grader=ScriptedGrader()).collect(
        new_state()
    )
    assert uids(collection.groups) == ["p0", "p1"]
    assert collection.surplus == (2, 3)


@pytest.mark.parametrize(
    ("world_size", "tensor", "pipeline", "sampler_tensor"),
    [(2, 1, 1, 1), (2, 2, 1, 2), (4, 2, 1, 1), (4, 1, 2, 2), (4, 2, 2, 1), (4, 1, 1, 1)],
)
def test_every_layout_collects_the_same_on_every_rank(
    clock: Clock, world_size: int, tensor: int, pipeline: int, sampler_tensor: int
) -> None:
    scripts = [MIXED, RIGHT, MIXED, WRONG, [None, 1.0, 0.0, 0.0], MIXED, RIGHT, FAILED] + [MIXED] * 40
    config = make_config(prompts_per_step=5, max_failed_share=1.0)
    config.sampler.tensor_parallel = sampler_tensor
    requests: list[str] = []

    def collect(ranks: Any) -> Any:
        order = Random(ranks.layout.rank)
        sampler = ScriptedSampler(finishing_order=lambda rollouts: order.sample(rollouts, len(rollouts)))
        grader = ScriptedGrader(choose=order.randrange)
        collection = make_collector(
            config, make_prompts(*scripts), sampler=sampler, grader=grader, ranks=ranks
        ).collect(new_state())
        requests.extend(request.request_id for request in grader.requests)
        known, prepared = contents(collection)
        return (known, uids(collection.sampled), collection.kinds, collection.surplus), prepared

    alone = make_collector(
        make_config(prompts_per_step=5, max_failed_share=1.0), make_prompts(*scripts)
    ).collect(new_state())
    ranks = run_as_ranks(collect, world_size, tensor, pipeline)
    assert all(known == ranks[0][0] for known, _ in ranks)
    known, all_prepared = contents(alone)
    assert ranks[0][0][0] == known
    prepared = {key: row for _, rows in ranks for key, row in rows.items()}
    assert prepared == all_prepared, "on its replica; which one trains on it is split later"
    assert max(Counter(requests).values()) == 1, "a rollout is graded once, whoever sampled it"
    assert len(requests) == NUM_ROLLOUTS * len(ranks[0][0][1])


# What is counted


def test_rewards_are_shaped_and_scores_are_not() -> None:
    shaping = ShapingConfig(overlong_buffer_share=10 / 32, overlong_penalty=0.5)
    prompt = make_prompt("p", MIXED, lengths=[1, 22, 27, 32])  # of 32 tokens, the last 10 cost
    collection = make_collector(make_config(prompts_per_step=1, shaping=shaping), [prompt]).collect(
        new_state()
    )
    (group,) = collection.groups
    assert group.rewards == pytest.approx((1.0, 0.0, -0.25, 0.5))
    assert [member.verdict.score for member in group.members] == MIXED


@pytest.mark.parametrize(("by", "kept"), [("score", ["mixed"]), ("reward", ["all_right", "mixed"])])
def test_an_all_right_group_with_a_punished_member_is_informative_by_its_rewards_alone(
    by: str, kept: list[str]
) -> None:
    prompts = [make_prompt("all_right", RIGHT, unfinished=[2]), make_prompt("mixed", MIXED)]
    shaping = ShapingConfig(termination_factor=0.5)
    config = make_config(
        prompts_per_step=2, shaping=shaping, by=InformativeBy(by), max_rounds=1, min_fill=0.0
    )
    collection = make_collector(config, prompts).collect(new_state())
    assert uids(collection.groups) == kept


# Overlong filtering


@pytest.mark.parametrize("enabled", [True, False])
def test_groups_without_a_response_that_ends_are_not_trained_on(enabled: bool) -> None:
    """Otherwise an update could be empty."""
    prompts = [
        make_prompt("none ends", MIXED, unfinished=[0, 1, 2, 3]),
        make_prompt("one ends", MIXED, unfinished=[0, 1, 2]),
        make_prompt("all end", MIXED),
    ]
    config = make_config(
        prompts_per_step=3, shaping=ShapingConfig(overlong_filtering=True), max_rounds=1, min_fill=0.0,
        enabled=enabled,
    )  # fmt: skip
    collection = make_collector(config, prompts).collect(new_state())
    assert uids(collection.groups) == ["one ends", "all end"]
    assert [member.in_loss for member in collection.groups[0].members] == [False, False, False, True]
    assert collection.kinds[Kind.all_filtered] == 1


# Rounds


def test_the_first_informative_groups_are_kept_and_rounds_go_on_until_the_step_is_full() -> None:
    prompts = make_prompts(RIGHT, MIXED, WRONG, RIGHT, MIXED, RIGHT, WRONG, MIXED, MIXED)
    sampler = ScriptedSampler()
    collection = make_collector(make_config(), prompts, sampler=sampler).collect(new_state())
    assert uids(collection.groups) == ["p1", "p4", "p7", "p8"]
    assert len(collection.rounds) == len(sampler.settings)
    assert len({setting.seed for setting in sampler.settings}) == 1
    assert uids(collection.sampled) == [f"p{index}" for index in range(9)]


@pytest.mark.parametrize(
    ("seen_yield", "oversample", "expected"),
    [(1.0, 1.0, 8), (1.0, 1.25, 10), (0.5, 1.0, 16), (0.5, 1.5, 24), (0.01, 1.0, 32), (0.3, 1.0, 27)],
)
def test_a_round_is_as_large_as_the_yield_asks_and_no_larger_than_four_times(
    seen_yield: float, oversample: float, expected: int
) -> None:
    sampler = ScriptedSampler()
    state = new_state()
    state.sampling_yield = seen_yield
    config = make_config(prompts_per_step=8, oversample=oversample)
    collection = make_collector(config, make_prompts(*[MIXED] * 40), sampler=sampler).collect(state)
    assert sampler.num_sampled == [expected]
    assert collection.surplus == tuple(range(8, expected))
    assert collection.num_needed == 8
    assert state.sampling_yield == pytest.approx(0.5 * seen_yield + 0.5)


@pytest.mark.parametrize(
    ("seen_yield", "sizes"),
    [
        (
            1.0,
            [8, 6, 2],
        ),  # 4, 3 and 1 informative; with the share of the steps before alone it took 8, 4, 2 and 1
        (0.5, [16]),
        (0.1, [32]),
    ],
)
def test_what_a_step_has_seen_sizes_its_next_round(seen_yield: float, sizes: list[int]) -> None:
    sampler, prompts = ScriptedSampler(), make_prompts(*[MIXED, WRONG] * 40)
    collector = make_collector(make_config(prompts_per_step=8), prompts, sampler=sampler)
    assert len(collector.collect(new_state(sampling_yield=seen_yield)).groups) == 8
    assert sampler.num_sampled == sizes


def test_each_step_and_each_seed_samples_differently() -> None:
    sampler, state = ScriptedSampler(), new_state()
    config = make_config(prompts_per_step=1)
    collector = make_collector(config, make_prompts(*[MIXED] * 9), sampler=sampler)
    for step in range(3):
        state.step = step
        collector.collect(state)
    config.seed = 2
    collector.collect(state)
    assert len({setting.seed for setting in sampler.settings}) == 4
    for setting in sampler.settings:
        assert (setting.temperature, setting.top_p, setting.max_response_tokens) == (1.2, 1.0, 32)
        assert setting.num_rollouts == NUM_ROLLOUTS


# Without dynamic sampling


def test_without_dynamic_sampling_everything_gradable_is_trained_on() -> None:
    prompts = make_prompts(RIGHT, MIXED, FAILED, WRONG, MIXED)
    sampler = ScriptedSampler()
    config = make_config(enabled=False, max_failed_share=1.0)
    collection = make_collector(config, prompts, sampler=sampler).collect(new_state())
    assert uids(collection.groups) == ["p0", "p1", "p3"]
    assert sampler.num_sampled == [4]
    assert (collection.kinds[Kind.all_right], collection.kinds[Kind.service_failure]) == (1, 1)
    assert (collection.surplus, collection.rounds) == ((), (0,))


def test_without_dynamic_sampling_a_step_goes_on_with_what_overlong_filtering_leaves() -> None:
    """However little is left, it does not mean that the data is exhausted."""
    prompts = [make_prompt(f"cut {index}", MIXED, unfinished=[0, 1, 2, 3]) for index in range(3)]
    config = make_config(enabled=False, shaping=ShapingConfig(overlong_filtering=True))
    said: list[str] = []
    collector = make_collector(config, [*prompts, make_prompt("whole", MIXED)])
    collector.context.say = said.append
    assert uids(collector.collect(new_state()).groups) == ["whole"]
    assert said == [
        "step 1 trains on 1 of 4 prompts: overlong filtering leaves no rollout of 3, and grading failed on 0"
    ]


def test_without_dynamic_sampling_a_step_that_lost_all_to_filter_and_service_is_an_outage() -> None:
    prompts = [make_prompt("cut", MIXED, unfinished=[0, 1, 2, 3]), *make_prompts(FAILED)]
    shaping = ShapingConfig(overlong_filtering=True)
    config = make_config(prompts_per_step=2, enabled=False, shaping=shaping, max_failed_share=1.0)
    with pytest.raises(RewardServiceFailing, match="grading failed on 1 of 2 prompts"):
        make_collector(config, prompts).collect(new_state())
