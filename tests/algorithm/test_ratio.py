"""Tests of ratios and of the three ways to bound them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.objective import policy_loss, token_shares
from nemo_prorl.algorithm.ratio import clip_bindings, clipped_surrogate, probability_ratio
from nemo_prorl.config import Aggregation, AlgorithmConfig, Objective, RatioLevel
from nemo_prorl.types import Totals
from tests.algorithm.oracle import BARE, current_and_entropy, gradients

NOT_MOVED = torch.zeros(())


def loss_and_slope(make_batch, config, advantage, old, now, sampler=None) -> tuple[float, float]:
    """Returns the loss of a token, from its log-probabilities, and the derivative by the current one."""
    sampled = None if sampler is None else [[sampler]]
    batch = make_batch(advantages=[advantage], old=[[old]], sampler=sampled, num_prompt_tokens=1)
    current = torch.tensor([[0.0, now]], dtype=torch.float64, requires_grad=True)
    totals = Totals(num_tokens=1, num_rollouts=1)
    loss = policy_loss(current, torch.zeros(1, 2), batch, totals, config=config, entropy_coefficient=0.0)
    (gradient,) = gradients(loss, current)
    assert gradient[0, 0] == 0.0, "outside the response"
    return loss.item(), gradient[0, 1].item()


@pytest.mark.parametrize(
    ("advantage", "ratio", "slope"),
    [
        # slope: derivative of the objective with respect to the log-probability: ratio * A, or exactly 0.
        (1.0, 0.5, 0.5),  # below the clip, but a positive advantage raises it
        (1.0, 0.79, 0.79),
        (1.0, 1.0, 1.0),
        (1.0, 1.39, 1.39),
        (1.0, 1.41, 0.0),  # a positive advantage, above the clip
        (1.0, 3.0, 0.0),
        (-2.0, 0.5, 0.0),  # a negative advantage, below the clip
        (-2.0, 0.79, 0.0),
        (-2.0, 0.81, -1.62),
        (-2.0, 1.0, -2.0),
        (-2.0, 1.41, -2.82),  # above the clip, but a negative advantage lowers it
        (-2.0, 30.0, -60.0),
        (0.0, 0.5, 0.0),
        (0.0, 3.0, 0.0),
    ],
)
def test_the_clip_stops_the_gradient_exactly(advantage, ratio, slope, make_batch):
    config = AlgorithmConfig(clip_low=0.2, clip_high=0.4, dual_clip=0.0, kl_beta=0.0)
    _, found = loss_and_slope(make_batch, config, advantage, -1.0, -1.0 + math.log(ratio))
    assert found == (0.0 if slope == 0.0 else pytest.approx(-slope, rel=1e-9))


@pytest.mark.parametrize(("ratio", "stops"), [(2.9, False), (3.1, True), (0.5, True)])
def test_dual_clip_stops_the_gradient_exactly(ratio, stops, make_batch):
    """Beyond c = 3 for a negative advantage, in addition to the ordinary clip below 1 - 0.2."""
    config = AlgorithmConfig(kl_beta=0.0, dual_clip=3.0)
    _, slope = loss_and_slope(make_batch, config, -1.0, -2.0, -2.0 + math.log(ratio))
    assert slope == (0.0 if stops else pytest.approx(ratio, rel=1e-9))


@given(
    ratio=st.floats(0.01, 20.0),
    advantage=st.sampled_from([-3.0, -0.5, 0.0, 0.5, 3.0]),
    dual_clip=st.sampled_from([0.0, 2.0]),
)
@settings(deadline=None)
def test_bindings_name_the_bound_that_stops_the_gradient(ratio, advantage, dual_clip):
    config = AlgorithmConfig(dual_clip=dual_clip)
    ratios = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    (gradient,) = gradients(clipped_surrogate(ratios, advantages, config).sum(), ratios)
    bindings = clip_bindings(ratios.detach(), NOT_MOVED, advantages, config)
    bound = [bool(which.item()) for which in (bindings.low, bindings.high, bindings.dual)]
    assert sum(bound) == (1 if gradient.item() == 0.0 and advantage != 0 else 0)


def test_an_update_on_the_policy_itself_has_ratio_one_and_the_plain_policy_gradient(random_batch, totals_of):
    """In the first update of a step old equals current, so no clip acts and the KL to old is 0."""
    batch = random_batch(11, [4, 2])
    current = torch.tensor(batch.old_logprobs_BT, requires_grad=True)
    loss = policy_loss(current, current, batch, totals_of(batch), config=BARE, entropy_coefficient=0.0)
    mask = torch.tensor(batch.tokens.response_mask_BT)
    advantages = torch.tensor(batch.advantages_B)[:, None] * mask
    for level in RatioLevel:
        assert torch.equal(probability_ratio(current, current, mask, level), torch.ones_like(current))
    torch.testing.assert_close(loss, -advantages.sum() / 6)
    torch.testing.assert_close(gradients(loss, current)[0], -advantages / 6)


# --- One ratio per rollout --------------------------------------------------------------------------------------------


def test_the_sequence_ratio_is_the_geometric_mean():
    current = torch.tensor([[0.0, -1.0, -2.0], [0.0, -3.0, 0.0]], dtype=torch.float64)
    old = torch.tensor([[0.0, -1.5, -1.7], [0.0, -2.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[False, True, True], [False, True, False]])
    ratio = probability_ratio(current, old, mask, RatioLevel.sequence)
    assert ratio[0].tolist() == [pytest.approx(math.exp((0.5 - 0.3) / 2))] * 3
    assert ratio[1].tolist() == [pytest.approx(math.exp(-1.0))] * 3


@pytest.mark.parametrize("aggregation", Aggregation)
def test_gspo_has_the_gradient_of_its_token_variant(aggregation, random_batch, totals_of):
    """GSPO-token (arXiv 2507.18071 section 4.3) puts sg(s) pi / sg(pi) on each token. The gradients are equal, because
    all tokens of a rollout have the same advantage and the same weight in the loss."""
    batch = random_batch(4, [3, 1, 5, 2])
    config = AlgorithmConfig(
        kl_beta=0.0, ratio_level=RatioLevel.sequence, aggregation=aggregation, clip_low=0.1, clip_high=0.1
    )
    totals = totals_of(batch)
    current, _ = current_and_entropy(batch, 3)
    loss = policy_loss(current, current, batch, totals, config=config, entropy_coefficient=0.0)
    mask = torch.tensor(batch.tokens.response_mask_BT)
    old = torch.tensor(batch.old_logprobs_BT, dtype=torch.float64)
    s = probability_ratio(current.detach(), old, mask, RatioLevel.sequence)
    by_token = s * (current - current.detach()).exp()
    advantages = torch.tensor(batch.advantages_B, dtype=torch.float64)[:, None]
    surrogate = clipped_surrogate(by_token, advantages, config)
    variant = -(surrogate * token_shares(mask, totals, aggregation)).sum()
    assert loss.item() == pytest.approx(variant.item(), rel=1e-12)
    ((by_mean,), (by_variant,)) = gradients(loss, current), gradients(variant, current)
    torch.testing.assert_close(by_mean, by_variant, rtol=1e-10, atol=0.0)
    num_without_gradient = int((by_mean[mask] == 0).sum())
    assert 0 < num_without_gradient < batch.num_tokens, "some rollouts are clipped, and some are not"


# --- CISPO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("advantage", [1.0, -2.0])
@pytest.mark.parametrize(
    ("ratio", "clip_low", "weight"),
    [(0.5, 0.2, 0.8), (0.5, 1.0, 0.5), (1e-9, 1.0, 1e-9), (1.0, 0.2, 1.0), (1.3, 0.2, 1.3), (9.0, 0.2, 1.4)],
)
def test_cispo_clips_the_weight_and_keeps_the_gradient(advantage, ratio, clip_low, weight, make_batch):
    now = -1.0 + math.log(ratio)
    config = AlgorithmConfig(kl_beta=0.0, objective=Objective.cispo, clip_low=clip_low, clip_high=0.4)
    loss, slope = loss_and_slope(make_batch, config, advantage, -1.0, now)
    assert loss == pytest.approx(-weight * advantage * now, rel=1e-9)
    assert slope == pytest.approx(-weight * advantage, rel=1e-9)


def test_cispo_counts_the_weights_that_it_clips_on_either_side():
    ratio = torch.tensor([0.5, 0.5, 0.5, 1.0, 2.0, 2.0, 2.0])
    advantages = torch.tensor([1.0, -1.0, 0.0, 1.0, 1.0, -1.0, 0.0])
    bindings = clip_bindings(ratio, NOT_MOVED, advantages, AlgorithmConfig(objective=Objective.cispo))
    assert bindings.low.tolist() == [True, True, False, False, False, False, False]
    assert bindings.high.tolist() == [False, False, False, False, True, True, False]
    assert not bindings.dual.any()


# --- DPPO -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampled", "now", "advantage", "bound"),
    [
        (0.5, 0.69, 1.0, ""),
        (0.5, 0.71, 1.0, "high"),
        (0.5, 0.71, -1.0, ""),
        (0.5, 0.29, -1.0, "low"),
        (0.5, 0.29, 1.0, ""),
        (1e-4, 0.01, 1.0, ""),  # a hundred times as likely, and still rare
        (1e-4, 0.01, -1.0, "dual"),
    ],
)
def test_dppo_bounds_the_probability_not_the_ratio(sampled, now, advantage, bound, make_batch):
    """The same conditions as prime-rl's `default_loss_fn` with 0.2 and 0.2. The trainer's old probability is the
    sampler's."""
    config = AlgorithmConfig(kl_beta=0.0, objective=Objective.dppo, clip_low=0.2, clip_high=0.2)
    _, slope = loss_and_slope(make_batch, config, advantage, math.log(sampled), math.log(now))
    assert slope == pytest.approx(0.0 if bound else -advantage * now / sampled, rel=1e-5)
    bindings = clip_bindings(
        torch.tensor([now / sampled]), torch.tensor([now - sampled]), torch.tensor([advantage]), config
    )
    active = {name: bool(getattr(bindings, name)) for name in ("low", "high", "dual")}
    assert active == {name: name == bound for name in active}


def test_dppo_compares_with_the_policy_that_sampled(make_batch):
    """The trainer's old policy has the current probability, but the sampler's was 0.3 lower."""
    config = AlgorithmConfig(kl_beta=0.0, objective=Objective.dppo, clip_high=0.2)
    assert loss_and_slope(make_batch, config, 1.0, math.log(0.7), math.log(0.7), math.log(0.4))[1] == 0.0
