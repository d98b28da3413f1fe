"""Validation metrics equal counts by hand, and pass@k equals the mean over all subsets."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.engines.interface import SamplingSettings
from nemo_prorl.training.evaluation import evaluate, source_scores, summarise
from nemo_prorl.training.sampling.fleet import SamplerFleet
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.types import Finish
from tests.training.conftest import (
    FAILED,
    MIXED,
    RIGHT,
    SINGLE,
    WRONG,
    Clock,
    ScriptedGrader,
    ScriptedSampler,
    make_group,
    make_prompts,
    uids,
)
from tests.training.thread_ranks import run_as_ranks

SETTINGS = SamplingSettings(num_rollouts=4, temperature=0.6, top_p=0.95, max_response_tokens=32, seed=3)


def test_a_summary_by_hand() -> None:
    groups = [
        make_group("a", [1.0, 0.5, 0.0, 0.5], domain="math"),
        make_group("b", [1.0, 1.0, None, 1.0], domain="math"),
        make_group("c", [0.25, 0.25, 0.25, 0.25], domain="logic", finish=Finish.length),
        make_group("d", FAILED, domain="logic"),
    ]
    lengths = [member.rollout.num_tokens for group in groups for member in group.members]
    assert summarise(groups, [1, 4]) == pytest.approx(
        {
            "num_prompts": 3,
            "num_rollouts": 11,
            "score": (0.5 + 1.0 + 0.25) / 3,
            "score_std": np.std([1.0, 0.5, 0.0, 0.5, 1.0, 1.0, 1.0, 0.25, 0.25, 0.25, 0.25]),
            "domain_mean_score": (0.75 + 0.25) / 2,
            "response_tokens": sum(lengths) / 11,
            "no_eos_share": 4 / 11,
            "pass_at_1": (1 / 4 + 1 + 0) / 3,
            "pass_at_4": (1 + 0) / 2,
            "math/num_prompts": 2,
            "math/num_rollouts": 7,
            "math/score": 0.75,
            "math/score_std": np.std([1.0, 0.5, 0.0, 0.5, 1.0, 1.0, 1.0]),
            "math/response_tokens": sum(lengths[:7]) / 7,
            "math/no_eos_share": 0,
            "math/pass_at_1": 0.625,
            "math/pass_at_4": 1,
            "logic/num_prompts": 1,
            "logic/num_rollouts": 4,
            "logic/score": 0.25,
            "logic/score_std": 0.0,
            "logic/response_tokens": sum(lengths[7:]) / 4,
            "logic/no_eos_share": 1,
            "logic/pass_at_1": 0,
            "logic/pass_at_4": 0,
        }
    )


def test_scores_of_sources_by_hand() -> None:
    """A prompt whose rollouts were not graded does not count, nor one of a source without a name."""
    scores = {
        "a.json": [[1.0, 0.5, 0.0, 0.5], [1.0, None, 1.0, 1.0], FAILED],
        "b": [WRONG],
        "c": [FAILED],
        "d": [RIGHT],
    }
    groups = [
        replace(group, prompt=replace(group.prompt, source=source))
        for source, rows in scores.items()
        for group in (make_group("p", row) for row in rows)
    ]
    names = {"a.json": "a.json", "b": "beta", "c": "c"}
    assert source_scores(groups, names) == {
        "source/a.json/held_out_score": 0.75, "source/beta/held_out_score": 0.0,
    }  # fmt: skip


@settings(deadline=None)
@given(
    scores=st.lists(
        st.lists(st.sampled_from([0.0, 0.5, 0.999999, 1.0, None]), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    ),
    k=st.integers(1, 6),
)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(scores: list[list[float | None]], k: int) -> None:
    groups = [make_group(f"p{index}", group) for index, group in enumerate(scores)]
    graded = [[score for score in group if score is not None] for group in scores]
    shares = [
        sum(1.0 in subset for subset in combinations(group, k)) / len(list(combinations(group, k)))
        for group in graded
        if len(group) >= k
    ]
    summary = summarise(groups, [k])
    if shares:
        assert summary[f"pass_at_{k}"] == pytest.approx(sum(shares) / len(shares))
    else:
        assert f"pass_at_{k}" not in summary, "nothing unbiased can be said"


def test_nothing_graded_is_no_reward_of_0() -> None:
    assert summarise([make_group("a", FAILED)], [1]) == {"num_prompts": 0.0, "math/num_prompts": 0.0}


def run_evaluation(
    *scripts: Any, max_failed_share: float = 0.0, grader: Any = None, ranks: Any = SINGLE, sampler: Any = None
) -> Any:
    groups, _ = evaluate(
        make_prompts(*scripts),
        SETTINGS,
        fleet=SamplerFleet(sampler or ScriptedSampler(), ranks, tensor_parallel=1),
        grader=grader or ScriptedGrader(at_once=True),
        ranks=ranks,
        max_failed_share=max_failed_share,
    )
    return groups


def test_evaluation_samples_as_it_is_told_and_keeps_every_prompt() -> None:
    sampler = ScriptedSampler()
    groups = run_evaluation(RIGHT, MIXED, WRONG, sampler=sampler)
    assert uids(groups) == ["p0", "p1", "p2"]
    assert [group.rewards for group in groups] == [tuple(RIGHT), tuple(MIXED), tuple(WRONG)]
    assert sampler.settings == [SETTINGS]


def test_missing_verdicts_are_dropped_or_stop_the_evaluation() -> None:
    scripts = ([None, 1.0, 1.0, 0.0], MIXED)
    groups = run_evaluation(*scripts, max_failed_share=0.2)
    assert (groups[0].rewards, groups[0].num_failed) == ((1.0, 1.0, 0.0), 1)
    with pytest.raises(RewardServiceFailing, match="1 of 8"):
        run_evaluation(*scripts, max_failed_share=0.1)


def test_every_rank_gets_every_group(clock: Clock) -> None:
    scripts = [MIXED, RIGHT, WRONG, [0.5, None, 0.0, 1.0], MIXED]
    expected = [group.rewards for group in run_evaluation(*scripts, max_failed_share=1.0)]
    for result in run_as_ranks(
        lambda ranks: run_evaluation(*scripts, max_failed_share=1.0, grader=ScriptedGrader(), ranks=ranks),
        4,
        2,
        1,
    ):
        assert [group.rewards for group in result] == expected
