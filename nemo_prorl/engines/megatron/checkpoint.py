"""Megatron's distributed checkpoints: written from one layout, read into any other.

    DIRECTORY/
        policy.json     what is inside, written last: a folder without it is no checkpoint
        ...             Megatron's shards: weights, and unless it was imported optimizer, reference, random states

Keys are Megatron's Transformer Engine names whichever layers are in use. The optimizer is stored parameter by
parameter: whether it is sharded over replicas makes no difference.
"""

from __future__ import annotations

import json
import queue
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from nemo_prorl.engines.megatron import optimizer_state
from nemo_prorl.engines.megatron.check import CHECKPOINT_MARK
from nemo_prorl.engines.megatron.core import (
    MegatronOptimizer,
    ShardedObject,
    dist_checkpointing,
    filesystem_async,
    get_cuda_rng_tracker,
    parallel_state,
)

MAIN = "main"
"""The optimizer's fp32 copy of a 16-bit weight, stored beside its moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of policy.json. `world_size` and the two sizes after it: the layout whose random states it holds."""

    precision: str
    contents: list[str]
    num_updates: int = 0
    optimizer_step: int = 0
    world_size: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a policy saves beside its weights."""

    optimizer: MegatronOptimizer
    reference: dict[str, torch.Tensor]
    """CPU copies of the local weights, by parameter name."""
    num_updates: int


def is_checkpoint(directory: Path) -> bool:
    """Is there a whole checkpoint in this folder?"""
    return (directory / CHECKPOINT_MARK).is_file()


def read_manifest(directory: Path) -> Manifest:
    """Raises FileNotFoundError if the folder holds no whole checkpoint."""
    return Manifest(**json.loads((directory / CHECKPOINT_MARK).read_text()))


def save(directory: Path, model: torch.nn.Module, trained: Trained | None = None) -> None:
    """Collective over all ranks. `directory` is made if need be, and must be visible to all of them."""
    weights = _sharded_weights(model)
    state: dict[str, Any] = {"weights": weights}
    manifest = Manifest(precision=_precision(model), contents=["weights"])
    if trained is not None:
        state["reference"] = _with_data("reference", weights, trained.reference)
        for part, tensors in _optimizer_tensors(trained.optimizer, model).items():
            state[part] = _with_data(f"optimizer.{part}", weights, tensors)
        state["random"] = _random_state()
        manifest = Manifest(
            precision=manifest.precision,
            contents=sorted(state),
            num_updates=trained.num_updates,
            optimizer_step=optimizer_state.get_step(trained.optimizer),
            **_layout(),
        )
    if dist.get_rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / CHECKPOINT_MARK).unlink(missing_ok=True)
    dist.barrier()
    with _writing_in_this_process():
        dist_checkpointing.save(state, str(directory))
    if dist.get_rank() == 0:
        (directory / CHECKPOINT_MARK).write_text(json.dumps(asdict(manifest), indent=1))
    dist.barrier()


def load_weights(directory: Path, model: torch.nn.Module) -> None:
    """Collective over all ranks."""
    _zero_padding(model)
    weights = _sharded_weights(model)
    _copy_into(dict(model.named_parameters()), _read(directory, {"weights": weights})["weights"])


def load(
    directory: Path, model: torch.nn.Module, trained: Trained, *, optimizer: bool, reference: bool
) -> int:
    """Collective over all ranks. Fills model and `trained`; returns the number of updates behind the checkpoint, which
    drives the learning rate. Random states come along with the optimizer, if the layout is that of the checkpoint.

    Raises ValueError if the checkpoint lacks what is asked for.
    """
    manifest = read_manifest(directory)
    for wanted, part in ((optimizer, "exp_avg"), (reference, "reference")):
        if wanted and part not in manifest.contents:
            raise ValueError(
                f"{directory} holds weights only: load it without optimizer and without reference."
            )
    weights = _sharded_weights(model)
    state: dict[str, Any] = {"weights": weights}
    if reference:
        state["reference"] = _with_data("reference", weights, trained.reference)
    parts = {}
    if optimizer:
        parts = _optimizer_tensors(trained.optimizer, model, empty=True)
        parts = {part: tensors for part, tensors in parts.items() if part in manifest.contents}
        state.update({part: _with_data(f"optimizer.{part}", weights, t) for part, t in parts.items()})
        if all(getattr(manifest, key) == value for key, value in _layout().items()):
            state["random"] = _random_state()
    loaded = _read(directory, state)
    _copy_into(dict(model.named_parameters()), loaded["weights"])
    trained.optimizer.reload_model_params()
    if reference:
        _copy_into(trained.reference, loaded["reference"])
    if optimizer:
        _fill_optimizer(trained.optimizer, model, {part: loaded[part] for part in parts})
        optimizer_state.set_step(trained.optimizer, manifest.optimizer_step)
        if "random" in loaded:
            _restore_random_state(loaded["random"])
    return manifest.num_updates


def _read(directory: Path, state: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = dist_checkpointing.load(state, str(directory))
    return loaded


def _sharded_weights(model: torch.nn.Module) -> dict[str, Any]:
    """By parameter name: where each local shard lies in the whole. Transformer Engine's extra states are left out:
    local layers have none, and FP8 scales are found again within a step."""
    sharded = model.sharded_state_dict()  # type: ignore[operator]
    return {name: sharded[name] for name, _ in model.named_parameters()}


def _with_data(
    prefix: str, weights: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """The same places for other tensors."""
    placed = {}
    for name, tensor in tensors.items():
        changes: dict[str, Any] = {"key": f"{prefix}.{weights[name].key}", "data": tensor}
        if hasattr(weights[name], "dtype"):
            changes["dtype"] = tensor.dtype
        placed[name] = replace(weights[name], **changes)
    return placed


def _copy_into(targets: Mapping[str, torch.Tensor], sources: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(sources[name])


def _zero_padding(model: torch.nn.Module) -> None:
    """Rows of a padded vocabulary that the checkpoint may not have: never read, but they should not be garbage."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
                parameter.zero_()


def _optimizer_tensors(
    optimizer: MegatronOptimizer, model: torch.nn.Module, *, empty: bool = False
) -> dict[str, dict[str, torch.Tensor]]:
    """{"exp_avg" | "exp_avg_sq" | "main": {parameter name: CPU tensor of the parameter's shape}}. Parts that other
    replicas hold are fetched from them; with `empty` there are zeros instead, to load into."""
    slots = optimizer_state.slots(optimizer, model)
    has_copies = any(p.dtype != torch.float32 for p in model.parameters())
    parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in optimizer_state.MOMENTS}
    if has_copies:
        parts[MAIN] = {}
    for name, parameter in model.named_parameters():
        for part, tensors in parts.items():
            whole = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
            slot = slots.get(name)
            if slot is not None and not empty:
                _part_of(whole, slot).copy_(_tensor(slot, part).view(-1))
            if not empty and any(s.span is not None for s in slots.values()):
                dist.all_reduce(whole, group=parallel_state.get_data_parallel_group())
            tensors[name] = whole.cpu()
    return parts


def _fill_optimizer(
    optimizer: MegatronOptimizer, model: torch.nn.Module, parts: Mapping[str, Mapping[str, torch.Tensor]]
) -> None:
    with torch.no_grad():
        for name, slot in optimizer_state.slots(optimizer, model).items():
            for part, tensors in parts.items():
                _tensor(slot, part).view(-1).copy_(_part_of(tensors[name], slot))


def _tensor(slot: optimizer_state.Slot, part: str) -> torch.Tensor:
    tensor: torch.Tensor = slot.main.data if part == MAIN else slot.state[part]
    return tensor


def _part_of(whole: torch.Tensor, slot: optimizer_state.Slot) -> torch.Tensor:
    return whole.view(-1) if slot.span is None else whole.view(-1)[slot.span]


def _precision(model: torch.nn.Module) -> str:
    return "fp32" if all(p.dtype == torch.float32 for p in model.parameters()) else "bf16"


def _layout() -> dict[str, int]:
    return {
        "world_size": dist.get_world_size(),
        "tensor_parallel": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_parallel": parallel_state.get_pipeline_model_parallel_world_size(),
    }


def _random_state() -> ShardedObject:
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(),
        "megatron": get_cuda_rng_tracker().get_states(),
    }
    return ShardedObject("random", state, (dist.get_world_size(),), (dist.get_rank(),), replica_id=0)


def _restore_random_state(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.cuda.set_rng_state(state["cuda"])
    torch.set_rng_state(state["torch"])
    get_cuda_rng_tracker().set_states(state["megatron"])


@contextmanager
def _writing_in_this_process() -> Iterator[None]:
    """Megatron writes from forked processes and hears of them through a manager process, which it starts by importing
    the main script again and never ends, so that the interpreter hangs at exit. Forks of a process with CUDA, gloo and
    vLLM in it are better avoided altogether: each rank writes its own shards, here."""
    writer = filesystem_async.FileSystemWriterAsync
    originals = writer.__dict__["write_preloaded_data_multiproc"], filesystem_async._get_write_results_queue

    def write(
        transforms: list[Any], _use_msc: bool, _rank: int, buckets: list[Any], results: queue.SimpleQueue[Any]
    ) -> None:
        written: dict[int, Any] = {}
        for index, bucket in enumerate(buckets):
            outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
            pending: queue.Queue[int] = queue.Queue()
            pending.put(index)
            writer.write_preloaded_data(transforms, index, bucket, outcomes, pending, use_fsync=True)
            _, written[index] = outcomes.get()
        failures = [outcome for outcome in written.values() if isinstance(outcome, Exception)]
        results.put(failures[0] if failures else written)

    writer.write_preloaded_data_multiproc = staticmethod(write)
    filesystem_async._get_write_results_queue = queue.SimpleQueue
    try:
        yield
    finally:
        writer.write_preloaded_data_multiproc, filesystem_async._get_write_results_queue = originals
