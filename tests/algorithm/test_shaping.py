"""Rewards of rollouts that do not end, or almost do not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.shaping import overlong_ramp, shape_reward
from nemo_prorl.config import ShapingConfig
from nemo_prorl.types import Finish


def shaped(
    score: float, num_tokens: int, config: ShapingConfig, finish: Finish = Finish.stop, limit: int = 25
) -> float:
    return shape_reward(score, finish=finish, num_tokens=num_tokens, max_response_tokens=limit, config=config)


@given(score=st.floats(0, 1), num_tokens=st.integers(1, 30), finish=st.sampled_from(Finish))
@settings(deadline=None)
def test_off_by_default(score, num_tokens, finish):
    assert shaped(score, num_tokens, ShapingConfig(), finish) == score


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
    """DAPO eq. 13 case by case."""
    cache = data.draw(st.integers(1, limit - 1))
    length = data.draw(st.integers(1, limit + 5))
    if length <= limit - cache:
        punishment = 0.0
    elif length <= limit:
        punishment = ((limit - cache) - length) / cache
    else:
        punishment = -1.0
    config = ShapingConfig(termination_factor=factor, overlong_buffer_tokens=cache, overlong_penalty=penalty)
    expected = (score * factor if finish == "length" else score) + penalty * punishment
    assert shaped(score, length, config, finish, limit) == pytest.approx(expected, abs=1e-12)


def test_vectors_of_nemo_rl_overlong():
    """NVIDIA-NeMo/RL tests/unit/algorithms/test_reward_functions.py, test_reward_shaping_with_penalties: buffer 5 of
    25, penalty 0.5. Its last row (30 tokens) goes on falling to -0.6; DAPO eq. 13 stops at the full penalty."""
    config = ShapingConfig(overlong_buffer_tokens=5, overlong_penalty=0.5)
    rewards = [shaped(score, n, config) for score, n in ((1.0, 10), (0.8, 22), (0.6, 25), (0.4, 30))]
    assert rewards == pytest.approx([1.0, 0.6, 0.1, -0.1])
    # test_reward_shaping_no_penalties
    config = ShapingConfig(overlong_buffer_tokens=5, overlong_penalty=1.0)
    assert [shaped(score, n, config) for score, n in ((1.0, 10), (0.5, 15), (0.8, 18))] == [1.0, 0.5, 0.8]


@pytest.mark.parametrize(("factor", "expected"), [(0.5, [1.0, 0.4, 0.6, 0.2]), (1.0, [1.0, 0.8, 0.6, 0.4])])
def test_vectors_of_nemo_rl_stop_properly(factor, expected):
    """test_stop_properly_penalty and its boundary cases there."""
    config = ShapingConfig(termination_factor=factor)
    finishes = (Finish.stop, Finish.length, Finish.stop, Finish.length)
    rewards = [shaped(s, 10, config, f) for s, f in zip((1.0, 0.8, 0.6, 0.4), finishes, strict=True)]
    assert rewards == pytest.approx(expected)


def test_factor_zero_makes_an_unfinished_answer_worthless():
    config = ShapingConfig(termination_factor=0.0)
    assert [shaped(s, 25, config, Finish.length) for s in (1.0, 0.5, 0.0)] == [0.0, 0.0, 0.0]


def test_vectors_of_verl_dapo_reward_manager():
    """verl tests/workers/reward_manager/test_dapo_on_cpu.py: score 0.5, 4 tokens of 4, buffer 2."""
    config = ShapingConfig(overlong_buffer_tokens=2, overlong_penalty=1.0)
    assert shaped(0.5, 4, config, limit=4) == -0.5


def test_both_parts_add_up():
    config = ShapingConfig(termination_factor=0.5, overlong_buffer_tokens=10, overlong_penalty=0.4)
    assert shaped(0.8, 25, config, Finish.length) == pytest.approx(0.8 * 0.5 - 0.4)
    assert shaped(0.8, 20, config, Finish.stop) == pytest.approx(0.8 - 0.4 * 0.5)


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1])
def test_what_is_no_score_is_refused(score):
    with pytest.raises(ValueError, match="score"):
        shaped(score, 3, ShapingConfig())


@pytest.mark.parametrize("buffer_tokens", [-1, 26])
def test_a_buffer_that_does_not_fit_is_refused(buffer_tokens):
    """verl test_construct_with_overlong_buffer_enabled_rejects_short_max_resp_len."""
    with pytest.raises(ValueError, match="buffer"):
        overlong_ramp(3, 25, buffer_tokens)
