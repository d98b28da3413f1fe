"""Tests of importance weights: against a loop, and at, inside and outside of their bounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.mismatch import MAX_OWN_WEIGHT, ImportanceWeights, importance_weights
from nemo_prorl.config import AlgorithmConfig, CorrectionLevel, CorrectionMode
from tests.algorithm.oracle import oracle_weights

ROWS = st.lists(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=6), min_size=1, max_size=4)


def weights_of(rows: list[list[float]], config: AlgorithmConfig, *, padding: int = 0) -> ImportanceWeights:
    """Returns the weights of rollouts; each row is a response's old minus sampler log-probabilities."""
    width = max(len(row) for row in rows) + padding
    log_ratio = torch.tensor([row + [0.0] * (width - len(row)) for row in rows], dtype=torch.float64)
    mask = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    return importance_weights(log_ratio, mask, config)


def config_of(
    level: CorrectionLevel, mode: CorrectionMode, low: float = 0.5, high: float = 2.0
) -> AlgorithmConfig:
    return AlgorithmConfig(
        correction_level=level, correction_mode=mode, correction_low=low, correction_high=high
    )


@pytest.mark.medium
@given(
    rows=ROWS,
    level=st.sampled_from(CorrectionLevel),
    mode=st.sampled_from(CorrectionMode),
    low=st.sampled_from([0.0, 0.8]),
    high=st.sampled_from([1.1, 5.0]),
    padding=st.integers(0, 2),
)
@settings(max_examples=300, deadline=None)
def test_equal_the_loop(rows, level, mode, low, high, padding):
    config = config_of(level, mode, low, high)
    weights = weights_of(rows, config, padding=padding)
    for row, got, limited in zip(rows, weights.weight_BT, weights.limited_BT, strict=True):
        expected = oracle_weights(row, [0.0] * len(row), config)
        assert got[: len(row)].tolist() == pytest.approx(expected, rel=1e-12)
        unbounded = oracle_weights(row, [0.0] * len(row), config_of(level, CorrectionMode.truncate, 0.0, 1e9))
        if mode is not CorrectionMode.drop:
            changed = [abs(e - u) > 1e-12 for e, u in zip(expected, unbounded, strict=True)]
            assert limited[: len(row)].tolist() == changed
        else:
            assert limited[: len(row)].tolist() == [e == 0.0 for e in expected]


@pytest.mark.parametrize("mode", CorrectionMode)
def test_a_ratio_at_a_bound_is_inside(mode):
    config = config_of(CorrectionLevel.token, mode, 0.5, 2.0)
    log_ratio = torch.tensor([[math.log(0.5)], [math.log(2.0)]], dtype=torch.float64)
    exact = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    assert torch.equal(log_ratio.exp(), exact)
    weights = importance_weights(log_ratio, torch.ones(2, 1, dtype=torch.bool), config)
    assert torch.equal(weights.weight_BT, exact)
    assert not weights.limited_BT.any()


def test_one_token_outside_drops_its_rollout_and_no_other():
    weights = weights_of([[0.1, 1.0], [0.1, 0.2]], config_of(CorrectionLevel.token, CorrectionMode.drop))
    assert weights.weight_BT.tolist() == [[0.0, 0.0], pytest.approx([math.exp(0.1), math.exp(0.2)])]
    assert weights.limited_BT.tolist() == [[True, True], [False, False]]


def test_a_kept_rollout_keeps_its_tokens_own_weights():
    """As seq-mask-tis: the geometric mean is 1, and the tokens' ratios 2.7 and 0.37 are not bounded."""
    config = config_of(CorrectionLevel.geometric, CorrectionMode.drop, 0.999, 1.002)
    assert weights_of([[1.0, -1.0]], config).weight_BT.tolist() == [
        pytest.approx([math.e, 1 / math.e], rel=1e-12)
    ]


def test_a_kept_rollouts_token_cannot_outweigh_the_others():
    """The geometric mean is 1, and the first token's own ratio e^12."""
    config = config_of(CorrectionLevel.geometric, CorrectionMode.drop, 0.999, 1.002)
    weights = weights_of([[12.0, -12.0]], config)
    assert weights.weight_BT.tolist() == [[MAX_OWN_WEIGHT, pytest.approx(math.exp(-12.0))]]
    assert weights.limited_BT.tolist() == [[True, False]]


@pytest.mark.parametrize("mode", CorrectionMode)
def test_off_is_one_whatever_the_bounds(mode):
    weights = weights_of([[3.0, -3.0]], config_of(CorrectionLevel.off, mode, 4.0, 5.0))
    assert weights.weight_BT.tolist() == [[1.0, 1.0]]
    assert not weights.limited_BT.any()


def test_a_rollout_without_response_is_not_dropped_for_what_padding_says():
    """An empty response has a ratio of exp(0) = 1, which tight bounds may exclude."""
    config = config_of(CorrectionLevel.token, CorrectionMode.drop, 1.5, 2.0)
    weights = importance_weights(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool), config)
    assert not weights.limited_BT.any()
