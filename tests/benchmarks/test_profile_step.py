"""Tests of `make profile`: functions are found in the phase that called them, and operations are those counted by
hand."""

from __future__ import annotations

import itertools
import pstats
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.profile_step import (
    REST,
    ProfilingStopwatch,
    forward,
    operations_of,
    padding_of,
)
from nemo_prorl.cluster.scale.known import shape_of
from nemo_prorl.config import AlgorithmConfig, KlIn, RunConfig, TrainerConfig
from nemo_prorl.data.batch import TrainingRow, train_batch
from nemo_prorl.engines.megatron.architecture import hf_shapes
from nemo_prorl.types import PreparedRollout, Prompt

MODEL = shape_of("qwen2.5-1.5b")


@pytest.fixture
def stopwatch() -> Iterator[ProfilingStopwatch]:
    one = ProfilingStopwatch()
    yield one
    one.switch_to("")


def in_phase() -> None:
    """A function that the test looks for in the profile of its phase."""


def between_phases() -> None:
    """A function that the test looks for in the profile between phases."""


def names(stopwatch: ProfilingStopwatch) -> dict[str, set[str]]:
    stopwatch.switch_to("")
    return {
        phase: {name for _, _, name in pstats.Stats(profile).stats}  # type: ignore[attr-defined]
        for phase, profile in stopwatch.profiles.items()
    }


def step(stopwatch: ProfilingStopwatch) -> None:
    stopwatch.restart()
    between_phases()
    with stopwatch.measure("updates_s"):
        in_phase()
        with stopwatch.measure("refit_s"):
            in_phase()
        in_phase()
    between_phases()


def test_functions_are_found_in_their_phase_and_nowhere_else(stopwatch: ProfilingStopwatch) -> None:
    step(stopwatch)
    found = names(stopwatch)
    assert found.keys() == {REST, "updates_s", "refit_s"}
    assert "between_phases" in found[REST]
    assert "in_phase" not in found[REST]
    assert "in_phase" in found["updates_s"] & found["refit_s"]
    assert "between_phases" not in found["updates_s"] | found["refit_s"]
    assert stopwatch.seconds["updates_s"] >= stopwatch.seconds["refit_s"] > 0


# ------------------------------------------------------------------------------------- operations
A_TOKEN = 2 * sum(
    shape[0] * shape[1]
    for name, shape in hf_shapes(MODEL).items()
    if len(shape) == 2 and "embed_tokens" not in name
)
"""Operations of a token in all matrices of the layers: the model's output layer is its embedding."""
A_RESPONSE_TOKEN = 2 * 151_936 * 1536
AN_ATTENDED_TOKEN = 2 * 2 * 28 * 12 * 128
"""Scores and their sum over values, in 28 layers of 12 heads of 128."""


def prepared(prompt_tokens: int, response_tokens: int, *, has_reference: bool = True) -> PreparedRollout:
    prompt = Prompt(
        uid=f"{prompt_tokens}", domain="", source="", text="", token_ids=(7,) * prompt_tokens, task={}
    )
    old, reference = np.zeros((2, response_tokens), dtype=np.float32)
    return PreparedRollout(
        prompt=prompt,
        token_ids=np.zeros(response_tokens, dtype=np.int64),
        sampler_logprobs=old,
        old_logprobs=old,
        reference_logprobs=reference if has_reference else old,
    )


def step_of(rollouts: dict[tuple[int, int], PreparedRollout], *num_rows: int, **config: Any) -> Any:
    """Returns what a step has of these rollouts, whose updates have so many each."""
    rows = [
        TrainingRow(key=key, rollout=row, advantage=1.0, policy_version=0) for key, row in rollouts.items()
    ]
    taken = iter(rows)
    updates = [list(itertools.islice(taken, count)) for count in num_rows]
    return SimpleNamespace(
        config=RunConfig(**config),
        collection=SimpleNamespace(rollouts=rollouts, prepared=rollouts),
        rows=updates,
        batches=[train_batch(part) for part in updates],
    )


def test_a_forward_pass_has_the_operations_of_every_token_counted_one_by_one() -> None:
    rows = [prepared(3, 2), prepared(3, 4), prepared(5, 1)]
    tokens = [position for row in rows for position in range(1, row.length + 1)]
    done = forward(rows, MODEL)
    assert done.layers == pytest.approx(A_TOKEN * 18, rel=1e-3)  # norms and biases count as parameters
    assert done.head == A_RESPONSE_TOKEN * 7
    assert done.attention == AN_ATTENDED_TOKEN * sum(tokens)
    shared = forward(rows, MODEL, shared_prompts=True)
    assert shared.layers == pytest.approx(A_TOKEN * (18 - 3), rel=1e-3)
    assert shared.head == done.head
    assert shared.attention == AN_ATTENDED_TOKEN * (sum(tokens) - (1 + 2 + 3))


def test_each_phase_has_the_operations_that_its_results_need() -> None:
    """The first update computes its own old log-probabilities."""
    rows = {(0, 0): prepared(3, 2), (0, 1): prepared(3, 4), (1, 0): prepared(5, 1)}
    step = step_of(rows, 2, 1)
    found = operations_of(step, MODEL)
    attended = {"first": 15 + 28, "second": 21}
    assert found["old_logprobs_s"] == pytest.approx(
        A_TOKEN * 6 + A_RESPONSE_TOKEN + AN_ATTENDED_TOKEN * 21, rel=1e-3
    )
    whole = A_TOKEN * 18 + A_RESPONSE_TOKEN * 7 + AN_ATTENDED_TOKEN * sum(attended.values())
    assert found["reference_logprobs_s"] == pytest.approx(whole, rel=1e-3)
    assert found["sampling_s"] == pytest.approx(whole - 3 * A_TOKEN - 6 * AN_ATTENDED_TOKEN, rel=1e-3)
    backward = 3 * A_TOKEN * 18 + 4 * A_RESPONSE_TOKEN * 7 + 3.5 * AN_ATTENDED_TOKEN * sum(attended.values())
    assert found["updates_s"] == pytest.approx(backward, rel=1e-3)

    without = {key: replace(row, reference_logprobs=row.old_logprobs) for key, row in rows.items()}
    assert operations_of(step_of(without, 2, 1), MODEL)["reference_logprobs_s"] == 0
    in_reward = AlgorithmConfig(kl_beta=1e-3, kl_in=KlIn.reward)
    assert operations_of(step_of(rows, 2, 1, algorithm=in_reward), MODEL)["old_logprobs_s"] == pytest.approx(
        whole, rel=1e-3
    )


@pytest.mark.medium
def test_padding_is_what_passes_compute_beyond_their_rows() -> None:
    """Rows of 7, 5 and 6 tokens: the first two in a pass of 14, and one alone in the other update."""
    rows = {(0, 0): prepared(3, 2), (0, 1): prepared(3, 4), (1, 0): prepared(5, 1)}
    assert padding_of(step_of(rows, 2, 1)) == pytest.approx(2 / 20)
    assert padding_of(step_of(rows, 2, 1, trainer=TrainerConfig(micro_batch_tokens=7))) == 0
