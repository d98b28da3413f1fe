"""Tests of the published rows and of what is fitted to them; and of the simulation of the longest responses, against a
simulation token by token and against exact results."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from experiments.estimates import fit
from experiments.estimates.layouts import layouts
from experiments.estimates.overlap import LIMIT, PASS_TOKENS, TOKEN_S, Rank, ranks_of
from experiments.estimates.published import ROWS
from experiments.estimates.tail import (
    Lengths,
    Sampling,
    Scheduling,
    decode_seconds,
    simulate,
)
from nemo_prorl.cluster.scale.roofline import FITTED, RANGE, SMALL_MODEL_FACTOR, DecodeCost
from nemo_prorl.types import IntArray
from tests.conftest import ROOT

COST = DecodeCost(
    prefill_s=0.05,
    step_s=2e-3,
    sequence_s=1e-4,
    context_token_s=1e-6,
    loop_step_s=2.1e-3,
    loop_sequence_s=1.2e-4,
)
"""A machine whose sampler loop takes longer than its GPU as long as contexts are short."""
PROMPT = 20


def run(
    lengths: IntArray,
    scheduling: Scheduling,
    *,
    engines: int = 3,
    places: int = 8,
    cost: DecodeCost = COST,
) -> Sampling:
    return simulate(
        lengths,
        prompt_tokens=PROMPT,
        num_engines=engines,
        num_places=places,
        cost=cost,
        scheduling=scheduling,
    )


def draw(num_prompts: int = 12, num_rollouts: int = 4, seed: int = 0) -> IntArray:
    return np.random.default_rng(seed).integers(1, 60, (num_prompts, num_rollouts))


def token_by_token(hands: list[list[list[int]]], places: int) -> float:
    """Returns the seconds until the last engine has sampled its rollouts, simulating every decoding step."""
    ends = []
    for hand in hands:
        prompts, waiting, active, now = deque(hand), deque[int](), list[list[int]](), 0.0
        while prompts or waiting or active:
            while len(active) < places and (waiting or prompts):
                if len(active) + len(waiting) < places and prompts:
                    now += COST.prefill_s
                    waiting.extend(prompts.popleft())
                while waiting and len(active) < places:
                    active.append([waiting.popleft(), 0])
            context = sum(PROMPT + done for _, done in active)
            gpu = COST.step_s + COST.sequence_s * len(active) + COST.context_token_s * context
            now += max(gpu, COST.loop_step_s + COST.loop_sequence_s * len(active))
            active = [[length, done + 1] for length, done in active if done + 1 < length]
        ends.append(now)
    return max(ends)


@pytest.mark.parametrize("places", [1, 5, 8, 1000])
def test_groups_of_an_engine_take_as_long_as_token_by_token(places: int) -> None:
    lengths = draw()
    hands = [lengths[first::3].tolist() for first in range(3)]
    sampling = run(lengths, Scheduling.prompts, places=places)
    assert sampling.seconds == pytest.approx(token_by_token(hands, places))


@pytest.mark.parametrize("places", [5, 1000])
@pytest.mark.parametrize("num_rollouts", [2, 4, 7])
def test_rollouts_are_split_as_the_fleet_splits_them(places: int, num_rollouts: int) -> None:
    from nemo_prorl.training.sampling.fleet import siblings_of

    lengths = draw(num_rollouts=num_rollouts)
    hands = [
        [
            lengths[index, list(siblings)].tolist()
            for index, siblings in siblings_of(engine, 3, 12, num_rollouts).items()
        ]
        for engine in range(3)
    ]
    sampling = run(lengths, Scheduling.rollouts, places=places)
    assert sampling.seconds == pytest.approx(token_by_token(hands, places))


def test_waiting_by_hand() -> None:
    """Two engines sample a response of 10 and one of 30 tokens: the first waits two thirds of the time."""
    cost = DecodeCost(
        prefill_s=0.0,
        step_s=1.0,
        sequence_s=0.0,
        context_token_s=0.0,
        loop_step_s=0.0,
        loop_sequence_s=0.0,
    )
    sampling = run(np.array([[10], [30]]), Scheduling.prompts, engines=2, cost=cost)
    assert sampling.seconds == 30
    assert sampling.waiting_share == pytest.approx(1 / 3)
    assert sampling.half_empty_share == pytest.approx(1 / 3)


@pytest.mark.parametrize("context", [0, 40, 100, 250, 5000])
@pytest.mark.parametrize("sequences", [1, 7])
def test_steps_in_a_row_cost_their_sum(context: int, sequences: int) -> None:
    """The loop takes longer than the GPU in none of the steps, in the first, or in all."""
    each = sum(decode_seconds(COST, 1, sequences, context + sequences * step) for step in range(13))
    assert decode_seconds(COST, 13, sequences, context) == pytest.approx(each)


@pytest.mark.parametrize(("mean", "limit"), [(3536, 7072), (2000, 7072), (6500, 7072), (12, 15360)])
def test_moments_are_those_of_its_draws(mean: float, limit: int) -> None:
    lengths = Lengths.with_mean(mean, limit=limit)
    drawn = lengths.draw(4000, 25, seed=1).astype(float)
    assert lengths.mean == pytest.approx(mean)
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert (drawn**2).mean() == pytest.approx(lengths.mean_square, rel=0.05)
    assert drawn.min() >= 1


@pytest.mark.parametrize(
    ("passes", "sampling", "finish"),
    [
        (1.0, 1.0, 12.0),  # the first pass is hidden
        (0.75, 0.75, 12 + 1 / 3),  # it takes 4/3 s, of which sampling loses a quarter
        (0.5, 0.5, 13.0),  # it saves a second, and costs one
        (0.1, 0.9, 13.0),  # 2/9 of it is done in the 20/9 s that sampling takes now instead of 2
        (1.0, 0.0, 13.0),  # sampling waits for it
    ],
)
def test_passes_beside_sampling_by_hand(passes: float, sampling: float, finish: float) -> None:
    """A pass of one second may begin after 8 of 10 seconds, two more at the end."""
    tokens = np.array([1.0, 1.0, 1.0]) / TOKEN_S
    assert tokens[0] > PASS_TOKENS  # so that each is a pass
    rank = Rank(ends_s=np.array([8.0, 10.0, 10.0]), tokens=tokens, kept=np.array([True, True, True]))
    assert rank.finish_s(passes, sampling) == pytest.approx(finish)


def test_every_rank_scores_what_its_engine_samples() -> None:
    lengths = np.random.default_rng(0).integers(1, LIMIT, (6, 16))
    kept = np.arange(6) % 2 == 0
    ranks = ranks_of(lengths, kept, COST)
    assert sum(int(rank.kept.sum()) for rank in ranks) == 16 * 3
    assert sum(int(rank.tokens.sum()) for rank in ranks) == lengths.sum() + lengths.size * 200
    assert all((np.diff(rank.ends_s) >= 0).all() and (np.diff(rank.tokens) >= 0).all() for rank in ranks)


def test_a_third_of_the_rows_is_held_out() -> None:
    held_out = [row for row in ROWS if row.is_held_out]
    assert len(held_out) >= len(ROWS) / 3
    assert all(row.is_held_out for row in ROWS if row.is_small)


def test_the_range_is_that_of_the_fitted_rows() -> None:
    factors = [fit.whole(row) for row in ROWS if not row.is_held_out]
    assert (round(min(factors), 2), round(max(factors), 2)) == RANGE


def test_rows_held_out_are_met_within_half() -> None:
    """verl on 64 GPUs has the largest error: its steps do not get slower in proportion when GPUs become fewer."""
    factors = {row.name: fit.whole(row) for row in ROWS if row.is_held_out and not row.is_small}
    assert all(2 / 3 < factor < 3 / 2 for factor in factors.values()), factors


def test_small_models_took_longer_by_the_factor_that_plan_prints() -> None:
    """ProRL's total is the most, the first user's stage of DeepScaleR the least; AReaL's mean length is assumed."""
    factors = [fit.whole(row) for row in ROWS if row.is_small and "AReaL" not in row.name]
    hours, low = fit.paper_hours()
    assert (round(min(factors), 1), round(hours / low, 1)) == SMALL_MODEL_FACTOR
    assert max(factors) < SMALL_MODEL_FACTOR[1]


@pytest.mark.medium
def test_the_constants_are_what_the_fit_finds() -> None:
    derates, verl_tokens = fit.fit()
    assert derates.sampling == pytest.approx(FITTED.sampling, rel=0.02)
    assert derates.matrices == pytest.approx(FITTED.matrices, rel=0.02)
    assert derates.half_width == pytest.approx(FITTED.half_width, rel=0.02)
    assert verl_tokens == pytest.approx(fit.published.VERL_MEAN_TOKENS, rel=0.02)


def test_the_table_of_the_page_is_what_is_computed() -> None:
    documented = (ROOT / "experiments" / "estimates.md").read_text(encoding="utf-8")
    assert [line for line in fit.table() if line not in documented] == []


def test_the_page_has_the_layouts_of_the_papers_configuration() -> None:
    page = (ROOT / "docs" / "sizing.md").read_text().splitlines()
    assert [row for row in layouts() if row not in page] == []
