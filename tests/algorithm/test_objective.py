"""Tests of the loss against a loop over Python floats, and of its gradient against differences of that loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.objective import policy_loss, token_shares
from nemo_prorl.config import (
    Aggregation,
    AlgorithmConfig,
    CorrectionLevel,
    CorrectionMode,
    KlIn,
    Objective,
    RatioLevel,
)
from nemo_prorl.types import Totals
from tests.algorithm.oracle import BARE, CONFIGS, current_and_entropy, gradients, oracle_loss


@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    config=st.sampled_from(CONFIGS),
    coefficient=st.sampled_from([0.0, 0.01]),
)
@settings(max_examples=150, deadline=None)
def test_loss_equals_the_loop(seed, lengths, config, coefficient, random_batch, totals_of):
    batch = random_batch(seed, lengths, padding=seed % 3)
    # The totals are larger than the batch, as for one of several micro-batches.
    totals = Totals(num_tokens=batch.num_tokens + 7, num_rollouts=len(batch) + 2)
    current, entropy = current_and_entropy(batch, seed)
    loss = policy_loss(current, entropy, batch, totals, config=config, entropy_coefficient=coefficient)
    expected = oracle_loss(current.tolist(), entropy.tolist(), batch, totals, config, coefficient)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.objective.name}-{c.ratio_level.name}")
def test_gradient_equals_differences_of_the_loop(config, random_batch, totals_of):
    """Compares with central differences of the oracle, which use neither autograd nor our formulas."""
    batch = random_batch(3, [3, 1, 2])
    totals = totals_of(batch)
    current, entropy = current_and_entropy(batch, 5)
    loss = policy_loss(current, entropy, batch, totals, config=config, entropy_coefficient=0.05)
    by_current, by_entropy = gradients(loss, current, entropy)

    def at(values: list[list[float]], entropies: list[list[float]]) -> float:
        return oracle_loss(values, entropies, batch, totals, config, 0.05, constant=current.tolist())

    step = 1e-6
    for b, t in np.argwhere(batch.tokens.response_mask_BT):
        for leaf, gradient in ((current, by_current), (entropy, by_entropy)):
            up, down = leaf.tolist(), leaf.tolist()
            up[b][t] += step
            down[b][t] -= step
            if leaf is current:
                slope = (at(up, entropy.tolist()) - at(down, entropy.tolist())) / (2 * step)
            else:
                slope = (at(current.tolist(), up) - at(current.tolist(), down)) / (2 * step)
            assert gradient[b, t].item() == pytest.approx(slope, abs=1e-8)


def test_a_term_that_is_off_does_not_read_its_inputs(random_batch, totals_of):
    """Without KL the reference may be absent, without an entropy bonus the entropy: NaN there must not matter."""
    batch = random_batch(2, [3, 2])
    current, entropy = current_and_entropy(batch, 1)
    expected = policy_loss(current, entropy, batch, totals_of(batch), config=BARE, entropy_coefficient=0.0)
    batch.reference_logprobs_BT[:] = np.nan
    loss = policy_loss(
        current,
        torch.full_like(entropy, math.nan),
        batch,
        totals_of(batch),
        config=BARE,
        entropy_coefficient=0.0,
    )
    assert loss.item() == expected.item()


def test_the_kl_that_is_in_the_reward_is_not_in_the_loss(random_batch, totals_of):
    batch = random_batch(2, [3, 2])
    current, entropy = current_and_entropy(batch, 1)
    losses = [
        policy_loss(current, entropy, batch, totals_of(batch), config=config, entropy_coefficient=0.0).item()
        for config in (AlgorithmConfig(kl_beta=0.0), AlgorithmConfig(kl_beta=0.3, kl_in=KlIn.reward))
    ]
    assert losses[0] == losses[1]


# --- Positions outside of responses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("correction", CorrectionLevel)
@pytest.mark.parametrize("ratio_level", RatioLevel)
@pytest.mark.parametrize("objective", Objective)
def test_nothing_outside_the_response_counts(
    junk, correction, ratio_level, objective, random_batch, totals_of
):
    config = AlgorithmConfig(
        kl_beta=0.3,
        correction_level=correction,
        correction_mode=CorrectionMode.drop,
        correction_high=5.0,
        ratio_level=ratio_level,
        objective=objective,
    )
    results = []
    for outside in (0.0, junk):
        batch = random_batch(8, [3, 1, 4], padding=2, outside=outside)
        mask = torch.tensor(batch.tokens.response_mask_BT)
        current, entropy = current_and_entropy(batch, 4)
        current = torch.where(mask, current, outside).detach().requires_grad_()
        entropy = torch.where(mask, entropy, outside).detach().requires_grad_()
        loss = policy_loss(current, entropy, batch, totals_of(batch), config=config, entropy_coefficient=0.1)
        results.append((loss, *gradients(loss, current, entropy)))
    (clean, *clean_gradients), (dirty, *dirty_gradients) = results
    assert dirty.item() == clean.item()
    for clean_gradient, dirty_gradient in zip(clean_gradients, dirty_gradients, strict=True):
        assert torch.equal(clean_gradient, dirty_gradient)
        assert dirty_gradient[~mask].tolist() == [0.0] * int((~mask).sum())
        assert (dirty_gradient[mask] != 0).any()


@pytest.mark.parametrize("aggregation", Aggregation)
def test_padding_changes_nothing(aggregation, make_batch):
    """Adds columns and rows without a response, as an engine does to fill a micro-batch."""
    config = AlgorithmConfig(aggregation=aggregation, kl_beta=0.3)
    totals = Totals(num_tokens=3, num_rollouts=2)
    rows = {"old": [[-1.0, -2.0], [-0.5]], "reference": [[-1.1, -1.7], [-0.6]], "advantages": [1.0, -0.5]}
    more = {"old": [*rows["old"], []], "reference": [*rows["reference"], []], "advantages": [1.0, -0.5, 0.7]}
    losses = []
    for batch in (make_batch(**rows), make_batch(**more, padding=3)):
        current = torch.tensor(batch.old_logprobs_BT).double() * 1.1
        losses.append(
            policy_loss(current, current, batch, totals, config=config, entropy_coefficient=0.0).item()
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-15)


def test_a_replica_without_rows_adds_zero(make_batch):
    batch = make_batch(advantages=[], old=[])
    current = torch.zeros(0, 0, requires_grad=True)
    totals = Totals(num_tokens=5, num_rollouts=2)
    loss = policy_loss(current, current, batch, totals, config=BARE, entropy_coefficient=0.1)
    loss.backward()
    assert loss.item() == 0.0


# --- Any split over micro-batches and ranks ---------------------------------------------------------------------------


@pytest.mark.medium
@given(
    seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 6), max_size=3), config=st.sampled_from(CONFIGS)
)
@settings(max_examples=60, deadline=None)
def test_loss_and_gradient_do_not_depend_on_the_split(seed, cuts, config, random_batch, totals_of):
    lengths = [1, 5, 2, 4, 3, 1]
    batch = random_batch(seed, lengths)
    totals = totals_of(batch)
    current, entropy = current_and_entropy(batch, seed)
    loss_function = partial(policy_loss, config=config, entropy_coefficient=0.02)
    order = np.random.default_rng(seed).permutation(len(lengths))
    parts = np.split(order, sorted(cuts))
    whole = loss_function(current, entropy, batch, totals)
    shares = []
    for rows in parts:
        part = batch.select(rows.tolist())
        width = part.tokens.token_ids_BT.shape[1]
        shares.append(loss_function(current[rows, :width], entropy[rows, :width], part, totals))
    split = torch.stack(shares).sum()
    assert split.item() == pytest.approx(whole.item(), rel=1e-12, abs=1e-14)
    torch.testing.assert_close(*(gradients(x, current)[0] for x in (split, whole)), rtol=1e-12, atol=1e-14)


# --- Numbers of other trainers' own tests; test_peers.py has those of their code --------------------------------------


def test_vectors_of_nemo_rl_and_skyrl_dual_clip(make_batch):
    """NVIDIA-NeMo/RL tests/unit/algorithms/test_loss_functions.py, test_clipped_pg_loss_dual_clip; SkyRL
    tests/train/algorithms/test_losses.py has the sum, 12.5. Each token is a rollout of its own."""
    batch = make_batch(advantages=[1.0, -1.0, -4.0], old=[[-1.0], [-1.0], [-3.0]], num_prompt_tokens=0)
    current, totals = torch.tensor([[-1.69315], [-1.0], [-0.69741]]), Totals(num_tokens=3, num_rollouts=3)
    for dual_clip, expected in ((3.0, 12.5), (0.0, -0.5 + 1.0 + 40.0)):
        config = replace(BARE, dual_clip=dual_clip)
        loss = policy_loss(current, current, batch, totals, config=config, entropy_coefficient=0.0)
        assert loss.item() == pytest.approx(expected / 3, rel=1e-4)


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


# --- Precision, and input that is refused -----------------------------------------------------------------------------


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
