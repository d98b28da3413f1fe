"""Tests of the bound on what sampling further ahead could win, against a loop over single tokens."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.layouts import plan_of
from nemo_prorl.cluster.scale.roofline import DecodeCost
from nemo_prorl.cluster.scale.tail import SIGMA, gains, one_step_s, steady_s, typical_lengths
from nemo_prorl.config import AlgorithmConfig, CorrectionLevel
from tests.cluster.scale.test_roofline import FITS, case

BY_GPU = DecodeCost(
    prefill_s=0.0, step_s=3.0, sequence_s=0.5, context_token_s=0.01, loop_step_s=0.0, loop_sequence_s=0.0
)
BY_LOOP = replace(BY_GPU, loop_step_s=100.0, loop_sequence_s=20.0)


def token_by_token_s(lengths: list[int], num_places: int, cost: DecodeCost, prompt_tokens: int) -> float:
    waiting, active, seconds = (
        list(lengths),
        list[list[int]](),
        0.0,
    )  # active: [tokens in its context, tokens to come]
    while waiting or active:
        while waiting and len(active) < num_places:
            active.append([prompt_tokens, waiting.pop(0)])
        gpu_s = cost.step_s + cost.sequence_s * len(active) + cost.context_token_s * sum(c for c, _ in active)
        seconds += max(gpu_s, cost.loop_step_s + cost.loop_sequence_s * len(active))
        active = [[context + 1, left - 1] for context, left in active if left > 1]
    return seconds


@pytest.mark.parametrize("cost", [BY_GPU, BY_LOOP])
@pytest.mark.parametrize("num_places", [1, 3, 50])
def test_decoding_takes_what_its_steps_take(cost: DecodeCost, num_places: int) -> None:
    lengths = [Random(seed).randint(1, 60) for seed in range(20)]
    expected = token_by_token_s(lengths, num_places, cost, 5)
    assert one_step_s(lengths, num_places, cost, 5) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("cost", [BY_GPU, BY_LOOP])
def test_a_steady_engine_takes_what_a_very_long_step_takes_per_response(cost: DecodeCost) -> None:
    """Of 200 steps in one, which fills all places at any time but at the end."""
    lengths = typical_lengths(0.4, 500, 64)
    one = one_step_s(lengths * 200, 40, cost, 30) / 200
    assert steady_s(lengths, 40, cost, 30, num_steps=100) == pytest.approx(one, rel=0.02)


def test_no_response_ends_before_it_is_decoded() -> None:
    """With places for all, the longest response takes its own number of decoding steps, spread over the steps."""
    lengths = [10, 10, 100]
    free = replace(BY_GPU, sequence_s=0.0, context_token_s=0.0)
    for num_steps in (1, 2, 5):
        assert steady_s(lengths, 1000, free, 0, num_steps=num_steps) == pytest.approx(3.0 * 100 / num_steps)


@pytest.mark.parametrize(("share", "cut_off"), [(0.15, 0.0), (0.5, 0.14), (0.9, 0.7)])
def test_lengths_have_the_mean_the_spread_and_the_limit(share: float, cut_off: float) -> None:
    lengths = np.array(typical_lengths(share, 8192, 2000))
    assert lengths.mean() == pytest.approx(share * 8192, rel=1e-3)
    assert lengths.max() == 8192
    assert (lengths == 8192).mean() == pytest.approx(cut_off, abs=0.03)
    quantiles = np.log(np.quantile(lengths, [0.1586, 0.05]))
    assert quantiles[0] - quantiles[1] == pytest.approx((1.645 - 1.0) * SIGMA, rel=0.02)


def test_more_is_won_with_short_answers_more_gpus_and_more_steps() -> None:
    def won(**options: object) -> dict[int, float]:
        chosen = case(FITS, **options)  # type: ignore[arg-type]
        return gains(chosen, plan_of(chosen).memory)

    usual, short, many = (
        won(),
        won(response_share=0.2),
        won(cluster=Cluster(num_nodes=16, gpus_per_node=8)),
    )
    for found in (usual, short, many):
        assert 1.0 <= found[1] <= found[3] <= found[7]
    assert usual[7] < 1.2, "not worth building for"
    assert short[7] > 1.5
    assert many[7] > usual[7]


def test_where_training_is_hidden_behind_sampling_faster_sampling_wins_more() -> None:
    algorithm = AlgorithmConfig(correction_level=CorrectionLevel.token, kl_weighted=True)
    sampler = replace(FITS.sampler, release_memory=False, memory_fraction=0.4)
    plain = case(replace(FITS, algorithm=algorithm, sampler=sampler), response_share=0.2)
    ahead = replace(plain, config=replace(plain.config, sampler=replace(sampler, ahead=True)))
    memory = plan_of(case(FITS)).memory
    assert all(gains(ahead, memory)[steps] > won > 1.0 for steps, won in gains(plain, memory).items())
