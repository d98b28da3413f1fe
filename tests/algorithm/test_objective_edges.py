"""Tests of the loss's precision, and of input that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from nemo_prorl.algorithm.objective import policy_loss, supervised_loss
from nemo_prorl.config import Aggregation, AlgorithmConfig, CorrectionLevel
from nemo_prorl.types import Totals
from tests.algorithm.oracle import BARE


def test_bf16_log_probabilities_are_computed_with_in_float32(random_batch, totals_of):
    batch = random_batch(4, [6, 3])
    current = torch.tensor(batch.old_logprobs_BT * 1.05).bfloat16().requires_grad_()
    arguments = batch, totals_of(batch)
    config = AlgorithmConfig(kl_beta=0.1)
    loss = policy_loss(current, current, *arguments, config=config, entropy_coefficient=0.0)
    assert loss.dtype == torch.float32
    assert torch.autograd.grad(loss, current)[0].dtype == torch.bfloat16
    exact = policy_loss(
        current.detach().double(), current.double(), *arguments, config=config, entropy_coefficient=0.0
    )
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize(
    "wrong", ["current_logprobs_BT", "entropy_BT", "reference_logprobs_BT", "advantages_B"]
)
def test_shapes_that_do_not_fit_are_refused(wrong, random_batch, totals_of):
    """Broadcasting would turn them into a plausible number."""
    batch = random_batch(4, [6, 3])
    current = entropy = torch.zeros(batch.tokens.response_mask_BT.shape)
    if wrong == "current_logprobs_BT":
        current = current[:1]
    elif wrong == "entropy_BT":
        entropy = entropy[:, :1]
    else:
        object.__setattr__(batch, wrong, getattr(batch, wrong)[:1])
    with pytest.raises(ValueError, match=wrong):
        policy_loss(current, entropy, batch, totals_of(batch), config=BARE, entropy_coefficient=0.0)


@pytest.mark.parametrize("aggregation", Aggregation)
def test_an_update_of_nothing_is_refused(aggregation, random_batch):
    batch = random_batch(4, [2])
    current = torch.zeros(batch.tokens.response_mask_BT.shape)
    totals = Totals(num_tokens=0, num_rollouts=0)
    loss: Callable[..., torch.Tensor] = partial(policy_loss, config=AlgorithmConfig(aggregation=aggregation))
    with pytest.raises(ValueError, match="size of the update"):
        loss(current, current, batch, totals, entropy_coefficient=0.0)
    with pytest.raises(ValueError, match="size of the update"):
        supervised_loss(current, current, batch, totals)


def test_a_correction_that_is_off_truncates_nothing(random_batch, totals_of):
    """A cap below 1 would otherwise scale the whole loss."""
    batch = random_batch(4, [6, 3])
    current = torch.tensor(batch.old_logprobs_BT * 1.05)
    losses = [
        policy_loss(
            current,
            current,
            batch,
            totals_of(batch),
            config=AlgorithmConfig(correction_level=CorrectionLevel(correction), correction_high=cap),
            entropy_coefficient=0.0,
        ).item()
        for correction, cap in (("off", 2.0), ("off", 0.5), ("token", 0.5))
    ]
    assert losses[0] == losses[1] != losses[2]
