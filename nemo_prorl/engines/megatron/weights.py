"""Translates parameters between Megatron and Hugging Face: loads a checkpoint into the model, and streams full tensors
to vLLM and to exports. families.py names the parameters of a layer, this file the others.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nemo_prorl.engines.megatron.architecture import EMBEDDING, FINAL_NORM, HEAD, hf_shapes
from nemo_prorl.engines.megatron.core import parallel_state
from nemo_prorl.engines.megatron.families import Architecture, Split
from nemo_prorl.engines.megatron.weight_files import SafetensorsReader

_TOP = {
    "embedding.word_embeddings.weight": (Split.vocab, (EMBEDDING,)),
    "decoder.final_layernorm.weight": (Split.whole, (FINAL_NORM,)),
    "output_layer.weight": (Split.vocab, (HEAD,)),
}


@dataclass(frozen=True, slots=True)
class WholeParameter:
    """One parameter of the whole model, as checkpoints store it."""

    key: str
    """Megatron's key, under which the model's layers are stacked."""
    layer: int | None
    """Index of the layer; None outside of the layers."""
    split: Split
    hf_names: tuple[str, ...]

    def shape(self, architecture: Architecture) -> tuple[int, ...]:
        """Returns the shape without padding: the Hugging Face tensors one above the other."""
        shapes = [hf_shapes(architecture)[name] for name in self.hf_names]
        return sum(shape[0] for shape in shapes), *shapes[0][1:]

    def to_hf(
        self, shards: list[torch.Tensor], architecture: Architecture
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the Hugging Face tensors that the parameter consists of, with their names. shards: the parameter on
        each tensor-parallel rank."""
        tensors = _join(self.split, shards, architecture)
        is_stacked = len(self.hf_names) < len(tensors)
        yield from zip(self.hf_names, [torch.cat(tensors)] if is_stacked else tensors, strict=True)


def whole_parameters(architecture: Architecture) -> Iterator[WholeParameter]:
    """Yields all parameters from the embedding to the output layer, under the names of Transformer Engine's layers, as
    in checkpoints."""
    first, *last = (name for name in _TOP if name != "output_layer.weight" or not architecture.tied)
    in_layer = architecture.layer
    yield WholeParameter(first, None, *_TOP[first])
    for layer in range(architecture.num_layers):
        for tensor in in_layer:
            hf_names = tuple(f"model.layers.{layer}.{name}" for name in tensor.hf)
            yield WholeParameter(f"decoder.layers.{tensor.megatron}", layer, tensor.split, hf_names)
    for name in last:
        yield WholeParameter(name, None, *_TOP[name])


@dataclass(frozen=True, slots=True)
class _Entry:
    """One parameter of this rank."""

    name: str
    parameter: torch.nn.Parameter
    whole: WholeParameter
    copies_embedding: bool
    """Whether it is the output layer of a tied model, which the last pipeline stage keeps as a copy of the
    embedding."""


def mark_shards(model: Any, architecture: Architecture) -> None:
    """Marks the parameters that are sharded over tensor-parallel ranks; the gradients of replicated ones count only
    once in the global norm. Megatron sets these attributes while it initialises weights, which is skipped here. Without
    them only rank 0's shards would count."""
    for entry in _entries(model, architecture):
        if entry.whole.split is not Split.whole:
            parameter: Any = entry.parameter
            parameter.tensor_model_parallel = True
            parameter.partition_dim = 1 if entry.whole.split is Split.columns else 0
            parameter.partition_stride = 1


def load_hf(model: Any, architecture: Architecture, folder: Path) -> None:
    """Fills this rank's parameters from a Hugging Face folder. Reads only the tensors of this rank's layers. Raises
    ConfigError for files that are damaged; `check_weights` says whether they fit the architecture."""
    reader = SafetensorsReader(folder)
    ranks, rank = _tensor_parallel()
    with torch.no_grad():
        for entry in _entries(model, architecture):
            tensors, rows = [reader[name] for name in entry.whole.hf_names], entry.parameter.shape[0]
            entry.parameter.copy_(_shard(entry.whole.split, tensors, architecture, ranks, rank, rows))


def named_weights(
    model: Any, architecture: Architecture, tensors: Mapping[str, torch.Tensor] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every full tensor under its Hugging Face name, on every rank, one parameter at a time. Collective over the
    replica. No tensor shares memory with the model, so the receiver may keep it.

    tensors: yield these instead of the model's weights; parameter name -> shard, on any device.
    """
    stage = parallel_state.get_pipeline_model_parallel_rank()
    pipeline = parallel_state.get_pipeline_model_parallel_group()
    mine = [entry for entry in _entries(model, architecture) if not entry.copies_embedding]
    own = [(entry.whole, tuple(entry.parameter.shape), entry.parameter.dtype) for entry in mine]
    device = torch.device(torch.cuda.current_device())
    for owner, plan in enumerate(_gathered(own, pipeline)):
        for index, (whole, shape, dtype) in enumerate(plan):
            if owner == stage:
                source = mine[index].parameter.detach() if tensors is None else tensors[mine[index].name]
                shard = source.to(device).contiguous()
            else:
                shard = torch.empty(shape, dtype=dtype, device=device)
            if pipeline.size() > 1:
                dist.broadcast(shard, dist.get_global_rank(pipeline, owner), group=pipeline)
            for name, tensor in whole.to_hf(_gather_shards(whole.split, shard), architecture):
                is_shared = tensor.untyped_storage().data_ptr() == shard.untyped_storage().data_ptr()
                yield name, tensor.clone(memory_format=torch.contiguous_format) if is_shared else tensor


def content_hash(named_weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Returns a hash of the names, precisions, shapes and every bit of a stream of full tensors, the same in any
    layout. Collective over the replica, whose ranks divide the work."""
    replica = parallel_state.get_model_parallel_group()
    digests = []
    for index, (name, tensor) in enumerate(named_weights):
        if index % replica.size() == replica.rank():
            content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            digest = hashlib.blake2b(content.data, digest_size=16).hexdigest()
            digests.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} {digest}")
    listed = "\n".join(sorted(itertools.chain(*_gathered(digests, replica))))
    return hashlib.blake2b(listed.encode(), digest_size=16).hexdigest()


def _gathered(value: Any, group: Any) -> list[Any]:
    """Returns the values of all ranks of the group, in rank order. Collective."""
    values = [value] * group.size()
    if group.size() > 1:
        dist.all_gather_object(values, value, group=group)
    return values


def _entries(model: Any, architecture: Architecture) -> list[_Entry]:
    layers = model.decoder.layers
    offset = layers[0].layer_number - 1 if len(layers) else 0
    known = {(whole.key, whole.layer): whole for whole in whole_parameters(architecture)}
    in_checkpoints = {tensor.local: tensor.megatron for tensor in architecture.layer}
    entries = []
    for name, parameter in model.named_parameters():
        copies_embedding = name == "output_layer.weight" and model.share_embeddings_and_output_weights
        if match := re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name):
            key = f"decoder.layers.{in_checkpoints.get(match[2], match[2])}"
            whole = known[key, int(match[1]) + offset]
        else:
            whole = known["embedding.word_embeddings.weight" if copies_embedding else name, None]
        entries.append(_Entry(name, parameter, whole, copies_embedding))
    return entries


def _tensor_parallel() -> tuple[int, int]:
    return (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_rank(),
    )


def _shard(
    split: Split, tensors: list[torch.Tensor], architecture: Architecture, ranks: int, rank: int, rows: int
) -> torch.Tensor:
    """Returns the parameter of one rank, made of full Hugging Face tensors. rows: its number of rows."""
    if len(tensors) == 1 and split in (Split.gated, Split.qkv):  # stacked
        keys = architecture.key_size
        sizes = [architecture.ffn_size] * 2 if split is Split.gated else [architecture.query_size, keys, keys]
        tensors = list(torch.split(tensors[0], sizes))
    if split is Split.whole:
        return tensors[0]
    if split is Split.columns:
        return tensors[0].chunk(ranks, dim=1)[rank]
    if split is Split.gated:
        return torch.cat([tensor.chunk(ranks)[rank] for tensor in tensors])
    if split is Split.vocab:
        full = tensors[0]
        if full.shape[0] == architecture.vocab_size:
            padding = full.new_zeros(rows * ranks - full.shape[0], full.shape[1])
            full = torch.cat([full, padding]) if len(padding) else full
        return full[rank * rows : (rank + 1) * rows]
    groups = [tensor.reshape(architecture.num_kv_heads, -1, *tensor.shape[1:]) for tensor in tensors]
    return torch.cat(groups, dim=1).flatten(0, 1).chunk(ranks)[rank]


def _gather_shards(split: Split, shard: torch.Tensor) -> list[torch.Tensor]:
    ranks, _ = _tensor_parallel()
    if ranks == 1 or split is Split.whole:
        return [shard]
    shards = [torch.empty_like(shard) for _ in range(ranks)]
    dist.all_gather(shards, shard, group=parallel_state.get_tensor_model_parallel_group())
    return shards


def _join(split: Split, shards: list[torch.Tensor], architecture: Architecture) -> list[torch.Tensor]:
    """Returns full Hugging Face tensors made of the parameters of all ranks: the inverse of `_shard`. With one rank
    they may be views of its parameter."""
    if split is Split.columns:
        return [_cat(shards, dim=1)]
    if split is Split.gated:
        halves = [shard.chunk(2) for shard in shards]
        return [_cat([half[i] for half in halves]) for i in (0, 1)]
    full = _cat(shards)
    if split is Split.vocab:
        return [full[: architecture.vocab_size]]
    if split is Split.qkv:
        heads, size = architecture.num_heads // architecture.num_kv_heads, architecture.head_dim
        by_group = full.reshape(architecture.num_kv_heads, (heads + 2) * size, *full.shape[1:])
        parts: Callable[..., tuple[torch.Tensor, ...]] = by_group.split
        return [part.flatten(0, 1) for part in parts([heads * size, size, size], dim=1)]
    return [full]


def _cat(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Concatenates tensors; a single one is returned without a copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=dim)
