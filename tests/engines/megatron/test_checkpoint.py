"""Save and load: bitwise in the same layout, to rounding in any other, and a process that ends afterwards."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engines.megatron.helpers import (
    Case,
    MakePolicy,
    World,
    loss_function,
    reference_logprobs,
    save,
    token_batch,
    train_batch,
)
from tests.engines.megatron.layouts import FOUR, ONE, TWO
from tests.engines.megatron.test_parallel import assert_close


def assert_resumes(world: World, one: World, case: Case) -> None:
    for rank in world.ranks:
        got, again = rank[case.name], rank[case.name]["again"]
        for name, wanted in got["after"].items():
            assert np.array_equal(again["after"][name], wanted), name
        assert np.array_equal(again["reference_logprobs"], got["reference_logprobs"])
        if case.resume:
            assert_close(got["resumed"]["after"], one.ranks[0][case.model]["after"])
            assert got["resumed"]["learning_rate"] == got["learning_rates"][1]
            np.testing.assert_allclose(
                got["resumed"]["reference_logprobs"], got["reference_logprobs"], atol=1e-5, rtol=0
            )


@pytest.mark.parametrize("case", ONE, ids=lambda case: case.name)
def test_one_rank_resumes_bitwise(one: World, case: Case) -> None:
    assert_resumes(one, one, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", TWO, ids=lambda case: case.name)
def test_two_ranks_resume_bitwise_and_from_other_layouts(two: World, one: World, case: Case) -> None:
    assert_resumes(two, one, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", FOUR, ids=lambda case: case.name)
def test_four_ranks_resume_bitwise_and_from_other_layouts(four: World, one: World, case: Case) -> None:
    assert_resumes(four, one, case)


@pytest.mark.slow
def test_one_rank_continues_what_four_began(
    four: World, one: World, checkpoints: Path, make_policy: MakePolicy
) -> None:
    policy = make_policy("qwen3_tied")
    policy.load(checkpoints / "four" / "tied-tp2-pp2-sp")
    policy.update(train_batch(token_batch()), loss_function)
    wanted = one.ranks[0]["qwen3_tied"]["after"]
    assert_close({name: tensor.numpy() for name, tensor in policy.named_weights()}, wanted)


def test_what_is_not_asked_for_is_left_as_it_is(make_policy: MakePolicy, tmp_path: Path) -> None:
    batch = train_batch(token_batch())
    policy = make_policy()
    policy.update(batch, loss_function)
    save(policy, tmp_path / "saved")
    saved = dict(policy.named_weights())
    other = make_policy()
    reference = reference_logprobs(other, batch.tokens)
    other.load(tmp_path / "saved", optimizer=False, reference=False)
    assert all(torch.equal(saved[name], tensor) for name, tensor in other.named_weights())
    assert np.array_equal(reference_logprobs(other, batch.tokens), reference)
    assert other.num_updates == 1

    fresh = make_policy()
    fresh.load(tmp_path / "saved", reference=False, optimizer=False)
    fresh.reset_optimizer()
    other.update(batch, loss_function)
    fresh.update(batch, loss_function)
    assert_same_weights(other, fresh)


def assert_same_weights(first: object, second: object) -> None:
    for (name, a), (_, b) in zip(first.named_weights(), second.named_weights(), strict=True):  # type: ignore[attr-defined]
        assert torch.equal(a, b), name


def test_random_states_come_back(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy()
    save(policy, tmp_path / "saved")
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    policy.load(tmp_path / "saved")
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn


def test_an_incomplete_checkpoint_is_none(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy()
    save(policy, tmp_path / "saved")
    (tmp_path / "saved" / "policy.json").unlink()
    with pytest.raises(FileNotFoundError):
        policy.load(tmp_path / "saved")


def test_weights_alone_are_not_taken_for_a_whole_checkpoint(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy()
    save(policy, tmp_path / "saved")
    mark = tmp_path / "saved" / "policy.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"contents": ["weights"]}))
    with pytest.raises(ValueError, match="holds weights only"):
        policy.load(tmp_path / "saved", reference=False)


SCRIPT = """
from nemo_prorl.engines import environment; environment.prepare()
import sys
from pathlib import Path
from nemo_prorl.distributed import initialise
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from tests.engines.megatron.helpers import run_config, save
policy = MegatronPolicy(run_config(Path(sys.argv[1])), initialise(1, 1))
save(policy, Path(sys.argv[2]))
"""


def test_the_interpreter_ends_after_a_save(hf_models: dict[str, Path], tmp_path: Path) -> None:
    """A script without a __main__ guard, as Megatron's own writer could not bear."""
    job = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(hf_models["qwen2"]), str(tmp_path / "saved")],
        check=True,
        timeout=120,
        cwd=Path(__file__).resolve().parents[3],
        env={name: value for name, value in os.environ.items() if name not in job},
    )
    assert (tmp_path / "saved" / "policy.json").is_file()
