"""The KL penalty: estimators, clamps, and the KL that is taken from the reward."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.kl import kl_estimate
from nemo_prorl.config import KlEstimator
from tests.algorithm.oracle import gradients


@pytest.mark.parametrize(
    ("estimator", "slope"),
    [
        (KlEstimator.k1, lambda d: 1.0),
        (KlEstimator.k2, lambda d: -d),
        (KlEstimator.k3, lambda d: 1.0 - math.exp(d)),
    ],
)
def test_slope_of_each_kl_estimator(estimator, slope):
    for d in (-4.0, -0.3, 0.0, 0.2, 3.0):
        current = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
        (gradient,) = gradients(
            kl_estimate(current, torch.tensor(-1.0 + d, dtype=torch.float64), estimator), current
        )
        assert gradient.item() == pytest.approx(slope(d), rel=1e-12, abs=1e-15)


def test_what_the_estimators_are_and_pull_towards_in_expectation():
    """Summed over a whole vocabulary instead of sampled: the values of k1 and k3 are the KL; the gradient of k2 is
    that of KL(current || reference), the one of k3 that of KL(reference || current), and k1's is 0."""
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
        mean = (probabilities * kl_estimate(current, reference, estimator)).sum()
        if estimator is not KlEstimator.k2:
            assert mean.item() == pytest.approx(forward.item(), rel=1e-12)
        (gradient,) = torch.autograd.grad(mean, logits, retain_graph=True)
        torch.testing.assert_close(gradient, expected_gradient[estimator], rtol=1e-10, atol=1e-12)


@given(current=st.floats(-30, 0), reference=st.floats(-30, 0))
@settings(deadline=None)
def test_k2_and_k3_are_never_negative(current, reference):
    arguments = torch.tensor(current, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)
    assert kl_estimate(*arguments, KlEstimator.k2).item() >= 0
    assert kl_estimate(*arguments, KlEstimator.k3).item() >= -1e-12


def test_a_kl_beyond_float32_is_infinite_so_that_the_update_is_refused():
    current = torch.tensor(-200.0, requires_grad=True)
    assert kl_estimate(current, torch.tensor(-1.0), KlEstimator.k3).item() == math.inf
