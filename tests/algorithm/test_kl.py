"""Tests of the KL penalty: its estimators and its clamps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.kl import kl_estimate, kl_is_clamped, kl_penalty, weighted_kl_penalty
from nemo_prorl.algorithm.numerics import exp
from nemo_prorl.config import AlgorithmConfig, KlEstimator
from tests.algorithm.oracle import gradients, oracle_kl


def test_what_the_estimators_are_and_pull_towards_in_expectation():
    """Sums over a whole vocabulary instead of sampling. The values of k1 and k3 are the KL; the gradient of k2 is that
    of KL(current

    reference), the gradient of k3 that of KL(reference

    current), and the gradient of k1 is 0.
    """
    torch.manual_seed(0)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(5, dtype=torch.float64).log_softmax(0)
    current = logits.log_softmax(0)
    probabilities = current.exp().detach()
    forward = (current.exp() * (current - reference)).sum()
    backward = (reference.exp() * (reference - current)).sum()
    expected_gradient = {
        KlEstimator.k1: torch.zeros(5, dtype=torch.float64),
        KlEstimator.k2: torch.autograd.grad(forward, logits, retain_graph=True)[0],
        KlEstimator.k3: torch.autograd.grad(backward, logits, retain_graph=True)[0],
    }
    for estimator in KlEstimator:
        mean = (probabilities * kl_estimate(reference - current, estimator)).sum()
        if estimator is not KlEstimator.k2:
            assert mean.item() == pytest.approx(forward.item(), rel=1e-12)
        (gradient,) = torch.autograd.grad(mean, logits, retain_graph=True)
        torch.testing.assert_close(gradient, expected_gradient[estimator], rtol=1e-10, atol=1e-12)


def test_a_kl_beyond_float32_is_infinite_so_that_the_update_is_refused():
    current = torch.tensor(-200.0, requires_grad=True)
    assert kl_estimate(-1.0 - current, KlEstimator.k3).item() == math.inf


# --- Clamps -----------------------------------------------------------------------------------------------------------


@pytest.mark.medium
@given(
    d=st.floats(-30, 30),
    estimator=st.sampled_from(KlEstimator),
    log_ratio=st.sampled_from([0.0, 0.7, 20.0]),
    value=st.sampled_from([0.0, 0.3, 10.0]),
)
@settings(max_examples=300, deadline=None)
def test_a_clamped_token_is_charged_for_and_has_no_gradient(d, estimator, log_ratio, value):
    config = AlgorithmConfig(kl_estimator=estimator, kl_clamp_log_ratio=log_ratio, kl_clamp_value=value)
    current = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    reference = torch.tensor(-1.0, dtype=torch.float64) + d
    penalty = kl_penalty(current, reference, config)
    assert penalty.item() == pytest.approx(oracle_kl(-1.0, -1.0 + d, config), rel=1e-9, abs=1e-12)
    (gradient,) = gradients(penalty, current)
    if kl_is_clamped(current.detach(), reference, config):
        assert gradient.item() == 0.0
    else:
        assert penalty.item() == kl_estimate(reference - current, estimator).item()
        slope = {"k1": 1.0, "k2": -d, "k3": 1.0 - math.exp(d)}[estimator.value]
        assert gradient.item() == pytest.approx(slope, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("estimator", KlEstimator)
@pytest.mark.parametrize("d", [1e5, -1e5])
def test_a_log_ratio_beyond_float32_is_clamped_without_nan(estimator, d):
    config = AlgorithmConfig(kl_estimator=estimator, kl_clamp_log_ratio=0.0, kl_clamp_value=10.0)
    current = torch.tensor(-1.0, requires_grad=True)
    penalty = kl_penalty(current, torch.tensor(-1.0 + d), config)
    assert abs(penalty.item()) == 10.0
    assert gradients(penalty, current)[0].item() == 0.0


def test_one_token_does_not_outweigh_all_others():
    """Nine tokens near the reference and one that the reference finds e^20 times as likely, with the default clamps and
    without."""
    slopes = []
    for config in (AlgorithmConfig(), AlgorithmConfig(kl_clamp_log_ratio=0.0, kl_clamp_value=0.0)):
        current = torch.full((10,), -21.0, dtype=torch.float64, requires_grad=True)
        reference = torch.tensor([-20.9] * 9 + [-1.0], dtype=torch.float64)
        slopes.append(gradients(kl_penalty(current, reference, config).sum(), current)[0].abs())
    assert slopes[0][-1] == 0.0
    assert slopes[0][:9].tolist() == slopes[1][:9].tolist()
    assert slopes[1][-1] > 1e8 * slopes[1][:9].sum()


UNCLAMPED = {"kl_clamp_log_ratio": 0.0, "kl_clamp_value": 0.0}


@pytest.mark.parametrize("estimator", [KlEstimator.k1, KlEstimator.k3])
def test_weighted_the_gradient_is_that_of_the_kl_whichever_policy_sampled(estimator):
    """Enumerates a vocabulary of three in three states, whose tokens another engine with older weights drew. The
    sampler's importance weight is exact, so value and gradient are those of the KL; unweighted neither is."""
    torch.manual_seed(1)
    config = AlgorithmConfig(kl_estimator=estimator, **UNCLAMPED)
    logits = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    old, sampler, reference = (torch.randn(3, 3, dtype=torch.float64).log_softmax(-1) for _ in range(3))
    current = logits.log_softmax(-1)
    exact = (current.exp() * (current - reference)).sum()
    term = weighted_kl_penalty(current, reference, (current - old).exp(), (old - sampler).exp(), config)
    mean = (sampler.exp() * term).sum()
    assert mean.item() == pytest.approx(exact.item(), rel=1e-12)
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    torch.testing.assert_close(gradients(mean, logits)[0], expected, rtol=1e-10, atol=1e-12)
    current = logits.log_softmax(-1)
    plain = (sampler.exp() * kl_penalty(current, reference, config)).sum()
    assert (gradients(plain, logits)[0] - expected).norm() > 0.3 * expected.norm()


@pytest.mark.parametrize("d", [-15.0, 2.0, 5.0, 25.0])
def test_weighted_no_gradient_pushes_away_from_the_reference(d):
    """Where the value is clamped, the slope of the ratio alone would lower a token that the reference prefers."""
    current = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    ratio = (current - torch.tensor(-1.1, dtype=torch.float64)).exp()
    reference = torch.tensor(-1.0 + d, dtype=torch.float64)
    term = weighted_kl_penalty(
        current, reference, ratio, torch.tensor(0.7, dtype=torch.float64), AlgorithmConfig()
    )
    slope = gradients(term, current)[0].item()
    assert slope == pytest.approx(0.7 * ratio.item() * -d if d == 2.0 else 0.0, rel=1e-9, abs=0)
    assert term.item() > 0


@pytest.mark.parametrize("log_ratio", [1.5, 2.0, 50.0, 200.0])
def test_weighted_a_token_that_became_far_likelier_counts_five_times_at_most(log_ratio):
    current = torch.tensor(-0.5, dtype=torch.float32, requires_grad=True)
    ratio = exp(current - torch.tensor(-0.5 - log_ratio))
    term = weighted_kl_penalty(current, torch.tensor(-1.5), ratio, torch.tensor(1.0), AlgorithmConfig())
    weight = min(5.0, math.exp(log_ratio))
    assert term.item() == pytest.approx(weight * math.exp(-1.0), rel=1e-6)
    slope = weight if log_ratio == 1.5 else weight * (1 - math.exp(-1.0))
    assert gradients(term, current)[0].item() == pytest.approx(slope, rel=1e-6)
