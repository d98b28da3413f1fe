"""The loss against a loop over Python floats, and its gradient against differences of that loop."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.objective import (
    clip_bindings,
    clipped_surrogate,
    kl_penalty,
    policy_loss,
    probability_ratio,
    supervised_loss,
)
from nemo_prorl.config import Aggregation, AlgorithmConfig, ImportanceCorrection, KlEstimator
from nemo_prorl.engines.interface import LossFunction
from nemo_prorl.types import Totals, TrainBatch

BARE = AlgorithmConfig(kl_beta=0.0, clip_low=0.2, clip_high=0.2)
"""The clipped objective and nothing else."""


# --- The oracle: what docs/algorithm.md says, one token after the other ---------------------------------------------


def oracle_loss(
    current: list[list[float]],
    entropy: list[list[float]],
    batch: TrainBatch,
    totals: Totals,
    config: AlgorithmConfig,
    entropy_coefficient: float,
) -> float:
    total = 0.0
    for b in range(len(batch)):
        positions = [t for t, is_response in enumerate(batch.tokens.response_mask_BT[b]) if is_response]
        advantage = float(batch.advantages_B[b])
        log_weights = [
            float(batch.old_logprobs_BT[b, t]) - float(batch.sampler_logprobs_BT[b, t]) for t in positions
        ]
        for index, t in enumerate(positions):
            ratio = math.exp(current[b][t] - float(batch.old_logprobs_BT[b, t]))
            objective = min(
                ratio * advantage, min(max(ratio, 1 - config.clip_low), 1 + config.clip_high) * advantage
            )
            if config.dual_clip and advantage < 0:
                objective = max(objective, config.dual_clip * advantage)
            if config.importance_correction is ImportanceCorrection.token:
                objective *= min(math.exp(log_weights[index]), config.importance_cap)
            elif config.importance_correction is ImportanceCorrection.sequence:
                objective *= min(math.exp(sum(log_weights)), config.importance_cap)
            d = float(batch.reference_logprobs_BT[b, t]) - current[b][t]
            kl = {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - d - 1}[config.kl_estimator.value]
            loss = -objective + config.kl_beta * kl - entropy_coefficient * entropy[b][t]
            if config.aggregation is Aggregation.token_mean:
                total += loss / totals.num_tokens
            elif config.aggregation is Aggregation.sequence_mean_token_mean:
                total += loss / len(positions) / totals.num_rollouts
            else:
                total += loss / totals.num_rollouts
    return total


CONFIGS = [
    AlgorithmConfig(
        aggregation=aggregation,
        kl_estimator=estimator,
        kl_beta=0.3,
        importance_correction=correction,
        importance_cap=1.1,
        dual_clip=dual_clip,
    )
    for aggregation, estimator, correction, dual_clip in itertools.product(
        Aggregation, KlEstimator, ImportanceCorrection, (0.0, 1.5)
    )
]


def current_and_entropy(batch: TrainBatch, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 leaves, 0 outside the response; ratios from about 0.4 to 2.5."""
    random = np.random.default_rng(seed)
    mask = batch.tokens.response_mask_BT
    current = np.where(mask, batch.old_logprobs_BT + random.normal(0, 0.4, mask.shape), 0.0)
    entropy = np.where(mask, random.uniform(0, 2, mask.shape), 0.0)
    return torch.tensor(current, requires_grad=True), torch.tensor(entropy, requires_grad=True)


def gradients(loss: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, leaves))


@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    config=st.sampled_from(CONFIGS),
    coefficient=st.sampled_from([0.0, 0.01]),
)
@settings(max_examples=150, deadline=None)
def test_loss_equals_the_loop(seed, lengths, config, coefficient, random_batch, totals_of):
    batch = random_batch(seed, lengths, padding=seed % 3)
    # Totals larger than the batch: it is one micro-batch of several.
    totals = Totals(num_tokens=batch.num_tokens + 7, num_rollouts=len(batch) + 2)
    current, entropy = current_and_entropy(batch, seed)
    loss = policy_loss(current, entropy, batch, totals, config=config, entropy_coefficient=coefficient)
    expected = oracle_loss(current.tolist(), entropy.tolist(), batch, totals, config, coefficient)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.aggregation.name}-{c.kl_estimator.name}")
def test_gradient_equals_differences_of_the_loop(config, random_batch, totals_of):
    """Central differences of the oracle: neither autograd nor our formulas are on the other side."""
    batch = random_batch(3, [3, 1, 2])
    totals = totals_of(batch)
    current, entropy = current_and_entropy(batch, 5)
    loss = policy_loss(current, entropy, batch, totals, config=config, entropy_coefficient=0.05)
    by_current, by_entropy = gradients(loss, current, entropy)

    def at(values: list[list[float]], entropies: list[list[float]]) -> float:
        return oracle_loss(values, entropies, batch, totals, config, 0.05)

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


# --- The clip ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "ratio", "slope"),
    [
        # slope: derivative of the objective by the log-probability, ratio * A or exactly 0.
        (1.0, 0.5, 0.5),  # unlikely but good: pulled up, however far below the clip
        (1.0, 0.79, 0.79),
        (1.0, 1.0, 1.0),
        (1.0, 1.39, 1.39),
        (1.0, 1.41, 0.0),  # good and likely enough
        (1.0, 3.0, 0.0),
        (-2.0, 0.5, 0.0),  # bad and unlikely enough
        (-2.0, 0.79, 0.0),
        (-2.0, 0.81, -1.62),
        (-2.0, 1.0, -2.0),
        (-2.0, 1.41, -2.82),  # bad and likely: pushed down, however far above the clip
        (-2.0, 30.0, -60.0),
        (0.0, 0.5, 0.0),
        (0.0, 3.0, 0.0),
    ],
)
def test_the_clip_stops_the_gradient_exactly(advantage, ratio, slope, make_batch):
    batch = make_batch(advantages=[advantage], old=[[-1.0]], num_prompt_tokens=1)
    current = torch.tensor([[0.0, -1.0 + math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    config = AlgorithmConfig(clip_low=0.2, clip_high=0.4, kl_beta=0.0)
    loss = policy_loss(
        current,
        torch.zeros(1, 2),
        batch,
        Totals(num_tokens=1, num_rollouts=1),
        config=config,
        entropy_coefficient=0.0,
    )
    (gradient,) = gradients(loss, current)
    if slope == 0.0:
        assert gradient.tolist() == [[0.0, 0.0]]
    else:
        assert gradient[0, 1].item() == pytest.approx(-slope, rel=1e-9)


@pytest.mark.parametrize(("ratio", "stops"), [(2.9, False), (3.1, True), (0.5, True)])
def test_dual_clip_stops_the_gradient_exactly(ratio, stops, make_batch):
    """Beyond c = 3 for a negative advantage, besides the ordinary clip below 1 - 0.2."""
    batch = make_batch(advantages=[-1.0], old=[[-2.0]], num_prompt_tokens=1)
    current = torch.tensor([[0.0, -2.0 + math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    config = AlgorithmConfig(kl_beta=0.0, dual_clip=3.0)
    totals = Totals(num_tokens=1, num_rollouts=1)
    loss = policy_loss(current, torch.zeros(1, 2), batch, totals, config=config, entropy_coefficient=0.0)
    (gradient,) = gradients(loss, current)
    assert gradient[0, 1].item() == (0.0 if stops else pytest.approx(ratio, rel=1e-9))


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
    bindings = clip_bindings(ratios.detach(), advantages, config)
    bound = [bool(which.item()) for which in (bindings.low, bindings.high, bindings.dual)]
    assert sum(bound) == (1 if gradient.item() == 0.0 and advantage != 0 else 0)


@pytest.mark.parametrize("log_ratio", [85.0, 500.0, 1e5])
def test_a_ratio_beyond_float32_is_clipped_or_refused_but_never_a_hidden_nan(log_ratio, make_batch):
    totals = Totals(num_tokens=1, num_rollouts=1)
    losses, slopes = [], []
    for advantage in (1.0, -1.0):
        batch = make_batch(advantages=[advantage], old=[[-log_ratio]], num_prompt_tokens=1)
        current = torch.zeros(1, 2, requires_grad=True)
        loss = policy_loss(current, current, batch, totals, config=BARE, entropy_coefficient=0.0)
        losses.append(loss.item())
        slopes.append(gradients(loss, current)[0].tolist())
    assert losses == [pytest.approx(-1.2), math.inf]
    assert slopes[0] == [[0.0, 0.0]]


def test_an_update_on_the_policy_itself_has_ratio_one_and_the_plain_policy_gradient(random_batch, totals_of):
    """First update of a step: old is current, so no clip acts and the KL to old is 0."""
    batch = random_batch(11, [4, 2])
    current = torch.tensor(batch.old_logprobs_BT, requires_grad=True)
    loss = policy_loss(current, current, batch, totals_of(batch), config=BARE, entropy_coefficient=0.0)
    mask = torch.tensor(batch.tokens.response_mask_BT)
    advantages = torch.tensor(batch.advantages_B)[:, None] * mask
    assert torch.equal(probability_ratio(current, current), torch.ones_like(current))
    torch.testing.assert_close(loss, -advantages.sum() / 6)
    torch.testing.assert_close(gradients(loss, current)[0], -advantages / 6)


# --- KL ---------------------------------------------------------------------------------------------------------------


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
            kl_penalty(current, torch.tensor(-1.0 + d, dtype=torch.float64), estimator), current
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
        mean = (probabilities * kl_penalty(current, reference, estimator)).sum()
        if estimator is not KlEstimator.k2:
            assert mean.item() == pytest.approx(forward.item(), rel=1e-12)
        (gradient,) = torch.autograd.grad(mean, logits, retain_graph=True)
        torch.testing.assert_close(gradient, expected_gradient[estimator], rtol=1e-10, atol=1e-12)


@given(current=st.floats(-30, 0), reference=st.floats(-30, 0))
@settings(deadline=None)
def test_k2_and_k3_are_never_negative(current, reference):
    arguments = torch.tensor(current, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)
    assert kl_penalty(*arguments, KlEstimator.k2).item() >= 0
    assert kl_penalty(*arguments, KlEstimator.k3).item() >= -1e-12


def test_a_kl_beyond_float32_is_infinite_so_that_the_update_is_refused():
    current = torch.tensor(-200.0, requires_grad=True)
    assert kl_penalty(current, torch.tensor(-1.0), KlEstimator.k3).item() == math.inf


def test_a_term_that_is_off_does_not_read_its_inputs(random_batch, totals_of):
    """Without KL the reference may be absent, without bonus the entropy: NaN there must not matter."""
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


# --- Where the response is not ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("correction", ImportanceCorrection)
def test_nothing_outside_the_response_counts(junk, correction, random_batch, totals_of):
    config = AlgorithmConfig(kl_beta=0.3, importance_correction=correction, dual_clip=3.0)
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


def test_supervised_loss_ignores_what_is_outside_the_response(random_batch, totals_of):
    batch = random_batch(8, [3, 1], padding=2)
    mask = torch.tensor(batch.tokens.response_mask_BT)
    current = torch.where(mask, -0.5, math.nan).requires_grad_()
    loss = supervised_loss(current, current, batch, totals_of(batch))
    assert loss.item() == pytest.approx(0.5)
    torch.testing.assert_close(gradients(loss, current)[0], mask.float() / -4)


@pytest.mark.parametrize("aggregation", Aggregation)
def test_padding_changes_nothing(aggregation, make_batch):
    """More columns, and rows without a response, as an engine adds to fill a micro-batch."""
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
    for loss_function in (partial(policy_loss, config=BARE, entropy_coefficient=0.1), supervised_loss):
        loss = loss_function(current, current, batch, Totals(num_tokens=5, num_rollouts=2))
        loss.backward()
        assert loss.item() == 0.0


# --- Any split over micro-batches and ranks ---------------------------------------------------------------------------


@given(
    seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 6), max_size=3), config=st.sampled_from(CONFIGS)
)
@settings(max_examples=60, deadline=None)
def test_loss_and_gradient_do_not_depend_on_the_split(seed, cuts, config, random_batch, totals_of):
    lengths = [1, 5, 2, 4, 3, 1]
    batch = random_batch(seed, lengths)
    totals = totals_of(batch)
    current, entropy = current_and_entropy(batch, seed)
    losses: list[LossFunction] = [
        partial(policy_loss, config=config, entropy_coefficient=0.02),
        supervised_loss,
    ]
    order = np.random.default_rng(seed).permutation(len(lengths))
    parts = np.split(order, sorted(cuts))
    for loss_function in losses:
        whole = loss_function(current, entropy, batch, totals)
        shares = []
        for rows in parts:
            part = batch.select(rows.tolist())
            width = part.tokens.token_ids_BT.shape[1]
            shares.append(loss_function(current[rows, :width], entropy[rows, :width], part, totals))
        split = torch.stack(shares).sum()
        assert split.item() == pytest.approx(whole.item(), rel=1e-12, abs=1e-14)
        torch.testing.assert_close(
            *(gradients(x, current)[0] for x in (split, whole)), rtol=1e-12, atol=1e-14
        )


def test_dividing_by_the_micro_batch_instead_would_depend_on_the_split(random_batch, totals_of):
    """The mistake that global totals prevent; re-expressed from OpenRLHF tests/test_loss_aggregation.py (uneven
    micro-batches)."""
    batch = random_batch(1, [1, 5])
    current, entropy = current_and_entropy(batch, 1)
    loss = partial(policy_loss, config=BARE, entropy_coefficient=0.0)
    halves = [
        (batch.select([0]), current[:1, :3], entropy[:1, :3]),
        (batch.select([1]), current[1:], entropy[1:]),
    ]
    mean_of_means = sum(loss(c, e, part, totals_of(part)).item() for part, c, e in halves) / 2
    assert mean_of_means != pytest.approx(loss(current, entropy, batch, totals_of(batch)).item(), rel=1e-3)
