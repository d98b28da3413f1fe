"""Tests of reward shaping: every rule against its source, alone and together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.shaping import (
    SHAPINGS,
    Shaped,
    cosine_length_reward,
    is_malformed_thought,
    length_penalty_is_on,
    outline,
    shape_reward,
    unshaped,
)
from nemo_prorl.config import ConfigError, LengthPenaltyConfig, ShapingConfig
from nemo_prorl.types import Finish, Prompt, Rollout, RolloutOutline

PROMPT = Prompt(uid="p#0", domain="math", source="s", text="?", token_ids=(1,), task={})


def rollout_of(
    num_tokens: int, *, finish: Finish = Finish.stop, text: str = "", prompt: Prompt = PROMPT
) -> RolloutOutline:
    return outline(
        Rollout(
            prompt=prompt,
            sibling=0,
            token_ids=np.zeros(num_tokens, dtype=np.int64),
            sampler_logprobs=np.zeros(num_tokens, dtype=np.float32),
            text=text,
            finish=finish,
            policy_version=0,
        )
    )


def shape(
    score: float,
    num_tokens: int,
    config: ShapingConfig,
    finish: Finish = Finish.stop,
    limit: int = 25,
    *,
    text: str = "",
    num_updates: int = 0,
) -> Shaped:
    rollout = rollout_of(num_tokens, finish=finish, text=text)
    return shape_reward(rollout, score, max_response_tokens=limit, num_updates=num_updates, config=config)


def shaped(
    score: float, num_tokens: int, config: ShapingConfig, finish: Finish = Finish.stop, limit: int = 25
) -> float:
    return shape(score, num_tokens, config, finish, limit).reward


@given(score=st.floats(0, 1), num_tokens=st.integers(1, 30), finish=st.sampled_from(Finish))
@settings(deadline=None)
def test_off_by_default(score, num_tokens, finish):
    expected = Shaped(score, in_loss=True, shaped_by=())
    assert shape(score, num_tokens, ShapingConfig(), finish, text="</think><think>") == expected
    assert unshaped(rollout_of(num_tokens, finish=finish), score) == expected


@given(
    limit=st.integers(2, 60),
    data=st.data(),
    score=st.floats(0, 1),
    factor=st.floats(0, 1),
    penalty=st.floats(0, 2),
    finish=st.sampled_from(Finish),
)
@settings(deadline=None)
def test_equals_the_cases_of_the_paper(limit, data, score, factor, penalty, finish):
    """Tests each case of DAPO eq. 13."""
    cache = data.draw(st.integers(1, limit - 1))
    length = data.draw(st.integers(1, limit + 5))
    if length <= limit - cache:
        punishment = 0.0
    elif length <= limit:
        punishment = ((limit - cache) - length) / cache
    else:
        punishment = -1.0
    config = ShapingConfig(
        termination_factor=factor, overlong_buffer_share=cache / limit, overlong_penalty=penalty
    )
    expected = (score * factor if finish == "length" else score) + penalty * punishment
    assert shaped(score, length, config, finish, limit) == pytest.approx(expected, abs=1e-12)


def test_vectors_of_nemo_rl_overlong():
    """NVIDIA-NeMo/RL tests/unit/algorithms/test_reward_functions.py, test_reward_shaping_with_penalties: buffer 5 of
    25, penalty 0.5. Its last row (30 tokens) falls further, to -0.6; DAPO eq. 13 stops at the full penalty."""
    config = ShapingConfig(overlong_buffer_share=5 / 25, overlong_penalty=0.5)
    rewards = [shaped(score, n, config) for score, n in ((1.0, 10), (0.8, 22), (0.6, 25), (0.4, 30))]
    assert rewards == pytest.approx([1.0, 0.6, 0.1, -0.1])
    # test_reward_shaping_no_penalties
    config = ShapingConfig(overlong_buffer_share=5 / 25, overlong_penalty=1.0)
    assert [shaped(score, n, config) for score, n in ((1.0, 10), (0.5, 15), (0.8, 18))] == [1.0, 0.5, 0.8]


@pytest.mark.parametrize(("factor", "expected"), [(0.5, [1.0, 0.4, 0.6, 0.2]), (1.0, [1.0, 0.8, 0.6, 0.4])])
def test_vectors_of_nemo_rl_stop_properly(factor, expected):
    """test_stop_properly_penalty and its boundary cases there."""
    config = ShapingConfig(termination_factor=factor)
    finishes = (Finish.stop, Finish.length, Finish.stop, Finish.length)
    rewards = [shaped(s, 10, config, f) for s, f in zip((1.0, 0.8, 0.6, 0.4), finishes, strict=True)]
    assert rewards == pytest.approx(expected)


def test_vectors_of_verl_dapo_reward_manager():
    """verl tests/workers/reward_manager/test_dapo_on_cpu.py: score 0.5, 4 tokens of 4, buffer 2."""
    config = ShapingConfig(overlong_buffer_share=2 / 4, overlong_penalty=1.0)
    assert shaped(0.5, 4, config, limit=4) == -0.5


@pytest.mark.parametrize("score", [-3.0, -0.1, 0.0, 0.5, 1.0, 7.0])
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_a_factor_never_makes_an_unfinished_response_better(score, factor):
    """Reward functions may return any finite score."""
    config = ShapingConfig(termination_factor=factor, malformed_thought_factor=factor)
    finished = shaped(score, 3, ShapingConfig(), Finish.length)
    assert finished == score
    assert shaped(score, 3, config, Finish.length) <= finished


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_what_is_no_score_is_refused(score):
    with pytest.raises(ValueError, match="score"):
        shaped(score, 3, ShapingConfig())


# The scheduled cosine length penalty of ProRL v2


def yeo_cosine(t: float, longest: float, at_start: float, at_end: float) -> float:
    """CosFn of arXiv 2502.03373 (GAIR-NLP/demystify-long-cot): eta_min + (eta_max - eta_min) / 2 * (1 + cos(t pi / T)),
    computed here with the half-angle formula."""
    return at_end + (at_start - at_end) * math.cos(0.5 * math.pi * t / longest) ** 2


@given(
    num_tokens=st.integers(0, 130),
    shortest=st.floats(-1, 2),
    span=st.floats(0, 3),
)
def test_the_cosine_equals_its_source_up_to_the_limit_and_stays(num_tokens, shortest, span):
    config = LengthPenaltyConfig(shortest=shortest, longest=shortest - span)
    assert cosine_length_reward(num_tokens, 100, config) == pytest.approx(
        yeo_cosine(min(num_tokens, 100), 100, shortest, shortest - span), abs=1e-12
    )


def test_the_penalty_is_on_for_100_updates_and_off_for_500():
    config = LengthPenaltyConfig(weight=0.1)
    on = [update for update in range(1300) if length_penalty_is_on(update, config)]
    assert on == [*range(100), *range(600, 700), *range(1200, 1300)]
    assert not any(length_penalty_is_on(update, LengthPenaltyConfig()) for update in range(700))
    always = LengthPenaltyConfig(weight=0.1, on_updates=7, off_updates=0)
    assert all(length_penalty_is_on(update, always) for update in range(30))


def test_the_penalty_is_added_while_it_is_on():
    config = ShapingConfig(length_penalty=LengthPenaltyConfig(weight=0.2))
    on = shape(1.0, 25, config, num_updates=99)
    assert on.reward == pytest.approx(0.8)
    assert on.shaped_by == ("length_penalty",)
    assert shape(0.0, 25, config, num_updates=99).reward == pytest.approx(-0.2)
    assert shape(1.0, 25, config, num_updates=100) == (1.0, True, ())


def test_a_penalty_that_rewards_length_is_refused():
    with pytest.raises(ConfigError, match=r"longest=0\.5 would reward long responses"):
        LengthPenaltyConfig(longest=0.5)


# Overlong filtering


def test_overlong_filtering_takes_a_rollout_out_of_the_loss_and_leaves_its_reward():
    config = ShapingConfig(overlong_filtering=True)
    assert shape(1.0, 25, config, Finish.length) == (1.0, False, ("overlong_filtering",))
    assert shape(1.0, 25, config, Finish.stop) == (1.0, True, ())


# Malformed thoughts


@pytest.mark.parametrize(
    ("text", "opened_by_prompt", "opened_by_response"),
    [
        # Columns: whether it is malformed after a prompt that opens the thought, and after one that does not.
        ("so 4</think>\\boxed{4}", False, True),
        ("<think>so 4</think>\\boxed{4}", True, False),
        ("\n<think>so 4</think>\\boxed{4}", True, False),
        ("\\boxed{4}", True, False),
        ("<think>so 4", True, True),
        ("so 4", True, False),
        ("so</think>4</think>", True, True),
        ("<think>a</think><think>b</think>", True, True),
        ("<think>a<think>b</think></think>", True, True),
        ("4 <think>is it?</think>", True, True),
        ("</think>4<think>", True, True),
        ("", True, False),
    ],
)
def test_what_is_a_malformed_thought(text, opened_by_prompt, opened_by_response):
    assert is_malformed_thought(text, in_thought=True) is opened_by_prompt
    assert is_malformed_thought(text, in_thought=False) is opened_by_response


@given(st.lists(st.sampled_from(["<think>", "</think>", "a"]), max_size=6).map("".join))
def test_thoughts_that_nemo_rl_accepts_are_accepted(text):
    """NeMo RL's rule (experience/rollouts.py, penalties 4a and 4b) requires no <think>, and one </think> after a prompt
    that opened the thought, none after another prompt. We accept these and, after a prompt that opens no thought, also
    one complete thought."""
    counts = (text.count("<think>"), text.count("</think>"))
    assert is_malformed_thought(text, in_thought=True) is (counts != (0, 1))
    if counts == (0, 0):
        assert not is_malformed_thought(text, in_thought=False)
    elif not is_malformed_thought(text, in_thought=False):
        assert counts == (1, 1)


def test_a_malformed_thought_costs_its_factor():
    config = ShapingConfig(malformed_thought_factor=0.0, termination_factor=0.5)
    assert shape(1.0, 5, config, text="</think>4") == (0.0, True, ("malformed_thought_factor",))
    assert shape(1.0, 5, config, text="<think>a</think>4") == (1.0, True, ())
    opened = rollout_of(5, text="</think>4", prompt=replace(PROMPT, opens_thought=True))
    assert shape_reward(opened, 1.0, max_response_tokens=25, num_updates=0, config=config).reward == 1.0
    both = shape(
        1.0,
        5,
        ShapingConfig(malformed_thought_factor=0.5, termination_factor=0.5),
        Finish.length,
        text="</think>",
    )
    assert both == (0.25, True, ("termination_factor", "malformed_thought_factor"))


# All together


def test_all_rules_together():
    config = ShapingConfig(
        termination_factor=0.5,
        malformed_thought_factor=0.5,
        overlong_buffer_share=10 / 25,
        overlong_penalty=0.4,
        overlong_filtering=True,
        length_penalty=LengthPenaltyConfig(weight=0.2),
    )
    result = shape(0.8, 25, config, Finish.length, text="<think>")
    assert result.reward == pytest.approx(0.8 * 0.25 - 0.4 - 0.2)
    assert (result.in_loss, result.shaped_by) == (False, SHAPINGS)
