"""When a step gives up: outages, exhausted data, and data or rewards that do not suit the policy."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_prorl.config import ShapingConfig
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.training.sampling.rounds import NothingToLearn, Saturated
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
)
from tests.training.scripted_run import nearly_exhausted


def test_an_outage_is_never_taken_for_saturation() -> None:
    """A stage that saturates is finished for good; one that a dead service stopped is not."""
    config = make_config(prompts_per_step=4, max_failed_share=1.0, max_rounds=2)
    with pytest.raises(RewardServiceFailing, match=r"grading failed on .* prompts"):
        make_collector(config, make_prompts(MIXED, *[FAILED] * 50)).collect(new_state())


@pytest.mark.parametrize("max_rounds", [1, 2, 8])
@pytest.mark.parametrize("scores", [RIGHT, WRONG, [0.5] * 4])
def test_two_rounds_without_one_informative_group_are_enough_to_know(
    max_rounds: int, scores: list[float]
) -> None:
    sampler = ScriptedSampler()
    collector = make_collector(
        make_config(max_rounds=max_rounds), make_prompts(*[scores] * 100), sampler=sampler
    )
    with pytest.raises(NothingToLearn):
        collector.collect(new_state())
    assert len(sampler.num_sampled) == min(2, max_rounds)


@pytest.mark.parametrize(
    ("scores", "state", "is_done"),
    [
        (RIGHT, {}, True),
        ([0.5] * 4, {}, True),
        ([0.5] * 4, {"sampling_yield": 0.5}, False),  # a grader that gives every answer the same score
        (RIGHT, {"sampling_yield": 0.5}, False),
        (RIGHT, {"sampling_yield": 0.11}, False),
        (RIGHT, {"stage_step": 0}, False),  # what fell, fell in the stage before
        (WRONG, {}, False),
        (WRONG, {"sampling_yield": 0.5}, False),
        (WRONG, {"stage_step": 0}, False),
    ],
)
def test_data_is_exhausted_only_where_its_share_has_fallen_to_what_is_solved(
    scores: list[float], state: dict[str, Any], is_done: bool
) -> None:
    collector = make_collector(make_config(max_rounds=2), make_prompts(*[scores] * 100))
    before, asked = nearly_exhausted(**state), nearly_exhausted(**state)
    with pytest.raises(Saturated if is_done else NothingToLearn) as caught:
        collector.collect(asked)
    assert (str(caught.value).count("\n"), str(caught.value)[-1]) == (0, ".")
    assert (asked == before, bool(collector.context.prompts.state().get("again"))) == (
        not is_done,
        not is_done,
    )


def test_filtered_groups_are_never_exhausted_data() -> None:
    prompts = [make_prompt(f"p{index}", RIGHT, unfinished=[0, 1, 2, 3]) for index in range(100)]
    for enabled, share in ((True, 0.05), (True, 0.5), (False, 1.0)):
        config = make_config(enabled=enabled, shaping=ShapingConfig(overlong_filtering=True))
        with pytest.raises(NothingToLearn, match=r"shaping\.overlong_filtering=false"):
            make_collector(config, prompts).collect(nearly_exhausted(sampling_yield=share))


@pytest.mark.medium
def test_a_share_that_falls_from_step_to_step_ends_in_saturation() -> None:
    """From all prompts to hardly any: the informative ones lie further and further apart."""
    found = {round(1.15**number) for number in range(100)}
    prompts = [make_prompt(f"p{index}", MIXED if index in found else RIGHT) for index in range(2000)]
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


def test_saturation_is_bounded_and_one_sentence() -> None:
    prompts = make_prompts(MIXED, *[RIGHT] * 500)
    sampler = ScriptedSampler()
    config = make_config(prompts_per_step=4, max_rounds=5, min_fill=0.5)
    with pytest.raises(NothingToLearn, match=r"found 1 of 4 informative prompts in 5 round\(s\)") as caught:
        make_collector(config, prompts, sampler=sampler).collect(new_state())
    assert len(sampler.num_sampled) == 5
    assert sum(sampler.num_sampled) <= 5 * 4 * 4
    assert f"{sum(sampler.num_sampled) - 1} all_right" in str(caught.value)
    assert "trainer.prompts_per_step" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("num_informative", "min_fill", "fills"),
    [(4, 1.0, True), (3, 1.0, False), (2, 0.5, True), (1, 0.5, False), (1, 0.0, True), (0, 0.0, False)],
)
def test_min_fill_decides_whether_a_step_goes_on_with_what_it_has(
    num_informative: int, min_fill: float, fills: bool
) -> None:
    prompts = make_prompts(*[MIXED] * num_informative, *[RIGHT] * 100)
    collector = make_collector(make_config(max_rounds=2, min_fill=min_fill), prompts)
    if fills:
        assert len(collector.collect(new_state()).groups) == num_informative
    else:
        with pytest.raises(NothingToLearn):
            collector.collect(new_state())
