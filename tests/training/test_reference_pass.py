"""Without a KL penalty no log-probabilities of the reference are computed, unless something else needs the KL. The
reference itself stays correct."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import (
    AlgorithmConfig,
    ControllerAction,
    ControllerConfig,
    ControllerMode,
)
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from tests.training.scripted_run import Run


def steps_of(run: Run) -> list[dict[str, Any]]:
    return [record for record in run.records if "reward/mean" in record]


@pytest.mark.parametrize(
    ("options", "measures"),
    [
        ({}, False),
        ({"controller": ControllerConfig(mode=ControllerMode.interval, interval=9)}, False),
        ({"controller": ControllerConfig(mode=ControllerMode.automatic)}, True),
        (
            {"controller": ControllerConfig(
                mode=ControllerMode.automatic, kl_spike=ControllerAction.ignore
            )},
            False,
        ),
    ],
)  # fmt: skip
def test_without_a_penalty_the_reference_is_asked_only_for_a_signal_that_needs_it(
    tmp_path: Path, options: dict[str, Any], measures: bool
) -> None:
    run = Run(tmp_path, num_steps=3, algorithm=AlgorithmConfig(kl_beta=0.0), held_out=0, **options)
    run.fit()
    assert run.policy.num_references == (2 if measures else 0), "the first step's policy is its reference"
    for record in steps_of(run):
        assert ("objective/kl_at_sampling" in record) == ("objective/kl_to_reference" in record) == measures
        assert {"objective/entropy", "objective/ratio_p99", "sampler/logprob_abs_diff_max"} <= record.keys()


def test_a_checkpoint_that_is_chosen_by_its_kl_has_one(tmp_path: Path) -> None:
    run = Run(tmp_path, num_steps=2, algorithm=AlgorithmConfig(kl_beta=0.0), every=1, held_out=0)
    run.config.exp_manager.checkpoint_callback_params.monitor = "objective/kl_to_reference"
    run.fit()
    assert [checkpoint.score for checkpoint in find_checkpoints(tmp_path)] == [
        record["objective/kl_to_reference"] for record in steps_of(run)
    ]


def test_no_penalty_trains_as_a_penalty_of_next_to_nothing_does(tmp_path: Path) -> None:
    weights = []
    for kl_beta in (0.0, 1e-30):
        run = Run(
            tmp_path / f"{kl_beta}", num_steps=3, algorithm=AlgorithmConfig(kl_beta=kl_beta), held_out=0
        )
        run.fit()
        weights.append(run.policy.weight)
    assert weights[0] == weights[1] != 0.0


def test_a_penalty_that_begins_when_a_run_is_resumed_holds_on_to_the_last_reset(tmp_path: Path) -> None:
    """Until then the reference was saved and reset, although nothing used it."""
    interval = ControllerConfig(mode=ControllerMode.interval, interval=2)
    run = Run(
        tmp_path,
        num_steps=3,
        algorithm=AlgorithmConfig(kl_beta=0.0),
        held_out=0,
        every=1,
        controller=interval,
    )
    run.fit()
    second = next(checkpoint for checkpoint in find_checkpoints(tmp_path) if checkpoint.state.step == 2)
    at_reset = json.loads((second.policy / "weights.json").read_text())["weight"]
    resumed = run.resume(num_steps=4)
    resumed.config = replace(resumed.config, algorithm=AlgorithmConfig(kl_beta=0.1))
    assert resumed.policy.reference_weight == at_reset != resumed.policy.weight
    resumed.fit()
    assert resumed.policy.num_references == 1
    assert steps_of(resumed)[-1]["objective/kl_at_sampling"] > 0
