"""Log-probabilities of a step's rollouts on scripted engines: of which groups, in which batches, under which
weights."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_prorl.config import KlIn, ShapingConfig
from nemo_prorl.training.sampling import prepare
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.training.sampling.rounds import NothingToLearn
from nemo_prorl.training.splitting import split_over_ranks
from nemo_prorl.training.step_metrics import selection_metrics
from tests.training.conftest import (
    FAILED,
    MIXED,
    RIGHT,
    SINGLE,
    WRONG,
    Clock,
    ScriptedGrader,
    ScriptedPolicy,
    ScriptedSampler,
    make_collector,
    make_config,
    make_prompt,
    make_prompts,
    new_state,
)


@pytest.mark.medium
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    scripts=st.lists(st.sampled_from([MIXED, RIGHT, WRONG]), min_size=12, max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_what_is_computed_together_does_not_depend_on_what_is_graded_first(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, scripts: list[Any], order: Random
) -> None:
    """Results are bit for bit the same only if the batches are."""
    monkeypatch.setattr(prepare, "PASSES_A_CHUNK", 1)
    config = make_config(prompts_per_step=12, updates_per_step=3, enabled=False)
    config.trainer.micro_batch_tokens = 100
    computed = []
    for choose in (lambda num_waiting: 0, order.randrange):
        policy, batches = ScriptedPolicy(), []
        policy.logprobs = lambda batch, batches=batches: (
            batches.append(batch) or np.zeros(batch.token_ids_BT.shape)
        )  # type: ignore[method-assign]
        grader = ScriptedGrader(choose=choose)
        make_collector(config, make_prompts(*scripts), policy=policy, grader=grader).collect(
            new_state(num_updates=1)
        )
        computed.append(Counter(batch.token_ids_BT.tobytes() for batch in batches))
    assert computed[0] == computed[1]
    assert len(computed[0]) > 2


@pytest.mark.medium
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    scripts=st.lists(st.sampled_from([MIXED, MIXED, RIGHT, WRONG, FAILED]), min_size=24, max_size=24),
    order=st.randoms(use_true_random=False),
    updates_per_step=st.sampled_from([1, 2, 4]),
    max_rounds=st.integers(1, 3),
    oversample=st.sampled_from([1.0, 2.0]),
    kl_in=st.sampled_from(KlIn),
)
def test_only_what_is_kept_costs_a_pass_and_the_first_update_computes_its_old_log_probabilities_itself(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    scripts: list[Any],
    order: Random,
    updates_per_step: int,
    max_rounds: int,
    oversample: float,
    kl_in: KlIn,
) -> None:
    """In whatever order verdicts arrive, although chunks of several groups are computed together, in steps of several
    rounds and in steps that are not full. A KL in the reward is needed before the first update."""
    monkeypatch.setattr(prepare, "PASSES_A_CHUNK", 1)
    config = make_config(
        prompts_per_step=4, updates_per_step=updates_per_step, max_rounds=max_rounds, min_fill=0.0,
        oversample=oversample, max_failed_share=1.0, shaping=ShapingConfig(overlong_filtering=True),
    )  # fmt: skip
    config.trainer.micro_batch_tokens = 60
    config.algorithm.kl_in = kl_in
    prompts = [
        make_prompt(f"p{i}", s, unfinished=[i % 4] if i % 3 == 0 else []) for i, s in enumerate(scripts)
    ]
    policy, grader = ScriptedPolicy(weight=0.25, reference_weight=0.5), ScriptedGrader(choose=order.randrange)
    state = new_state(num_updates=1)
    try:
        collection = make_collector(
            config, prompts, sampler=ScriptedSampler(weight=0.25), policy=policy, grader=grader
        ).collect(state)
    except (NothingToLearn, RewardServiceFailing, AssertionError):
        return  # too few, or more wanted than listed
    assert collection.prepared.keys() == {
        (index, member.rollout.sibling)
        for index in collection.kept
        for member in collection.sampled[index].members
    }
    updates = split_over_ranks(collection, config, SINGLE)
    assert len(updates) == min(updates_per_step, len(collection.kept))
    missing = {key for key, row in collection.prepared.items() if row.old_logprobs is None}
    assert missing == ({row.key for row in updates[0]} if kl_in is not KlIn.reward else set())
    assert policy.num_prepared == len(collection.prepared) - len(missing)
    for key, row in collection.prepared.items():
        if key not in missing:
            assert row.logprobs[0].tolist() == row.sampler_logprobs.tolist()
        assert row.reference_logprobs is not None
        wanted = row.sampler_logprobs + 0.25 * (row.token_ids % 3 - 1)
        assert row.reference_logprobs.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def test_what_lies_behind_the_last_prompt_needed_was_sampled_in_vain() -> None:
    scripts, lengths = [MIXED, RIGHT, MIXED, WRONG, MIXED], [1, 2, 3, 5, 8]
    prompts = [
        make_prompt(f"p{i}", s, lengths=[n] * 4)
        for i, (s, n) in enumerate(zip(scripts, lengths, strict=True))
    ]
    full = make_collector(make_config(prompts_per_step=2, oversample=2.5), prompts).collect(new_state())
    assert (full.kept, full.surplus) == ((0, 2), (4,))
    assert selection_metrics(full)["dynamic_sampling/surplus_share"] == (5 + 8) / sum(lengths)
    config = make_config(prompts_per_step=5, max_rounds=1, min_fill=0.0)
    not_full = make_collector(config, prompts).collect(new_state())
    assert selection_metrics(not_full)["dynamic_sampling/surplus_share"] == 0.0


def test_a_policy_that_is_its_reference_needs_no_second_pass() -> None:
    """Right after a reset both use the same arrays, so the KL is exactly 0, without the rounding of a second pass."""
    policy = ScriptedPolicy(weight=0.25, reference_weight=0.25)
    state = new_state(num_updates=8, last_reset_update=8)
    collection = make_collector(make_config(), make_prompts(*[MIXED] * 4), policy=policy).collect(state)
    assert policy.num_references == 0
    assert all(row.reference_logprobs is row.old_logprobs for row in collection.prepared.values())


def test_the_reference_is_fetched_once_for_all_groups_that_are_ready() -> None:
    policy = ScriptedPolicy()
    prompts = make_prompts(*[MIXED] * 4)
    make_collector(make_config(), prompts, policy=policy).collect(new_state(num_updates=1))
    assert policy.num_references == 1
