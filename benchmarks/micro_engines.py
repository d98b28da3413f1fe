"""Refit of the sampler and checkpoints, each measured on a model of next to nothing and on a large one with as many
parameters: what a parameter costs, however small, apart from what its content costs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import Figure, measure, split
from random_model import VOCAB, write_random_model

GIB = 1 << 30
NUM_LAYERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of work on engines that stand ready."""

    name: str
    form: str
    run: Callable[[], Any]
    gib: float
    """Size of what is moved."""
    note: str
    num_runs: int = 1
    """At least; the first of a refit is slower, in memory that the process has not had before."""


def fixed_and_per_gib(*, quick: bool, repeats: int) -> Iterator[Figure]:
    """The lines of one piece of work after the other."""
    small = measured(64, 128, repeats)
    large = measured(128 if quick else 768, VOCAB, repeats)
    lines = [
        line
        for (few, few_gib), (many, many_gib) in zip(small, large, strict=True)
        for line in split(few, many, few_gib, many_gib)
    ]
    works = list(dict.fromkeys(line.work for line in lines))
    yield from sorted(lines, key=lambda line: works.index(line.work))


def measured(features: int, vocab_size: int, repeats: int) -> list[tuple[Figure, float]]:
    """All pieces of work, and how many GiB each moves."""
    with engines(features, vocab_size) as (policy, sampler), tempfile.TemporaryDirectory() as scratch:
        return [
            (
                measure("engines", work.name, work.form, work.run, max(repeats, work.num_runs), work.note),
                work.gib,
            )
            for work in [*refit(policy, sampler), *checkpoints(policy, Path(scratch))]
        ]


@contextmanager
def engines(features: int, vocab_size: int) -> Iterator[tuple[Any, Any]]:
    """A policy and a sampler of the same random model."""
    from nemo_prorl import distributed
    from nemo_prorl.config import ModelConfig, Precision, RunConfig, SamplerConfig
    from nemo_prorl.demo.tiny_policy import build_tokenizer
    from nemo_prorl.engines.megatron.policy import MegatronPolicy
    from nemo_prorl.engines.vllm_sampler import VllmSampler

    with tempfile.TemporaryDirectory() as folder:
        write_random_model(Path(folder), features=features, num_layers=NUM_LAYERS, vocab_size=vocab_size)
        run = RunConfig(
            model=ModelConfig(path=folder, precision=Precision.fp32),
            sampler=SamplerConfig(max_prompt_tokens=64, max_response_tokens=192, kv_cache_mib=32),
        )
        ranks = distributed.initialise(1, 1)
        policy, sampler = MegatronPolicy(run, ranks), VllmSampler(run, ranks, build_tokenizer())
        yield policy, sampler
        sampler.close()


def refit(policy: Any, sampler: Any) -> Iterator[Work]:
    """Beside a copy of every weight."""
    weights = [parameter.detach() for parameter in policy.model.parameters()]
    gib = sum(weight.nbytes for weight in weights) / GIB
    note = f"{gib:.2f} GiB in {len(weights)} parameters"
    load = lambda: sampler.load_weights(policy.named_weights(), 1)  # noqa: E731
    yield Work(name="refit", form="ours", run=load, gib=gib, note=note, num_runs=5)
    yield Work(name="refit", form="copies", run=lambda: copies(weights), gib=gib, note=note)


def checkpoints(policy: Any, scratch: Path) -> Iterator[Work]:
    """Beside plain torch of the same tensors: weights, reference and two moments."""
    from nemo_prorl.storage import fingerprints

    tensors, ours, plain = saved_tensors(policy), scratch / "ours", scratch / "plain.pt"
    gib = sum(tensor.nbytes for tensor in tensors.values()) / GIB
    pending: Any = None

    def begin() -> None:
        nonlocal pending
        pending = None  # what it holds goes first
        shutil.rmtree(ours, ignore_errors=True)
        ours.mkdir()
        pending = policy.begin_save(ours)

    def save() -> None:
        begin()
        pending.write()
        pending.finish()

    def save_plainly() -> None:
        with plain.open("wb") as file:
            torch.save(tensors, file)
            os.fsync(file.fileno())

    def load_plainly() -> None:
        for name, tensor in torch.load(plain).items():
            tensors[name].copy_(tensor)

    def files() -> list[Path]:
        return [file for file in ours.rglob("*") if file.is_file()]

    def hash_reference() -> None:
        policy._reference_hash = ""  # else it is known
        policy.reference_hash()

    still, disk, load = (
        "checkpoint: the loop stands still",
        "checkpoint: until it is on disk",
        "checkpoint: load",
    )
    digests, reference = "checkpoint: its files' fingerprints", "hash of the reference"
    note = f"{gib:.2f} GiB in {len(tensors)} tensors"
    for name, form, run in (
        (still, "ours", begin),
        (still, "copies", lambda: copies(list(tensors.values()))),
        (disk, "ours", save),
        (disk, "torch.save and fsync", save_plainly),
        (load, "ours", lambda: policy.load(ours)),
        (load, "torch.load and copies", load_plainly),
        (digests, "ours", lambda: fingerprints(ours, files())),
        (digests, "a read", lambda: [len(file.read_bytes()) for file in files()]),
    ):
        yield Work(name=name, form=form, run=run, gib=gib, note=note)
    gib = sum(tensor.nbytes for tensor in policy._reference.values()) / GIB
    yield Work(name=reference, form="ours", run=hash_reference, gib=gib, note=f"{gib:.2f} GiB")


def saved_tensors(policy: Any) -> dict[str, torch.Tensor]:
    """What a checkpoint holds."""
    from nemo_prorl.engines.megatron.optimizer_state import MOMENTS, slots

    found = {name: parameter.detach() for name, parameter in policy.model.named_parameters()}
    found |= {f"reference.{name}": tensor for name, tensor in policy._reference.items()}
    for name, slot in slots(policy.optimizer, policy.model).items():
        found |= {f"{moment}.{name}": slot.state[moment] for moment in MOMENTS}
    return found


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """In new memory."""
    return [tensor.clone() for tensor in tensors]
