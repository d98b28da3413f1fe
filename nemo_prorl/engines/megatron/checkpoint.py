"""Megatron's distributed checkpoints: written from one layout, read into any other.

    DIRECTORY/
        policy.json     what is inside, written last: a folder without it is no checkpoint
        ...             Megatron's shards: weights, and unless it was imported optimizer, reference, random states

Keys are Megatron's Transformer Engine names whichever layers are in use. The optimizer is stored parameter by
parameter: whether it is sharded over replicas makes no difference.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from nemo_prorl.config import ConfigError, Precision
from nemo_prorl.engines.megatron import optimizer_state
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.engines.megatron.check import CHECKPOINT_MARK
from nemo_prorl.engines.megatron.core import (
    MegatronOptimizer,
    ShardedObject,
    apply_factories,
    dict_list_map_inplace,
    dist_checkpointing,
    get_cuda_rng_tracker,
    parallel_state,
)
from nemo_prorl.engines.megatron.shards import Reader, Save, whole_tensor
from nemo_prorl.engines.megatron.weights import Split, WholeParameter, whole_parameters

MAIN = "main"
"""The optimizer's fp32 copy of a 16-bit weight, stored beside its moments."""


FILE_BYTES = 1 << 30
"""About the size of the files that an import writes, each from memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of policy.json. `world_size` and the two sizes after it: the layout whose random states it holds. `fp8`:
    the recipe whose scales it holds; empty: none."""

    precision: str
    contents: list[str]
    num_updates: int = 0
    optimizer_step: int = 0
    world_size: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    fp8: str = ""


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


def begin_save(directory: Path, model: torch.nn.Module, trained: Trained) -> Save:
    """Collective over all ranks: everything, copied to host memory as it is now. `directory` must be visible to all.

    Each rank copies only what it will write: replicas share the parameters among them. The reference lies in host
    memory already, where nothing but `load` writes to it.
    """
    weights = _sharded_weights(model)
    writers = _sharing(model)
    parameters = ((name, parameter.detach()) for name, parameter in model.named_parameters())
    state: dict[str, Any] = {
        "weights": _to_write("", weights, parameters, writers),
        "reference": _to_write("reference.", weights, trained.reference.items(), writers, copy=False),
        "random": _random_state(),
    }
    for part in _parts(model):
        state[part] = _to_write(
            f"optimizer.{part}.", weights, _whole(trained.optimizer, model, part, writers), writers
        )
    extra = _extra_states(model)
    if any(_has_content(entry.data) for entry in extra.values()):
        state["extra"] = extra
    manifest = Manifest(
        precision=_precision(model),
        fp8=_fp8_recipe(model) if "extra" in state else "",
        contents=sorted(state),
        num_updates=trained.num_updates,
        optimizer_step=optimizer_state.get_step(trained.optimizer),
        **_layout(),
    )
    return Save(directory, state, asdict(manifest))


def save_whole(
    directory: Path, architecture: Architecture, precision: Precision, read: Callable[[str], torch.Tensor]
) -> None:
    """In one process, without a model: a checkpoint to start from, of the Hugging Face tensors that `read` gives, each
    asked for when it is written."""
    dtype = torch.bfloat16 if precision is Precision.bf16 else torch.float32
    parameters = {(p.key, p.layer): p for p in whole_parameters(architecture)}

    def fetch(key: str, offset: tuple[int, ...]) -> torch.Tensor:
        parameter = parameters.get((key, None)) or parameters[key, offset[0]]
        whole = parameter.from_hf([read(name) for name in parameter.hf_names], architecture).to(dtype)
        return whole if parameter.layer is None else whole[None]

    state, num_bytes = {}, 0
    for index, (place, parameter) in enumerate(parameters.items()):
        data = parameter.empty(architecture, dtype)
        data = data if parameter.layer is None else data[None]
        state[str(index)] = whole_tensor(place, architecture.num_layers, data)
        num_bytes += data.nbytes
    mark = Manifest(precision=precision.name, contents=["weights"])
    saving = Save(
        directory,
        {"weights": state},
        asdict(mark),
        fetch=fetch,
        num_files=max(2, math.ceil(num_bytes / FILE_BYTES)),
    )
    saving.write()
    saving.finish()


def read_whole(
    directory: Path, architecture: Architecture, *, main: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """In one process, without a model, a layer at a time: every full tensor under its Hugging Face name.

    `main`: the optimizer's fp32 copies, where the checkpoint has them. Raises ConfigError for one of another model.
    """
    reader = Reader(directory)
    copies = f"optimizer.{MAIN}."
    prefix = copies if main and MAIN in read_manifest(directory).contents else ""
    for _, layer in itertools.groupby(whole_parameters(architecture), key=lambda parameter: parameter.layer):
        parameters = list(layer)
        for parameter in parameters:
            _check_fits(reader.shape(prefix + parameter.key), parameter, architecture, directory)
        tensors = reader.read([(prefix + p.key, p.layer) for p in parameters])
        for parameter in parameters:
            yield from parameter.to_hf(tensors.pop(0), architecture)


def _check_fits(
    found: tuple[int, ...] | None, parameter: WholeParameter, architecture: Architecture, directory: Path
) -> None:
    wanted = tuple(parameter.empty(architecture).shape)
    if parameter.layer is not None:
        wanted = (architecture.num_layers, *wanted)
    if found and parameter.split is Split.vocab and found[0] >= wanted[0]:  # padded
        found = (wanted[0], *found[1:])
    if found != wanted:
        raise ConfigError(
            f"{directory} holds {parameter.key} of shape {found}, but its config.json says {wanted}: they are not of "
            "one model."
        )


def load_weights(directory: Path, model: torch.nn.Module) -> None:
    """Collective over all ranks."""
    _zero_padding(model)
    _load_tensors(directory, "", _sharded_weights(model), _parameters(model), _sharing(model))


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
    weights, readers = _sharded_weights(model), _sharing(model)
    _load_tensors(directory, "", weights, _parameters(model), readers)
    objects: dict[str, Any] = {}
    if optimizer and all(getattr(manifest, key) == value for key, value in _layout().items()):
        objects["random"] = _random_state()
    if manifest.fp8 and manifest.fp8 == _fp8_recipe(model):
        objects["extra"] = _extra_states(model)
    loaded = _read(directory, objects) if objects else {}
    if "extra" in loaded:
        model.load_state_dict(loaded["extra"], strict=False)
    trained.optimizer.reload_model_params()
    if reference:
        _load_tensors(directory, "reference.", weights, trained.reference, readers)
    if optimizer:
        for part in _parts(model):
            if part in manifest.contents:
                _load_part(directory, trained.optimizer, model, part, weights, readers)
        optimizer_state.set_step(trained.optimizer, manifest.optimizer_step)
        if "random" in loaded:
            _restore_random_state(loaded["random"])
    return manifest.num_updates


def _load_tensors(
    directory: Path,
    prefix: str,
    weights: Mapping[str, Any],
    targets: Mapping[str, torch.Tensor],
    readers: Mapping[str, int],
) -> None:
    """Collective: fills `targets`, the local shards by parameter name. One replica reads each and hands it on."""
    mine = {name: tensor for name, tensor in targets.items() if readers[name] == _replica()}
    _copy_into(mine, _read_mine(directory, prefix, weights, mine))
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(_hand_on(target.detach(), readers[name]))


def _load_part(
    directory: Path,
    optimizer: MegatronOptimizer,
    model: torch.nn.Module,
    part: str,
    weights: Mapping[str, Any],
    readers: Mapping[str, int],
) -> None:
    """Collective: fills one part of the optimizer's state, of which this rank may hold only a piece of each parameter.
    Each parameter is read whole by one replica, which needs room for its share of them in fp32."""
    slots = optimizer_state.slots(optimizer, model)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    mine = {name: torch.zeros(shapes[name]) for name in shapes if readers[name] == _replica()}
    mine = _read_mine(directory, f"optimizer.{part}.", weights, mine)
    for name, shape in shapes.items():
        whole = _hand_on(mine.pop(name, torch.empty(shape)), readers[name])
        if (slot := slots.get(name)) is not None:
            _tensor(slot, part).view(-1).copy_(_part_of(whole, slot))


def _read_mine(
    directory: Path, prefix: str, weights: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Collective: what this replica reads for all, most of it into `tensors`."""
    places = _with_data(prefix, weights, tensors)
    for name, place in places.items():
        places[name] = replace(place, replica_id=(*place.replica_id[:-1], 0))  # nobody else reads it
    tensors_read: dict[str, torch.Tensor] = _read(directory, {"tensors": places}).get("tensors", {})
    return tensors_read


def _hand_on(tensor: torch.Tensor, reader: int) -> torch.Tensor:
    """Collective among replicas: the tensor of replica `reader`; the others give one of its shape. It travels by way of
    the GPU where there is one."""
    group = parallel_state.get_data_parallel_group()
    if group.size() > 1:
        tensor = tensor.cuda() if torch.cuda.is_available() else tensor.contiguous()
        dist.broadcast(tensor, dist.get_global_rank(group, reader), group=group)
    return tensor


def _read(directory: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Into the tensors that `state` holds, most of which it returns."""
    loaded: dict[str, Any] = dist_checkpointing.load(state, str(directory))
    return loaded


def _parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _replica() -> int:
    """Index of this rank among those that hold the same shards."""
    return parallel_state.get_data_parallel_rank()


def _sharded_weights(model: torch.nn.Module) -> dict[str, Any]:
    """By parameter name: where each local shard lies in the whole."""
    sharded = model.sharded_state_dict()  # type: ignore[operator]
    return {name: sharded[name] for name, _ in model.named_parameters()}


def _extra_states(model: torch.nn.Module) -> dict[str, Any]:
    """By name: what Transformer Engine's modules keep beside their weights, FP8 scales and their history. It has
    content once a pass has run in FP8; that of local layers never has."""
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
    """The same places for other tensors."""
    placed = {}
    for name, tensor in tensors.items():
        changes: dict[str, Any] = {"key": prefix + weights[name].key, "data": tensor}
        if hasattr(weights[name], "dtype"):
            changes["dtype"] = tensor.dtype
        placed[name] = replace(weights[name], **changes)
    return placed


def _sharing(model: torch.nn.Module) -> dict[str, int]:
    """By parameter name: which replica writes or reads it for all, so that each writes or reads about as much."""
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
    *,
    copy: bool = True,
) -> dict[str, Any]:
    """In host memory what this rank is to write, and the mere shapes of what another replica will."""
    replica, num_replicas = _replica(), parallel_state.get_data_parallel_world_size()

    def to_host(shard: Any) -> Any:
        elsewhere = any(shard.replica_id)
        shard.data = shard.data.to("meta") if elsewhere else shard.data.to("cpu", copy=copy)
        return shard

    placed: dict[str, Any] = {}
    for name, tensor in tensors:
        *elsewhere, _ = weights[name].replica_id  # among pipeline stages and tensor-parallel ranks
        replica_id = (*elsewhere, (replica - writers[name]) % num_replicas)
        shards = _with_data(prefix, {name: replace(weights[name], replica_id=replica_id)}, {name: tensor})
        # What Megatron stores in parts is parted first: of the parts of a copy it would make copies of its own.
        apply_factories(shards)
        placed |= dict_list_map_inplace(to_host, shards)
    return placed


def _copy_into(targets: Mapping[str, torch.Tensor], sources: Mapping[str, torch.Tensor]) -> None:
    """Megatron has read most tensors in place; what it stores in parts comes joined, elsewhere."""
    with torch.no_grad():
        for name, target in targets.items():
            if target.data_ptr() != sources[name].data_ptr():
                target.copy_(sources[name])


def _zero_padding(model: torch.nn.Module) -> None:
    """Rows of a padded vocabulary that the checkpoint may not have: never read, but they should not be garbage."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
                parameter.zero_()


def _parts(model: torch.nn.Module) -> list[str]:
    """What the optimizer keeps of each parameter."""
    has_copies = any(parameter.dtype != torch.float32 for parameter in model.parameters())
    return [*optimizer_state.MOMENTS, *([MAIN] if has_copies else [])]


def _whole(
    optimizer: MegatronOptimizer, model: torch.nn.Module, part: str, writers: Mapping[str, int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """One parameter after the other, in its own shape. What is sharded over replicas is complete where it will be
    written, and only there."""
    slots = optimizer_state.slots(optimizer, model)
    group = parallel_state.get_data_parallel_group()
    for name, parameter in model.named_parameters():
        slot = slots.get(name)
        if slot is not None and slot.span is None:
            yield name, _tensor(slot, part)
            continue
        whole = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
        if slot is not None:
            _part_of(whole, slot).copy_(_tensor(slot, part).view(-1))
        # As integers: added to the zeros of the others, every bit stays as it is.
        dist.reduce(whole.view(torch.int32), dist.get_global_rank(group, writers[name]), group=group)
        yield name, whole


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
