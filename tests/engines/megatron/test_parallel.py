"""Every layout gives what one process gives: log-probabilities, gradients and whole optimizer steps, by value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from nemo_prorl.algorithm.mismatch import importance_weights
from tests.engines.megatron.helpers import Case, World, token_batch, train_batch_of_a_step
from tests.engines.megatron.layouts import FOUR, OF_SEQUENCES, ONE, QUICK, TWO


def assert_same(world: World, one: World, case: Case) -> None:
    alone = one.ranks[0][case.alone]
    for rank in world.ranks:
        got = rank[case.name]
        for name, wanted in alone["before"].items():
            assert np.array_equal(got["before"][name], wanted), name
        for key in ("logprobs", "reference_logprobs", "current_logprobs", "entropy"):
            wanted = alone[key][got["rows"]][:, : got[key].shape[1]]
            np.testing.assert_allclose(got[key], wanted, atol=1e-5, rtol=0, err_msg=key)
        for key in ("losses", "grad_norms"):
            np.testing.assert_allclose(got[key], alone[key], rtol=1e-5, atol=1e-5, err_msg=key)
        assert got["learning_rates"] == alone["learning_rates"] == [2.5e-3, 5e-3]
        assert_close(
            got["gradients"], {name: alone["gradients"][name] for name in got["gradients"]}, rtol=1e-4
        )
        assert_close(got["after"], alone["after"])


def assert_close(got: dict[str, Any], wanted: dict[str, Any], rtol: float = 0.0) -> None:
    assert got.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], atol=1e-5, rtol=rtol, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_tensor_pipeline_and_data_parallel_ranks_equal_one(quick: World, one: World, case: Case) -> None:
    assert_same(quick, one, case)
    assert all(rank[case.name]["gradients"] and rank[case.name]["refused"] for rank in quick.ranks)


@pytest.mark.slow
@pytest.mark.parametrize("case", TWO, ids=lambda case: case.name)
def test_two_ranks_equal_one(two: World, one: World, case: Case) -> None:
    assert_same(two, one, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", FOUR, ids=lambda case: case.name)
def test_four_ranks_equal_one(four: World, one: World, case: Case) -> None:
    assert_same(four, one, case)


@pytest.mark.slow
def test_gradients_are_on_their_way_before_the_backward_pass_ends_where_replicas_are_on_two_machines(
    two: World,
) -> None:
    for rank in two.ranks:
        assert rank["dp2"]["in_flight"] == [0]
        assert rank["dp2-machines"]["in_flight"] == [1]


@pytest.mark.slow
def test_every_rank_refuses_an_update_that_is_not_finite_on_one(two: World, four: World) -> None:
    assert all(got["refused"] for world in (two, four) for rank in world.ranks for got in rank.values())


@pytest.mark.slow
def test_gradients_are_compared_wherever_one_rank_has_them_whole(two: World, four: World) -> None:
    """With a sharded optimizer no replica has them."""
    for world, cases in ((two, TWO), (four, FOUR)):
        for case in cases:
            sizes = [case.trainer.get(f"{name}_parallel", 1) for name in ("tensor", "pipeline")]
            is_sharded = case.trainer.get("distributed_optimizer", True) and math.prod(sizes) < len(
                world.ranks
            )
            assert bool(world.ranks[0][case.name]["gradients"]) == (not is_sharded), case.name


def test_rollouts_are_dropped_and_kept_in_the_update_that_is_compared() -> None:
    batch = train_batch_of_a_step(token_batch())
    mask = torch.from_numpy(batch.tokens.response_mask_BT)
    log_ratio = torch.from_numpy(batch.old_logprobs_BT - batch.sampler_logprobs_BT)
    dropped = importance_weights(log_ratio, mask, OF_SEQUENCES).limited_BT.all(dim=1)
    assert 2 <= int(dropped.sum()) <= len(batch) - 2


@pytest.mark.parametrize("case", ONE, ids=lambda case: case.name)
def test_the_measurement_sees_every_parameter_learn(one: World, case: Case) -> None:
    result = one.ranks[0][case.name]
    for name, before in result["before"].items():
        assert np.abs(result["gradients"][name]).max() > 1e-4, name
        assert np.abs(result["after"][name] - before).max() > 1e-3, name
    assert np.abs(result["logprobs"] - result["reference_logprobs"]).max() == 0.0
