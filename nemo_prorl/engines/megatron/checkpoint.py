"""Saves and loads a policy as a Megatron distributed checkpoint, which any layout can load.

    DIRECTORY/
        policy.json     the manifest, written last: a folder without it is no checkpoint
        ...             Megatron's shards: weights; unless it was imported, also optimizer, reference, random states
        moments/        Adam's moments, if there are any; they may be deleted (run_folder/checkpoints.py)

Keys are the names of Megatron's Transformer Engine layers, whichever layers are in use. The optimizer's state is stored
per parameter, so it does not matter whether it was sharded over replicas.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from nemo_prorl.config import ConfigError
from nemo_prorl.engines.megatron import core, optimizer_state
from nemo_prorl.engines.megatron.check import CHECKPOINT_MARK
from nemo_prorl.engines.megatron.core import parallel_state
from nemo_prorl.engines.megatron.families import Architecture, Split
from nemo_prorl.engines.megatron.pinned import Copies
from nemo_prorl.engines.megatron.shards import Save, ShardReader
from nemo_prorl.engines.megatron.trainable import Trainable
from nemo_prorl.engines.megatron.weights import whole_parameters
from nemo_prorl.run_folder.checkpoints import MOMENTS_FOLDER, WITHOUT_MOMENTS

BATCH_ELEMENTS = 2**26
"""Elements of the optimizer's state that are sent at once, 256 MiB."""
MAIN = "main"
"""Name of the optimizer's fp32 copy of a 16-bit weight, which is saved like a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of policy.json. contents: names of the saved parts. num_updates: updates that determine the learning
    rate. optimizer_step: updates since the moments were last 0. world_size and the next two: the layout that saved it.
    fp8: the recipe whose scaling factors were saved, if any. lora: rank, scale and targets of the saved factors; empty
    if all weights were trained."""

    precision: str
    contents: list[str]
    num_updates: int = 0
    optimizer_step: int = 0
    world_size: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    fp8: str = ""
    lora: dict[str, Any] = field(default_factory=dict)


def is_checkpoint(directory: Path) -> bool:
    """Returns whether the folder holds a complete checkpoint."""
    return (directory / CHECKPOINT_MARK).is_file()


def read_manifest(directory: Path) -> Manifest:
    """Returns the manifest. Raises FileNotFoundError if the folder holds no complete checkpoint."""
    return Manifest(**json.loads((directory / CHECKPOINT_MARK).read_text()))


def begin_save(
    directory: Path,
    model: torch.nn.Module,
    trainable: Trainable,
    reference: Mapping[str, torch.Tensor],
    num_updates: int,
    copies: Copies,
) -> Save:
    """Copies the whole state to host memory, and returns the copy, which is still to be written to `directory`, a
    folder that all ranks see. Collective over all ranks.

    Each rank copies only what it will write, because replicas divide the parameters among themselves. The reference is
    not copied: it is in host memory already, where only `load` writes to it. reference: CPU copies of the local
    weights, by parameter name. copies: gets the memory back when all has been written.
    """
    made: list[torch.Tensor] = []

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        copy = copies.begin(tensor)
        if copies.keep:
            made.append(copy)
        return copy

    weights = _sharded_weights(model)
    writers = _sharing(model)
    state: dict[str, Any] = {
        "weights": _to_write("", weights, _parameters(model).items(), writers, copied),
        "reference": _to_write("reference.", weights, reference.items(), writers),
        "random": _random_state(),
    }
    optimizer, module, places = trainable.optimizer, trainable.module, trainable.places()
    if trainable.lora:
        writers = _sharing(module)
        state["lora"] = _to_write("", places, _parameters(module).items(), writers, copied)
    for part in _parts(optimizer, module):
        states = _whole_states(optimizer, module, part, writers)
        state[part] = _to_write(f"optimizer.{part}.", places, states, writers, copied)
    extra = _extra_states(model)
    if any(_has_content(entry.data) for entry in extra.values()):
        state["extra"] = extra
    manifest = Manifest(
        precision=_precision(model),
        fp8=_fp8_recipe(model) if "extra" in state else "",
        contents=sorted(state),
        num_updates=num_updates,
        optimizer_step=optimizer_state.get_step(optimizer),
        lora=trainable.lora,
        **_layout(),
    )
    torch.cuda.synchronize()  # the copies are complete
    moments = {part: state.pop(part) for part in optimizer_state.moments_of(optimizer)}
    folder = directory / MOMENTS_FOLDER if moments else directory
    folder.mkdir(parents=True, exist_ok=True)
    beside = Save(folder, moments, {}) if moments else None
    return Save(directory, state, asdict(manifest), beside, partial(copies.give_back, made))


def save_weights(directory: Path, model: torch.nn.Module) -> None:
    """Writes a checkpoint that has only weights, in one process."""
    shards = _to_write("", _sharded_weights(model), _parameters(model).items(), _sharing(model))
    mark = Manifest(precision=_precision(model), contents=["weights"])
    saving = Save(directory, {"weights": shards}, asdict(mark))
    saving.write()
    saving.finish()


def read_whole(
    directory: Path, architecture: Architecture, *, main: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Returns an iterator over every full tensor with its Hugging Face name, which reads a layer at a time, in one
    process and without a model.

    main: read the optimizer's fp32 copies of the weights, if the checkpoint has them. Raises ConfigError, before
    anything is read, if the checkpoint is of another model.
    """
    reader = ShardReader(directory)
    prefix = f"optimizer.{MAIN}." if main and MAIN in read_manifest(directory).contents else ""
    parameters = list(whole_parameters(architecture))
    for parameter in parameters:
        wanted = parameter.shape(architecture)
        if parameter.layer is not None:
            wanted = (architecture.num_layers, *wanted)
        found = reader.shape(prefix + parameter.key)
        if found and parameter.split is Split.vocab and found[0] >= wanted[0]:  # padded
            found = (wanted[0], *found[1:])
        if found != wanted:
            raise ConfigError(
                f"{directory} holds {parameter.key} of shape {found}, but its config.json says {wanted}: they "
                "belong to different models."
            )

    def layer_by_layer() -> Iterator[tuple[str, torch.Tensor]]:
        for _, layer in itertools.groupby(parameters, key=lambda parameter: parameter.layer):
            of_layer = list(layer)
            tensors = reader.read([(prefix + p.key, p.layer) for p in of_layer])
            for parameter in of_layer:
                yield from parameter.to_hf([tensors.pop(0)], architecture)

    return layer_by_layer()


def load(
    directory: Path,
    model: torch.nn.Module,
    trainable: Trainable,
    reference: Mapping[str, torch.Tensor] | None,
) -> int:
    """Fills the model, the optimizer and, unless it is None, the reference; returns the saved `num_updates`. Collective
    over all ranks. Random states are loaded if the layout is the same. Moments that were deleted become 0."""
    manifest = read_manifest(directory)
    weights, readers = _sharded_weights(model), _sharing(model)
    _load_tensors(directory, "", weights, _parameters(model), readers)
    objects: dict[str, Any] = {}
    if all(getattr(manifest, key) == value for key, value in _layout().items()):
        objects["random"] = _random_state()
    if manifest.fp8 and manifest.fp8 == _fp8_recipe(model):
        objects["extra"] = _extra_states(model)
    loaded = core.dist_checkpointing.load(objects, str(directory)) if objects else {}
    if "extra" in loaded:
        model.load_state_dict(loaded["extra"], strict=False)
    module, places, factor_readers = trainable.module, trainable.places(), _sharing(trainable.module)
    # Other factors' moments are of no use: whoever changes lora.* resets the policy next, which begins new ones.
    is_same = manifest.lora == trainable.lora
    if reference is not None:
        _load_tensors(directory, "reference.", weights, reference, readers)
        if trainable.lora and is_same:
            _load_tensors(directory, "", places, _parameters(module), factor_readers)
    trainable.optimizer.reload_model_params()
    optimizer_state.reset(trainable.optimizer)
    has_moments = not (directory / WITHOUT_MOMENTS).exists()
    for part in _parts(trainable.optimizer, module):
        is_moment = part in optimizer_state.MOMENTS
        if part in manifest.contents and is_same and (has_moments or not is_moment):
            folder = directory / MOMENTS_FOLDER if is_moment else directory
            _load_part(folder, trainable.optimizer, module, part, places, factor_readers)
    if is_same and has_moments:
        optimizer_state.set_step(trainable.optimizer, manifest.optimizer_step)
    if "random" in loaded:
        state = loaded["random"]
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.cuda.set_rng_state(state["cuda"])
        torch.set_rng_state(state["torch"])
        core.get_cuda_rng_tracker().set_states(state["megatron"])
    return manifest.num_updates


def _load_tensors(
    directory: Path,
    prefix: str,
    weights: Mapping[str, Any],
    targets: Mapping[str, torch.Tensor],
    readers: Mapping[str, int],
) -> None:
    """Fills `targets`, the local shards by parameter name. One replica reads each and broadcasts it. Collective."""
    mine = {name: tensor for name, tensor in targets.items() if readers[name] == _replica()}
    read = _read_mine(directory, prefix, weights, mine)
    with torch.no_grad():
        for name, target in mine.items():
            # Megatron does not read in place what it stores in parts: they are joined in other memory.
            if target.data_ptr() != read[name].data_ptr():
                target.copy_(read[name])
        for name, target in targets.items():
            target.copy_(_broadcast(target.detach(), readers[name]))


def _load_part(
    directory: Path,
    optimizer: core.MegatronOptimizer,
    model: torch.nn.Module,
    part: str,
    weights: Mapping[str, Any],
    readers: Mapping[str, int],
) -> None:
    """Fills one part of the optimizer's state, such as a moment, of which this rank may hold only pieces. One replica
    reads each whole, and needs memory for all that it reads, in fp32. Collective over all ranks."""
    slots = optimizer_state.slots(optimizer, model)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    mine = {name: torch.zeros(shapes[name]) for name in shapes if readers[name] == _replica()}
    mine = _read_mine(directory, f"optimizer.{part}.", weights, mine)
    for name, shape in shapes.items():
        whole = _broadcast(mine.pop(name, torch.empty(shape)), readers[name])
        if (slot := slots.get(name)) is not None:
            _tensor(slot, part).view(-1).copy_(_held_span(whole, slot))


def _read_mine(
    directory: Path, prefix: str, weights: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns the tensors that this replica reads for all others, most of them in place. Collective."""
    places = _with_data(prefix, weights, tensors)
    for name, place in places.items():
        places[name] = replace(place, replica_id=(*place.replica_id[:-1], 0))  # no other replica reads it
    return core.dist_checkpointing.load({"tensors": places}, str(directory)).get("tensors", {})


def _broadcast(tensor: torch.Tensor, reader: int) -> torch.Tensor:
    """Returns replica `reader`'s tensor; the others pass one of its shape. Collective, from GPU to GPU if there are
    any."""
    group = parallel_state.get_data_parallel_group()
    if group.size() > 1:
        tensor = tensor.cuda() if torch.cuda.is_available() else tensor.contiguous()
        dist.broadcast(tensor, dist.get_global_rank(group, reader), group=group)
    return tensor


def _precision(model: torch.nn.Module) -> str:
    is_fp32 = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return "fp32" if is_fp32 else "bf16"


def _parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _replica() -> int:
    """Returns the index of this rank's replica."""
    return parallel_state.get_data_parallel_rank()


def _sharded_weights(model: torch.nn.Module) -> dict[str, Any]:
    """Returns parameter name -> description of the local shard: its key and its place in the whole tensor."""
    sharded = model.sharded_state_dict()  # type: ignore[operator]
    return {name: sharded[name] for name, _ in model.named_parameters()}


def _extra_states(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the extra states of Transformer Engine's modules by name: FP8 scaling factors and their history. They are
    empty until a pass has run in FP8."""
    sharded = model.sharded_state_dict()  # type: ignore[operator]
    return {name: entry for name, entry in sharded.items() if name.endswith("_extra_state")}


def _has_content(extra: Any) -> bool:
    if isinstance(extra, torch.Tensor):
        return extra.numel() > 0
    return extra is not None and extra.getbuffer().nbytes > 0


def _fp8_recipe(model: torch.nn.Module) -> str:
    config: Any = model.config
    return str(config.fp8_recipe) if config.fp8 else ""


def _with_data(
    prefix: str, weights: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Returns descriptions with the same places as `weights` for other tensors, with `prefix` before their keys."""
    placed = {}
    for name, tensor in tensors.items():
        changes: dict[str, Any] = {"key": prefix + weights[name].key, "data": tensor}
        if hasattr(weights[name], "dtype"):
            changes["dtype"] = tensor.dtype
        placed[name] = replace(weights[name], **changes)
    return placed


def _sharing(model: torch.nn.Module) -> dict[str, int]:
    """Returns parameter name -> the replica that writes or reads it, balanced by the number of elements."""
    loads = [0] * parallel_state.get_data_parallel_world_size()
    sharing = {}
    for name, parameter in sorted(model.named_parameters(), key=lambda entry: -entry[1].numel()):
        sharing[name] = loads.index(min(loads))
        loads[sharing[name]] += parameter.numel()
    return sharing


def _to_write(
    prefix: str,
    weights: Mapping[str, Any],
    tensors: Iterable[tuple[str, torch.Tensor]],
    writers: Mapping[str, int],
    copied: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.cpu,
) -> dict[str, Any]:
    """Returns the shards by parameter name: in host memory those that this rank is to write, and on the meta device
    those that other ranks write. copied: gives what is to be written, by default the tensor itself if it is in host
    memory already."""
    replica, num_replicas = _replica(), parallel_state.get_data_parallel_world_size()

    def to_host(shard: Any) -> Any:
        is_other_ranks = any(shard.replica_id)
        shard.data = shard.data.to("meta") if is_other_ranks else copied(shard.data)
        return shard

    placed: dict[str, Any] = {}
    for name, tensor in tensors:
        *in_replica, _ = weights[name].replica_id  # index among pipeline stages and tensor-parallel ranks
        replica_id = (*in_replica, (replica - writers[name]) % num_replicas)
        shards = _with_data(prefix, {name: replace(weights[name], replica_id=replica_id)}, {name: tensor})
        # Tensors that Megatron stores in parts are split before the copy; otherwise each part would be copied again.
        core.apply_factories(shards)
        placed |= core.dict_list_map_inplace(to_host, shards)
    return placed


def _parts(optimizer: core.MegatronOptimizer, model: torch.nn.Module) -> list[str]:
    """Returns the names of the tensors that the optimizer keeps for each parameter."""
    return [*optimizer_state.moments_of(optimizer), *([MAIN] if _precision(model) != "fp32" else [])]


def _whole_states(
    optimizer: core.MegatronOptimizer, model: torch.nn.Module, part: str, writers: Mapping[str, int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields one part of the optimizer's state for each parameter, in the parameter's shape. A state that is sharded
    over replicas is complete only on the replica that writes it. Collective among replicas."""
    slots = optimizer_state.slots(optimizer, model)
    group = parallel_state.get_data_parallel_group()
    parameters = dict(model.named_parameters())
    # A rank of a sharded optimizer may have no slot.
    if slots and all(slot.span is None for slot in slots.values()):
        yield from ((name, _tensor(slot, part)) for name, slot in slots.items())
        return
    for names in _batches(parameters, writers):
        sizes = [parameters[name].numel() for name in names]
        batch = torch.zeros(sum(sizes), dtype=torch.float32, device=parameters[names[0]].device)
        for name, whole in zip(names, batch.split(sizes), strict=True):
            if name in slots:
                _held_span(whole, slots[name]).copy_(_tensor(slots[name], part).view(-1), non_blocking=True)
        # Added as integers to the other replicas' zeros, every bit stays the same.
        dist.reduce(batch.view(torch.int32), dist.get_global_rank(group, writers[names[0]]), group=group)
        for name, whole in zip(names, batch.split(sizes), strict=True):
            yield name, whole.view(parameters[name].shape)


def _batches(parameters: Mapping[str, torch.Tensor], writers: Mapping[str, int]) -> Iterator[list[str]]:
    """Yields names of parameters that the same replica writes, of at most BATCH_ELEMENTS elements unless it is one."""
    batch: list[str] = []
    num_elements = 0
    for name in sorted(parameters, key=writers.__getitem__):
        num_elements += parameters[name].numel()
        if batch and (writers[name] != writers[batch[0]] or num_elements > BATCH_ELEMENTS):
            yield batch
            batch, num_elements = [], parameters[name].numel()
        batch.append(name)
    yield batch


def _tensor(slot: optimizer_state.Slot, part: str) -> torch.Tensor:
    return slot.main.data if part == MAIN else slot.state[part]


def _held_span(whole: torch.Tensor, slot: optimizer_state.Slot) -> torch.Tensor:
    """Returns a flat view of the part of `whole` that this rank's optimizer holds."""
    return whole.view(-1) if slot.span is None else whole.view(-1)[slot.span]


def _layout() -> dict[str, int]:
    return {
        "world_size": dist.get_world_size(),
        "tensor_parallel": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_parallel": parallel_state.get_pipeline_model_parallel_world_size(),
    }


def _random_state() -> core.ShardedObject:
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(),
        "megatron": core.get_cuda_rng_tracker().get_states(),
    }
    return core.ShardedObject("random", state, (dist.get_world_size(),), (dist.get_rank(),), replica_id=0)
