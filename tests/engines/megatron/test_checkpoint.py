"""Save and load: bitwise in the same layout, to rounding in any other, and a process that ends afterwards."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from nemo_prorl import distributed
from nemo_prorl.config import LoraConfig, Optimizer
from nemo_prorl.engines.megatron import checkpoint
from nemo_prorl.engines.megatron.pinned import Copies
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.engines.megatron.shards import ShardReader
from tests.engines.conftest import build_hf_model, run_ranks
from tests.engines.megatron.helpers import (
    VOCAB,
    Case,
    MakePolicy,
    World,
    loss_function,
    reference_logprobs,
    run_config,
    save,
    token_batch,
    train_batch,
)
from tests.engines.megatron.layouts import FOUR, ONE, TWO
from tests.engines.megatron.test_parallel import assert_close
from tests.waits import CopiedBytes


def contents(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, whole, without the padding of vocabularies."""
    found = {}
    for reader in (ShardReader(folder), ShardReader(folder / "moments")):
        keys = list(reader._known)
        tensors = reader.read([(key, None) for key in keys])
        found |= {
            key: tensor[:VOCAB] if "embedding" in key or "output_layer" in key else tensor
            for key, tensor in zip(keys, tensors, strict=True)
        }
    return found


def assert_same_contents(first: Path, second: Path) -> None:
    """Bit by bit: weights, reference, both moments."""
    wanted, found = contents(first), contents(second)
    assert wanted.keys() == found.keys()
    assert {key.split(".")[0] for key in wanted} >= {"embedding", "decoder", "reference", "optimizer"}
    for key, tensor in wanted.items():
        assert torch.equal(tensor.view(torch.int32), found[key].view(torch.int32)), key


def assert_resumes(world: World, one: World, case: Case, folder: Path) -> None:
    for rank in world.ranks:
        got, again = rank[case.name], rank[case.name]["again"]
        for name, wanted in got["after"].items():
            assert np.array_equal(again["after"][name], wanted), name
        assert np.array_equal(again["reference_logprobs"], got["reference_logprobs"])
        assert again["reference_hash"] == one.ranks[0][case.model]["again"]["reference_hash"]
        if case.resume:
            assert_close(got["resumed"]["after"], one.ranks[0][case.model]["after"])
            assert got["resumed"]["learning_rate"] == got["learning_rates"][1]
            np.testing.assert_allclose(
                got["resumed"]["reference_logprobs"], got["reference_logprobs"], atol=1e-5, rtol=0
            )
            assert got["resumed"]["reference_hash"] == again["reference_hash"]
    assert_same_contents(folder / case.name, folder / f"{case.name}-again")
    if case.resume:
        assert_same_contents(folder.parent / case.resume, folder / f"{case.name}-resumed")


@pytest.mark.parametrize("case", ONE, ids=lambda case: case.name)
def test_one_rank_resumes_bitwise(one: World, case: Case, checkpoints: Path) -> None:
    assert_resumes(one, one, case, checkpoints / "one")


@pytest.mark.slow
@pytest.mark.parametrize("case", TWO, ids=lambda case: case.name)
def test_two_ranks_resume_bitwise_and_from_other_layouts(
    two: World, one: World, case: Case, checkpoints: Path
) -> None:
    assert_resumes(two, one, case, checkpoints / "two")


@pytest.mark.slow
@pytest.mark.parametrize("case", FOUR, ids=lambda case: case.name)
def test_four_ranks_resume_bitwise_and_from_other_layouts(
    four: World, one: World, case: Case, checkpoints: Path
) -> None:
    assert_resumes(four, one, case, checkpoints / "four")


@pytest.mark.slow
def test_one_rank_continues_what_four_began(
    four: World, one: World, checkpoints: Path, make_policy: MakePolicy
) -> None:
    policy = make_policy("qwen3_tied")
    policy.load(checkpoints / "four" / "tied-tp2-pp2-sp")
    policy.update(train_batch(token_batch()), loss_function)
    wanted = one.ranks[0]["qwen3_tied"]["after"]
    assert_close({name: tensor.numpy() for name, tensor in policy.named_weights()}, wanted)


def load_and_count(model: Path, folder: Path, layout: dict[str, Any]) -> int:
    """Bytes that this rank reads to load what all ranks have saved."""
    config = run_config(model, **layout)
    ranks = distributed.initialise(config.trainer.tensor_parallel, config.trainer.pipeline_parallel)
    policy = MegatronPolicy(config, ranks)
    save(policy, folder)
    ranks.barrier()
    before = bytes_read()
    policy.load(folder)
    return bytes_read() - before


def bytes_read() -> int:
    """By this process so far, as system calls count them."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes are counted by Linux")
@pytest.mark.parametrize("layout", [{}, {"distributed_optimizer": False}, {"tensor_parallel": 2}], ids=str)
def test_a_resume_reads_a_checkpoint_once_however_many_replicas_there_are(
    layout: dict[str, Any], tmp_path: Path
) -> None:
    model = build_hf_model(
        tmp_path / "model",
        "qwen2",
        vocab_size=8000,
        hidden_size=256,
        num_attention_heads=8,
        intermediate_size=1024,
    )
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    num_bytes = sum(run_ranks(load_and_count, 4, model=model, folder=folder, layout=layout))
    assert num_bytes <= 1.3 * size_of(folder)


def test_a_reference_that_is_not_asked_for_is_left_as_it_is(make_policy: MakePolicy, tmp_path: Path) -> None:
    batch = train_batch(token_batch())
    policy = make_policy()
    policy.update(batch, loss_function)
    save(policy, tmp_path / "saved")
    saved = dict(policy.named_weights())
    other = make_policy()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.01)
    other.adopt_as_reference()
    reference = reference_logprobs(other, batch.tokens)
    other.load(tmp_path / "saved", reference=False)
    assert all(torch.equal(saved[name], tensor) for name, tensor in other.named_weights())
    assert np.array_equal(reference_logprobs(other, batch.tokens), reference)
    assert other.num_updates == 1


def test_moments_that_were_deleted_are_zero_and_all_else_is_as_saved(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    batch = train_batch(token_batch())
    policy = make_policy()
    policy.update(batch, loss_function)
    save(policy, tmp_path / "saved")
    whole = size_of(tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved" / "moments")
    (tmp_path / "saved" / "without_moments").touch()
    assert size_of(tmp_path / "saved") < 0.55 * whole
    other = make_policy()
    other.update(batch, loss_function)
    other.load(tmp_path / "saved")
    save(other, tmp_path / "again")
    policy.reset_optimizer()
    save(policy, tmp_path / "reset")
    assert_same_contents(tmp_path / "again", tmp_path / "reset")
    assert checkpoint.read_manifest(tmp_path / "again").optimizer_step == 0


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_sgd_saves_no_moments_and_what_goes_on_with_adam_begins_them(
    lora: LoraConfig | None, make_policy: MakePolicy, tmp_path: Path
) -> None:
    batch, sgd = train_batch(token_batch()), {"optimizer": Optimizer.sgd, "learning_rate": 0.1, "lora": lora}
    policy, other, adam = make_policy(**sgd), make_policy(**sgd), make_policy(lora=lora)
    for each in (policy, adam):
        each.update(batch, loss_function)
    save(policy, tmp_path / "saved")
    assert not (tmp_path / "saved" / "moments").exists()
    for each in (other, adam):
        each.load(tmp_path / "saved")
    save(adam, tmp_path / "of adam")
    assert checkpoint.read_manifest(tmp_path / "of adam").optimizer_step == 0
    moments = [tensor for key, tensor in contents(tmp_path / "of adam").items() if "exp_avg" in key]
    assert moments
    assert not any(tensor.any() for tensor in moments)
    reports = [each.update(batch, loss_function) for each in (policy, other)]
    assert reports[0].loss == reports[1].loss
    other.load(tmp_path / "of adam")
    other.update(batch, loss_function)
    wanted = dict(policy.named_weights())
    assert all(torch.equal(wanted[name], tensor) for name, tensor in other.named_weights())


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_a_save_is_of_the_moment_it_began(make_policy: MakePolicy, tmp_path: Path) -> None:
    """Training goes on in place while the files are written."""
    batch = train_batch(token_batch())
    policy = make_policy()
    policy.update(batch, loss_function)
    save(policy, tmp_path / "at once")
    pending = policy.begin_save(tmp_path / "later")
    policy.update(batch, loss_function)
    policy.adopt_as_reference()
    policy.reset_optimizer()
    files = pending.write()
    pending.finish()
    assert_same_contents(tmp_path / "at once", tmp_path / "later")
    assert {file.parent for file in files} == {tmp_path / "later", tmp_path / "later" / "moments"}
    assert all(file.stat().st_size for file in files)
    save(policy, tmp_path / "now")
    assert not torch.equal(
        contents(tmp_path / "now")["output_layer.weight"], contents(tmp_path / "later")["output_layer.weight"]
    )


def test_fp8_scales_come_back_where_there_are_some(
    make_policy: MakePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Transformer Engine's modules keep them, which do not run here: local ones are made to."""
    policy = make_policy()
    save(policy, tmp_path / "none")
    assert "extra" not in checkpoint.read_manifest(tmp_path / "none").contents
    scales: dict[int, torch.Tensor] = {}
    layer = type(policy.model.decoder.layers[0].mlp.linear_fc2)
    modules = [module for module in policy.model.modules() if isinstance(module, layer)]
    numbers = {id(module): index for index, module in enumerate(modules)}
    monkeypatch.setattr(
        layer, "get_extra_state", lambda self: torch.tensor([7, numbers[id(self)]], dtype=torch.uint8)
    )
    monkeypatch.setattr(
        layer, "set_extra_state", lambda self, state: scales.update({numbers[id(self)]: state})
    )
    monkeypatch.setattr(policy.model.config, "fp8", "hybrid")
    monkeypatch.setattr(policy.model.config, "fp8_recipe", "delayed")
    save(policy, tmp_path / "some")
    policy.load(tmp_path / "some")
    assert {number: state.tolist() for number, state in scales.items()} == {
        number: [7, number] for number in numbers.values()
    }
    scales.clear()
    monkeypatch.setattr(policy.model.config, "fp8_recipe", "tensorwise")
    policy.load(tmp_path / "some")
    policy.load(tmp_path / "none")
    assert not scales, "of another recipe, or of none"


def test_the_reference_hash_sees_one_bit(make_policy: MakePolicy) -> None:
    policy = make_policy()
    before = policy.reference_hash()
    assert before == make_policy().reference_hash()
    with torch.no_grad():
        next(policy.model.parameters()).view(torch.int32).view(-1)[3] ^= 1
    assert policy.reference_hash() == before, "it is not of the policy"
    policy.adopt_as_reference()
    assert policy.reference_hash() != before


def test_a_save_copies_each_tensor_once_and_the_reference_not_at_all(
    make_policy: MakePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the part of the reference that Megatron stores in halves. A GPU is waited for once: until then the
    copies, made as late as it might, hold NaN."""
    policy, waits = make_policy(), []
    policy.update(train_batch(token_batch()), loss_function)
    policy.reference_hash()
    save(policy, tmp_path / "at once")
    with CopiedBytes(late=True) as copied:
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(copied.arrive()))
        pending = policy.begin_save(tmp_path / "saved")
    pending.write()
    pending.finish()
    assert_same_contents(tmp_path / "at once", tmp_path / "saved")
    weights = dict(policy.model.named_parameters())
    halved = sum(weight.nbytes for name, weight in weights.items() if "linear_fc1.weight" in name)
    assert halved > 0
    written = 3 * sum(weight.nbytes for weight in weights.values())
    assert waits == [written]
    assert copied.total <= written + halved + 64_000


def test_copies_get_the_memory_of_a_save_that_is_written_and_of_no_other(
    make_policy: MakePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, made = train_batch(token_batch()), []
    policy, other = make_policy(), make_policy()
    policy._copies = Copies(keep=True)
    begin = policy._copies.begin

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        made.append(begin(tensor))
        return made[-1]

    monkeypatch.setattr(policy._copies, "begin", noted)
    addresses, pending = [], []
    for index in range(3):
        for each in (policy, other):
            each.update(batch, loss_function)
        save(other, tmp_path / f"at once {index}")
        pending.append(policy.begin_save(tmp_path / f"later {index}"))
        addresses.append({tensor.data_ptr() for tensor in made})
        made.clear()
        if index == 1:  # neither was written before
            for one in pending:
                one.write()
    pending[2].write()
    for index, one in enumerate(pending):
        one.finish()
        assert_same_contents(tmp_path / f"at once {index}", tmp_path / f"later {index}")
    assert not addresses[0] & addresses[1]
    assert addresses[2] <= addresses[0] | addresses[1]


def test_a_full_disk_in_the_middle_of_a_real_save(hf_models: dict[str, Path], tmp_path: Path) -> None:
    """Files may not grow beyond a limit, as on a disk that is full: within the tensors, or at once. The process ends
    by itself after its saves."""
    limits = (40_000, 400_000)
    done = run_script(FULL_DISK, hf_models["qwen2"], tmp_path, *limits)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert len(printed) == 3 * len(limits)
    for limit, left, sentence, found in zip(limits, printed[::3], printed[1::3], printed[2::3], strict=True):
        assert left == "left: []", "space that the rest of the run needs is free before the failure is told"
        assert re.fullmatch(
            r"checkpoint step-00000002-main could not be saved in \S+: \[Errno 27\] File too large.*; "
            r"\S+step-00000001-main is whole\.",
            sentence,
        ), sentence
        assert found == "step-00000001-main"
        (kept,) = (tmp_path / str(limit) / "checkpoints").iterdir()
        assert kept.name == found
        assert (kept / "policy" / "policy.json").is_file()


def save_and_count(model: Path, folder: Path) -> list[int]:
    """Numbers of reductions of two saves, of which the second sends little at a time, and of parameters."""
    ranks, counts = distributed.initialise(1, 1), []
    policy = MegatronPolicy(run_config(model), ranks)
    policy.update(train_batch(token_batch()), loss_function)
    for limit in (checkpoint.BATCH_ELEMENTS, 3000):
        with (
            mock.patch.object(torch.distributed, "reduce", wraps=torch.distributed.reduce) as reduce,
            mock.patch.object(checkpoint, "BATCH_ELEMENTS", limit),
        ):
            save(policy, folder / str(limit))
        counts.append(reduce.call_count)
    return [*counts, len(list(policy.model.parameters()))]


@pytest.mark.slow
def test_replicas_bring_together_many_parameters_at_once(hf_models: dict[str, Path], tmp_path: Path) -> None:
    found = run_ranks(save_and_count, 2, model=hf_models["qwen2"], folder=tmp_path)
    few, many, num_parameters = found[0]
    assert found[1] == found[0]
    assert few == 2 * 2, "for each moment and rank"
    assert few < many < 2 * num_parameters
    assert_same_contents(*tmp_path.iterdir())


def save_without_the_folder_of_moments(model: Path, folder: Path) -> list[bool]:
    ranks = distributed.initialise(1, 1)
    pending = MegatronPolicy(run_config(model), ranks).begin_save(folder)
    pending.write()
    ranks.barrier()
    if ranks.layout.is_main:
        shutil.rmtree(folder / "moments")
    has_failed = False
    try:
        pending.finish()
    except OSError:
        has_failed = True
    return ranks.gather(has_failed)


@pytest.mark.slow
def test_a_failure_of_the_main_rank_keeps_no_other_rank_waiting(
    hf_models: dict[str, Path], tmp_path: Path
) -> None:
    found = run_ranks(
        save_without_the_folder_of_moments, 2, timeout_s=90.0, model=hf_models["qwen2"], folder=tmp_path
    )
    assert found == [[True, False]] * 2


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


FULL_DISK = """
from nemo_prorl.engines import environment; environment.prepare()
import resource
import sys
from pathlib import Path
from nemo_prorl.config import CheckpointCallbackParams
from nemo_prorl.distributed import initialise
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.training.checkpoint import CheckpointNotSaved, CheckpointWriter
from nemo_prorl.types import RunState
from tests.engines.megatron.helpers import run_config
model, folder, *limits = sys.argv[1:]
ranks = initialise(1, 1)
policy = MegatronPolicy(run_config(Path(model)), ranks)
_, unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
for limit in limits:
    run = Path(folder, limit)
    run.mkdir()
    writer = CheckpointWriter(
        run, model_dir=Path(model), params=CheckpointCallbackParams(), ranks=ranks, provenance={}
    )
    writer.save(policy, RunState(stage="main", step=1))
    writer.finish()
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), unlimited))
    try:
        writer.save(policy, RunState(stage="main", step=2))
        writer._saving.thread.join()
        print("left:", list(run.rglob(".writing-*/policy/**/*.distcp")))
        writer.finish()
    except CheckpointNotSaved as reason:
        print(reason)
    resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    print(*[checkpoint.path.name for checkpoint in find_checkpoints(run)])
"""


def run_script(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Without a __main__ guard, which Megatron's own writer could not bear."""
    job = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=400,
        cwd=Path(__file__).resolve().parents[3],
        env={name: value for name, value in os.environ.items() if name not in job},
    )
