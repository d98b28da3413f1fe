"""Tests of the loss against numbers from the test suites of other trainers."""

from __future__ import annotations

import math

import pytest
import torch

from nemo_prorl.algorithm.kl import kl_estimate
from nemo_prorl.algorithm.mismatch import importance_ratio
from nemo_prorl.algorithm.objective import policy_loss, supervised_loss, token_shares
from nemo_prorl.algorithm.ratio import clip_bindings, clipped_surrogate
from nemo_prorl.config import Aggregation, AlgorithmConfig, CorrectionLevel, KlEstimator
from nemo_prorl.types import Totals
from tests.algorithm.oracle import BARE


def loss_of(make_batch, advantages, old, current, config, **others) -> float:
    """Returns the loss with an advantage per token: each token is a rollout of its own, so token_mean is the plain
    mean."""
    columns = {name: [[value] for value in values] for name, values in others.items()}
    batch = make_batch(advantages=advantages, old=[[value] for value in old], num_prompt_tokens=0, **columns)
    tensor = torch.tensor(current).unsqueeze(1)
    totals = Totals(num_tokens=len(old), num_rollouts=len(old))
    return policy_loss(tensor, tensor, batch, totals, config=config, entropy_coefficient=0.0).item()


def test_vectors_of_nemo_rl_clip(make_batch):
    """NVIDIA-NeMo/RL tests/unit/algorithms/test_loss_functions.py, test_clipped_pg_loss_ppo_clipping."""
    loss = loss_of(make_batch, [1.0, -1.0, 2.0], [-1.0] * 3, [-1.69315, -1.0, -0.59453], BARE)
    assert loss == pytest.approx(-0.6333, rel=1e-3)


def test_vectors_of_nemo_rl_and_skyrl_dual_clip(make_batch):
    """test_clipped_pg_loss_dual_clip there; SkyRL tests/train/algorithms/test_losses.py has the sum, 12.5."""
    config = AlgorithmConfig(clip_low=0.2, clip_high=0.2, kl_beta=0.0, dual_clip=3.0)
    arguments = [1.0, -1.0, -4.0], [-1.0, -1.0, -3.0], [-1.69315, -1.0, -0.69741]
    assert loss_of(make_batch, *arguments, config) == pytest.approx(12.5 / 3, rel=1e-5)
    assert loss_of(make_batch, *arguments, BARE) == pytest.approx((-0.5 + 1.0 + 40.0) / 3, rel=1e-4)


def test_vectors_of_nemo_rl_kl_in_the_loss(make_batch):
    """test_clipped_pg_loss_kl_penalty there: advantages are 0, beta 0.1."""
    config = AlgorithmConfig(kl_beta=0.1)
    loss = loss_of(make_batch, [0.0] * 3, [0.0] * 3, [0.0, -1.0, -2.0], config, reference=[-1.0] * 3)
    assert loss == pytest.approx(0.1 * 1.0862 / 3, rel=1e-3)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (KlEstimator.k1, [-1.0, 14.0, 29.0]),
        (KlEstimator.k2, [0.5, 98.0, 420.5]),
        (KlEstimator.k3, [0.7183, 13.0, 28.0]),
    ],
)
def test_vectors_of_nemo_rl_kl_estimators(estimator, expected):
    """test_calculate_kl there, without its clamps."""
    kl = kl_estimate(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([0.0, -15.0, -30.0]), estimator)
    torch.testing.assert_close(kl, torch.tensor(expected), rtol=1e-3, atol=0.0)


def test_vectors_of_nemo_rl_truncated_importance_sampling(make_batch):
    """test_clipped_pg_loss_on_policy_truncated_importance_sampling there, token level, cap 0.8."""
    config = AlgorithmConfig(
        clip_low=0.2,
        clip_high=0.2,
        kl_beta=0.0,
        correction_level=CorrectionLevel.token,
        correction_high=0.8,
    )
    old, current, sampler = [-1.0] * 3, [-1.69315, -1.0, -0.59453], [-0.5, -1.5, -0.8]
    loss = loss_of(make_batch, [1.0, -1.0, 2.0], old, current, config, sampler=sampler)
    assert loss == pytest.approx(-0.4744, rel=1e-3)


@pytest.mark.parametrize(
    ("old", "sampler", "correction", "cap", "expected"),
    [
        ([-1.0, -1.5, -0.5], [-1.5, -1.0, -1.5], "token", 2.0, [1.6487, 0.6065, 2.0]),
        ([-1.0, -1.5, -0.5], [-1.5, -1.0, -1.5], "sequence", 5.0, [2.7183] * 3),
        ([-1.0, -1.0, -1.0], [-2.0, -2.0, -2.0], "sequence", 5.0, [5.0] * 3),
        # The masked middle token is 0 in both arrays, as `policy_loss` passes it.
        ([-1.0, 0.0, -0.5], [-1.5, 0.0, -1.5], "sequence", 10.0, [4.4817] * 3),
    ],
)
def test_vectors_of_skyrl_importance_weights(old, sampler, correction, cap, expected):
    """NovaSky-AI/SkyRL tests/train/algorithms/test_off_policy_correction.py, test_compute_tis_ratio_*."""
    log_ratio = torch.tensor([old]) - torch.tensor([sampler])
    weights = importance_ratio(log_ratio, log_ratio != 0, CorrectionLevel(correction))
    torch.testing.assert_close(weights.clamp(max=cap), torch.tensor([expected]), rtol=1e-4, atol=0.0)


def test_vectors_of_slime_decoupled_clip():
    """THUDM/slime tests/test_policy_loss.py, test_clipped_policy_loss_matches_existing_formula: losses by hand."""
    config = AlgorithmConfig(clip_low=0.2, clip_high=0.3)
    ratio, advantages = torch.tensor([1.5, 0.7, 1.1, 0.9]), torch.tensor([2.0, -3.0, -1.0, 0.5])
    torch.testing.assert_close(
        -clipped_surrogate(ratio, advantages, config), torch.tensor([-2.6, 2.4, 1.1, -0.45])
    )
    bindings = clip_bindings(ratio, torch.zeros(()), advantages, config)
    assert (bindings.high | bindings.low).tolist() == [True, True, False, False]


OPENRLHF_LOSSES = {
    Aggregation.token_mean: ([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0], [7.0, 0.0, 0.0]], [2, 3, 1], 22.0 / 6),
    Aggregation.sequence_mean_token_mean: (
        [[1.0, 3.0, 9.0], [2.0, 4.0, 0.0], [8.0, 0.0, 0.0]],
        [2, 2, 1],
        (2.0 + 3.0 + 8.0) / 3,
    ),
    # verl tests/trainer/ppo/test_loss_aggregation_on_cpu.py, test_token_sum...: the sum over two rollouts is 13.
    Aggregation.sequence_mean_token_sum: ([[1.0, 2.0, 30.0], [4.0, 6.0, 50.0]], [2, 2], 13.0 / 2),
}


@pytest.mark.parametrize("aggregation", Aggregation)
def test_vectors_of_openrlhf_and_verl_aggregation(aggregation):
    """OpenRLHF tests/test_loss_aggregation.py: the loss of the whole batch, and the sum of two ranks' shares."""
    losses, lengths, expected = OPENRLHF_LOSSES[aggregation]
    loss_BT = torch.tensor(losses).double()
    mask_BT = torch.arange(3) < torch.tensor(lengths)[:, None]
    totals = Totals(num_tokens=sum(lengths), num_rollouts=len(lengths))
    assert (loss_BT * token_shares(mask_BT, totals, aggregation)).sum().item() == pytest.approx(expected)
    ranks = [
        (loss_BT[rows] * token_shares(mask_BT[rows], totals, aggregation)).sum()
        for rows in ([0], [1, 2][: len(lengths) - 1])
    ]
    assert sum(ranks).item() == pytest.approx(expected)


def test_vectors_of_openrlhf_policy_loss_over_two_ranks(make_batch):
    """test_policy_loss_token_mean_aggregation_matches_full_batch there; each token is a rollout with its own
    advantage."""
    current = [-0.20, -0.40, -0.70, -0.30, -0.20, -0.60, -0.50]
    offsets = [0.03, -0.04, 0.02, 0.05, -0.03, 0.04, -0.02]
    advantages = [1.0, -0.5, 0.3, -1.2, 0.5, 1.5, -0.7]
    old = [value - offset for value, offset in zip(current, offsets, strict=True)]
    expected = (
        -sum(math.exp(o) * a for o, a in zip(offsets, advantages, strict=True)) / 7
    )  # nothing is clipped
    assert loss_of(make_batch, advantages, old, current, BARE) == pytest.approx(expected, rel=1e-6)


def test_vectors_of_nemo_rl_supervised(make_batch):
    """NVIDIA-NeMo/RL test_nll_loss: 0 where the tokens are certain, 999 where each has log-probability -999."""
    batch = make_batch(advantages=[0.0], old=[[0.0, 0.0]])
    for value in (0.0, -999.0):
        current = torch.full((1, 4), value)
        assert supervised_loss(current, current, batch, Totals(num_tokens=2, num_rollouts=1)).item() == -value
