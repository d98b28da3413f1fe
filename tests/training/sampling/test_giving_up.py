"""When a step gives up: outages, exhausted data, and data or rewards that do not suit the policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from nemo_prorl.algorithm.selection import Informativeness
from nemo_prorl.config import RewardConfig, ShapingConfig
from nemo_prorl.training.sampling.giving_up import Seen, advice
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.training.sampling.rounds import NothingToLearn, Saturated, sampling_seed
from tests.training.conftest import (
    FAILED,
    MIXED,
    RIGHT,
    WRONG,
    ScriptedSampler,
    make_collector,
    make_config,
    make_prompt,
    make_prompts,
    new_state,
    uids,
)
from tests.training.scripted_run import nearly_exhausted


def test_an_outage_is_never_taken_for_saturation() -> None:
    """A stage that saturates is finished for good; one that a dead service stopped is not."""
    config = make_config(prompts_per_step=4, max_failed_share=1.0, max_rounds=2)
    with pytest.raises(RewardServiceFailing, match=r"grading failed on .* prompts"):
        make_collector(config, make_prompts(MIXED, *[FAILED] * 50)).collect(new_state())


@pytest.mark.medium
def test_runs_of_small_steps_do_not_die_by_chance() -> None:
    """At a share of 0.11, 32 prompts hold no informative one in 2.4 % of the steps: a rule that gives up after them
    ends nine of ten runs of 100 steps, so all three survive it once in 1,000 times."""
    found: list[int] = []
    for seed in range(3):
        draw = Random(seed)
        prompts = [
            make_prompt(f"p{index}", MIXED if draw.random() < 0.11 else WRONG) for index in range(6000)
        ]
        collector, state = make_collector(make_config(oversample=1.12), prompts), new_state()
        for _ in range(100):
            found.append(len(collector.collect(state).groups))
            state.step = state.stage_step = state.step + 1
    assert found.count(4) > 0.9 * len(found), "and most are full"


@pytest.mark.parametrize(
    ("prompts_per_step", "state", "num_prompts"),
    [
        (4, {}, (100, 128)),  # a stage's first step: all rounds
        (256, {}, (256, 1280)),  # which are more than is needed to know
        (4, {"sampling_yield": 0.8}, (12, 60)),  # it was high: soon no chance any more
        (4, {"sampling_yield": 0.11}, (128, 270)),
        (256, {"sampling_yield": 0.8}, (256, 360)),
    ],
)
def test_a_step_without_an_informative_group_stops_when_that_is_no_chance(
    prompts_per_step: int, state: dict[str, Any], num_prompts: tuple[int, int]
) -> None:
    sampler = ScriptedSampler()
    config = make_config(prompts_per_step=prompts_per_step, oversample=1.12)
    collector = make_collector(config, make_prompts(*[WRONG] * 1500), sampler=sampler)
    with pytest.raises(NothingToLearn):
        collector.collect(nearly_exhausted(**state) if state else new_state())
    assert num_prompts[0] <= sum(sampler.num_sampled) <= num_prompts[1]


def test_a_later_step_draws_on_until_it_finds_a_group_if_none_may_be_chance() -> None:
    """After all rounds."""
    said: list[str] = []
    prompts = make_prompts(*[WRONG] * 180, MIXED, *[WRONG] * 100)
    collector, state = make_collector(make_config(), prompts), nearly_exhausted(sampling_yield=0.08)
    collector.context.say = said.append
    collection = collector.collect(state)
    assert uids(collection.groups) == ["p180"]
    assert len(collection.rounds) > 8
    assert "step 6 trains on what it found: 1 of 4 informative prompts in 1" in said[0]
    assert (state.recent_informative, state.recent_prompts) == (9.0, 100.0 + len(collection.sampled))


SOLVED = [*[RIGHT] * 19, WRONG]
COLLAPSED = [RIGHT, RIGHT, WRONG]
FEW = {"recent_prompts": 8.0, "recent_informative": 1.0}
"""A stage that has hardly begun."""


@pytest.mark.parametrize(
    ("scripts", "state", "is_done", "said"),
    [
        ([RIGHT], {}, True, "272 all right.*little left to teach"),
        ([[1.5] * 4], {"highest_score": 1.5}, True, "272 all right.*little left to teach"),
        ([[1.5] * 4], {"highest_score": 4.0}, False, "272 all equal.*too hard"),
        ([[-1.0] * 4], {}, False, "272 all wrong.*too hard: train on easier ones"),
        (SOLVED, {}, True, "259 all right, 13 all wrong.*little left to teach"),
        (COLLAPSED, {}, False, r"share was 0\.04 until now.*collapsed \(its entropy is 0\.03\).*learning_rate"),
        ([[0.5] * 4], {}, False, "too hard: train on easier ones, or sample more rollouts"),
        ([WRONG], {}, False, "272 all wrong.*too hard: train on easier ones"),
        ([RIGHT], {"sampling_yield": 0.5}, False, r"a chance of \de-\d\d, so something has changed.*first: a resp"),
        ([RIGHT], {"sampling_yield": 0.2}, False, "something has changed"),
        ([RIGHT], {"sampling_yield": 0.2} | FEW, True, "272 all right"),
        ([[0.5] * 4], {"sampling_yield": 0.5}, False, r"ends in '0' got 0\.5; .*If it is right, the policy"),
        ([WRONG], {"sampling_yield": 0.5}, False, "something has changed"),
        (COLLAPSED, {"sampling_yield": 0.5}, False, "may have collapsed"),
        ([WRONG], {"sampling_yield": 0.5} | FEW, False, "Either the policy may have collapsed .*`rewind`.*; or what"),
        ([WRONG], {"sampling_yield": 0.1} | FEW, False, "Either what is left is too hard.*; or the policy may"),
        ([RIGHT], {"stage_step": 0}, False, "already solves most of these prompts"),
        ([WRONG], {"stage_step": 0}, False, r"ends in '0' got 0\. Look first at the grader, then whether answers h"),
        ([RIGHT, WRONG], {"stage_step": 0}, False, "same score.*too hard"),
    ],
)  # fmt: skip
def test_only_data_that_is_learned_is_exhausted_and_all_else_says_what_to_look_at(
    scripts: list[list[float]], state: dict[str, Any], is_done: bool, said: str
) -> None:
    collector = make_collector(make_config(), make_prompts(*scripts * 300))
    before, asked = nearly_exhausted(entropy=0.03, **state), nearly_exhausted(entropy=0.03, **state)
    with pytest.raises(Saturated if is_done else NothingToLearn, match=said) as caught:
        collector.collect(asked)
    assert (str(caught.value).count("\n"), str(caught.value)[-1]) == (0, ".")
    assert asked == replace(before, num_attempts=0 if is_done else 1)
    prompts = collector.context.prompts
    assert bool(prompts.state().get("again")) is not is_done
    assert hasattr(prompts, "noted") is is_done, "the next stage knows what is learned"


def test_a_stage_knows_its_highest_score() -> None:
    """So that a policy that has collapsed to well-formed wrong answers, which score 1.5, has not learned its data."""
    collector, state = make_collector(make_config(), make_prompts(*[[1.5, 4.0, 1.5, 1.5]] * 30)), new_state()
    collector.collect(state)
    assert state.highest_score == 4.0


def test_a_function_that_gives_nothing_in_a_first_step_is_named_with_what_it_gave() -> None:
    config = make_config()
    config.reward = RewardConfig(function=["my_reward.py:score"])
    collector = make_collector(config, make_prompts(*[WRONG] * 300))
    with pytest.raises(
        NothingToLearn, match=r"ends in '0' got 0\. Look first at my_reward\.py:score \(`train --che"
    ):
        collector.collect(new_state())


@pytest.mark.parametrize(
    ("most", "functions", "cut_share", "no_box_share", "said"),
    [
        (WRONG, [], 0.95, 0.0, "got 0. 95% of the responses are cut off: raise sampler.max_response_tokens. L"),
        (WRONG, ["f.py:score"], 0.5, 0.0, "got 0. Look first at f.py:score ("),
        (WRONG, [], 0.5, 0.95, "Look first at the form of answers: 95% have no \\boxed{}, where the grader looks"),
        (RIGHT, ["f.py:score"], 0.0, 0.0, "solves most of these prompts, or f.py:score pays all alike: a response got"),
    ],
)  # fmt: skip
def test_a_first_step_says_the_cause_that_its_responses_show(
    most: list[float], functions: list[str], cut_share: float, no_box_share: float, said: str
) -> None:
    kind = Informativeness.all_right if most is RIGHT else Informativeness.all_wrong
    seen = Seen(example="a response got 0", cut_share=cut_share, no_box_share=no_box_share)
    assert said in advice(Counter({kind: 100}), new_state(), functions, seen)


def test_the_example_ended_by_itself_and_shares_are_of_all_responses() -> None:
    answer = [15] * 1000
    prompts = [make_prompt(f"p{index}", WRONG, unfinished=[0, 1, 2], answer=answer) for index in range(300)]
    config = make_config()
    config.reward = RewardConfig(function=["my_reward.py:score"])
    with pytest.raises(
        NothingToLearn, match=r"that ends in '3' \(right is \[15, [15, ]{75}\) got 0\. Look first"
    ):
        make_collector(config, prompts).collect(new_state())


def test_another_attempt_at_a_step_samples_other_responses() -> None:
    sampler, state = ScriptedSampler(), nearly_exhausted()
    prompts = make_prompts(*[WRONG] * 300)
    for _ in range(3):
        with pytest.raises(NothingToLearn):
            make_collector(make_config(), prompts, sampler=sampler).collect(state)
    assert state.num_attempts == 3
    seeds = {settings.seed for settings in sampler.settings}
    assert seeds == {sampling_seed(1, 5, attempt) for attempt in range(3)}
    assert len(seeds | {sampling_seed(seed, step, 0) for seed in (1, 2) for step in range(9)}) == 2 + 18


def test_filtered_groups_are_never_exhausted_data() -> None:
    prompts = [make_prompt(f"p{index}", RIGHT, unfinished=[0, 1, 2, 3]) for index in range(300)]
    for enabled, share in ((True, 0.05), (True, 0.5), (False, 1.0)):
        config = make_config(enabled=enabled, shaping=ShapingConfig(overlong_filtering=True))
        with pytest.raises(NothingToLearn, match=r"shaping\.overlong_filtering=false"):
            make_collector(config, prompts).collect(nearly_exhausted(sampling_yield=share))


@pytest.mark.medium
def test_a_share_that_falls_from_step_to_step_ends_in_saturation() -> None:
    """From all prompts to hardly any: the informative ones lie further and further apart."""
    found = {round(1.15**number) for number in range(100)}
    prompts = [make_prompt(f"p{index}", MIXED if index in found else RIGHT) for index in range(4000)]
    collector, state, shares = make_collector(make_config(), prompts), new_state(), []

    def train() -> None:
        while True:
            collector.collect(state)
            shares.append(state.sampling_yield)
            state.step = state.stage_step = state.step + 1

    with pytest.raises(
        Saturated, match=r"data has little left to teach this policy\. Begin the next stage\."
    ):
        train()
    assert (shares[0] > 0.5, shares[-1] < 0.1) == (True, True)


def test_a_large_step_that_finds_hardly_any_group_is_bounded_and_one_sentence() -> None:
    sampler = ScriptedSampler()
    config = make_config(prompts_per_step=64, max_rounds=5, min_fill=0.5)
    collector = make_collector(config, make_prompts(MIXED, *[RIGHT] * 1300), sampler=sampler)
    with pytest.raises(NothingToLearn, match=r"found 1 of 64 informative prompts in 5 round\(s\)") as caught:
        collector.collect(new_state())
    assert sum(sampler.num_sampled) <= 5 * 4 * 64
    assert f"({sum(sampler.num_sampled) - 1} all right, 1 informative)" in str(caught.value)
    assert "lower trainer.prompts_per_step needs fewer, more dynamic_sampling.max_rounds" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("num_informative", "min_fill", "fills"),
    [(64, 1.0, True), (40, 1.0, False), (32, 0.5, True), (2, 0.5, False), (1, 0.0, True), (0, 0.0, False)],
)
def test_min_fill_decides_whether_a_step_goes_on_with_what_it_has(
    num_informative: int, min_fill: float, fills: bool
) -> None:
    """However improbable that is."""
    prompts = make_prompts(*[MIXED] * num_informative, *[RIGHT] * 1500)
    config = make_config(prompts_per_step=64, max_rounds=5, min_fill=min_fill)
    collector = make_collector(config, prompts)
    recent = {"recent_prompts": 1000.0, "recent_informative": 900.0}
    state = new_state(stage_step=1, sampling_yield=0.9, **recent)
    if fills:
        assert len(collector.collect(state).groups) == num_informative
    else:
        with pytest.raises(NothingToLearn):
            collector.collect(state)
