"""The one table of parameter names, Megatron <-> Hugging Face, and what is made of it: loading a checkpoint and the
stream of full tensors that feeds both vLLM and export. Nothing else knows a parameter by name.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nemo_prorl.config import ConfigError
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.engines.megatron.core import parallel_state


class Split(Enum):
    """How tensor parallelism cuts a parameter, and how Hugging Face's tensors lie in it."""

    whole = "whole"
    """Not cut."""
    columns = "columns"
    """Along the input dimension."""
    vocab = "vocab"
    """Along the vocabulary, which is padded to a multiple of the ranks."""
    gated = "gated"
    """Gate and up projection, each cut along its output; a rank holds [its gate | its up]."""
    qkv = "qkv"
    """Cut by key-value head; each comes as [its query heads | key head | value head]."""


_ATTENTION, _MLP = "self_attention.", "mlp."
_LAYER = {
    _ATTENTION + "linear_qkv.weight": (Split.qkv, [f"self_attn.{x}_proj.weight" for x in "qkv"]),
    _ATTENTION + "linear_qkv.bias": (Split.qkv, [f"self_attn.{x}_proj.bias" for x in "qkv"]),
    _ATTENTION + "linear_proj.weight": (Split.columns, ["self_attn.o_proj.weight"]),
    _ATTENTION + "q_layernorm.weight": (Split.whole, ["self_attn.q_norm.weight"]),
    _ATTENTION + "k_layernorm.weight": (Split.whole, ["self_attn.k_norm.weight"]),
    _MLP + "linear_fc1.weight": (Split.gated, ["mlp.gate_proj.weight", "mlp.up_proj.weight"]),
    _MLP + "linear_fc2.weight": (Split.columns, ["mlp.down_proj.weight"]),
    # Local layers keep the norms apart, Transformer Engine fuses them into the linear layer that follows.
    "input_layernorm.weight": (Split.whole, ["input_layernorm.weight"]),
    "pre_mlp_layernorm.weight": (Split.whole, ["post_attention_layernorm.weight"]),
    _ATTENTION + "linear_qkv.layer_norm_weight": (Split.whole, ["input_layernorm.weight"]),
    _MLP + "linear_fc1.layer_norm_weight": (Split.whole, ["post_attention_layernorm.weight"]),
}
_TOP = {
    "embedding.word_embeddings.weight": (Split.vocab, ["model.embed_tokens.weight"]),
    "decoder.final_layernorm.weight": (Split.whole, ["model.norm.weight"]),
    "output_layer.weight": (Split.vocab, ["lm_head.weight"]),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One parameter of this rank. `copies_embedding`: the output layer of a tied model on the last pipeline stage."""

    name: str
    parameter: torch.nn.Parameter
    split: Split
    hf_names: list[str]
    copies_embedding: bool


def mark_shards(model: Any) -> None:
    """Tells sharded parameters from replicated ones, whose gradients count once in the global norm. Megatron does so
    while it initialises weights at random, which is skipped here; without the marks only rank 0's shards count."""
    for entry in _entries(model):
        if entry.split is not Split.whole:
            parameter: Any = entry.parameter
            parameter.tensor_model_parallel = True
            parameter.partition_dim = 1 if entry.split is Split.columns else 0
            parameter.partition_stride = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeParameter:
    """One parameter of the whole model, as checkpoints hold it."""

    key: str
    """Megatron's; the layers of a model are stacked under one."""
    layer: int | None
    split: Split
    hf_names: list[str]

    def to_hf(self, tensor: torch.Tensor, architecture: Architecture) -> Iterator[tuple[str, torch.Tensor]]:
        """The full Hugging Face tensors in it."""
        yield from zip(self.hf_names, _join(self.split, [tensor], architecture), strict=True)

    def from_hf(self, tensors: list[torch.Tensor], architecture: Architecture) -> torch.Tensor:
        """Inverse of `to_hf`."""
        return _shard(self.split, tensors, architecture, 1, 0, architecture.vocab_size)

    def empty(self, architecture: Architecture, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """On the meta device: its shape."""
        shapes = [hf_shape(name, architecture) for name in self.hf_names]
        return self.from_hf(
            [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes], architecture
        )


def whole_parameters(architecture: Architecture) -> Iterator[WholeParameter]:
    """From the embedding to the output layer, under the names of Transformer Engine's layers, which checkpoints use."""
    top = [name for name in _TOP if not (architecture.tied and name == "output_layer.weight")]
    left_out = {"input_layernorm.weight", "pre_mlp_layernorm.weight"}
    if not architecture.qk_norm:
        left_out |= {_ATTENTION + "q_layernorm.weight", _ATTENTION + "k_layernorm.weight"}
    if not architecture.qkv_bias:
        left_out.add(_ATTENTION + "linear_qkv.bias")
    yield WholeParameter(key=top[0], layer=None, split=_TOP[top[0]][0], hf_names=_TOP[top[0]][1])
    for layer in range(architecture.num_layers):
        for name in (name for name in _LAYER if name not in left_out):
            split, hf_names = _look_up(f"decoder.layers.{layer}.{name}", 0)
            yield WholeParameter(key=f"decoder.layers.{name}", layer=layer, split=split, hf_names=hf_names)
    for name in top[1:]:
        yield WholeParameter(key=name, layer=None, split=_TOP[name][0], hf_names=_TOP[name][1])


def check_hf(reader: SafetensorsReader, architecture: Architecture) -> None:
    """Raises ConfigError for a tensor that is missing, misshaped or left over. Reads headers only."""
    wanted = {name for parameter in whole_parameters(architecture) for name in parameter.hf_names}
    for name in sorted(wanted):
        if name not in reader:
            raise ConfigError(f"{reader.folder} has no tensor {name}, which {architecture.name} needs.")
        found, fits = reader.shape(name), hf_shape(name, architecture)
        if found != fits:
            raise ConfigError(
                f"{reader.folder} has {name} of a shape that does not fit its config.json: {found} instead of {fits}."
            )
    ignored = {"lm_head.weight"} if architecture.tied else set()
    left = [n for n in reader.names() if n not in wanted | ignored and not n.endswith("rotary_emb.inv_freq")]
    if left:
        raise ConfigError(
            f"{reader.folder} has tensors that {architecture.name} does not know: {', '.join(sorted(left)[:5])}."
        )


def hf_shape(name: str, architecture: Architecture) -> tuple[int, ...]:
    """Of a Hugging Face tensor."""
    hidden, ffn, vocab = architecture.hidden_size, architecture.ffn_size, architecture.vocab_size
    queries = architecture.num_heads * architecture.head_dim
    keys = architecture.num_kv_heads * architecture.head_dim
    kind, what = name.split(".")[-2:]
    if what == "bias":
        return (queries,) if kind == "q_proj" else (keys,)
    matrices = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (ffn, hidden),
        "up_proj": (ffn, hidden),
        "down_proj": (hidden, ffn),
        "embed_tokens": (vocab, hidden),
        "lm_head": (vocab, hidden),
        "q_norm": (architecture.head_dim,),
        "k_norm": (architecture.head_dim,),
    }
    return matrices.get(kind, (hidden,))


def load_hf(model: Any, architecture: Architecture, folder: Path) -> None:
    """Fills the local shard from a Hugging Face folder, having read nothing of other ranks' layers. Raises ConfigError
    for files that are damaged, or do not fit the architecture."""
    reader = SafetensorsReader(folder)
    check_hf(reader, architecture)
    ranks, rank = _tensor_parallel()
    with torch.no_grad():
        for entry in _entries(model):
            tensors = [reader[name] for name in entry.hf_names]
            entry.parameter.copy_(
                _shard(entry.split, tensors, architecture, ranks, rank, entry.parameter.shape[0])
            )


def named_weights(
    model: Any, architecture: Architecture, tensors: Mapping[str, torch.Tensor] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Collective over the replica: every full tensor under its Hugging Face name, on every rank, one parameter at a
    time. The memory of each tensor is its own: the receiver may keep it.

    `tensors`: by the model's own names what takes the place of its weights, on any device.
    """
    stage = parallel_state.get_pipeline_model_parallel_rank()
    pipeline = parallel_state.get_pipeline_model_parallel_group()
    mine = [entry for entry in _entries(model) if not entry.copies_embedding]
    described = [(e.split, e.hf_names, tuple(e.parameter.shape), e.parameter.dtype) for e in mine]
    plans: list[Any] = [described]
    if pipeline.size() > 1:
        plans = [None] * pipeline.size()
        dist.all_gather_object(plans, described, group=pipeline)
    device = torch.device(torch.cuda.current_device())
    for owner, plan in enumerate(plans):
        for index, (split, hf_names, shape, dtype) in enumerate(plan):
            if owner == stage:
                source = mine[index].parameter.detach() if tensors is None else tensors[mine[index].name]
                shard = source.to(device).contiguous()
            else:
                shard = torch.empty(shape, dtype=dtype, device=device)
            if pipeline.size() > 1:
                dist.broadcast(shard, dist.get_global_rank(pipeline, owner), group=pipeline)
            whole = _join(split, _gather_shards(split, shard), architecture)
            yield from ((name, _own(tensor, shard)) for name, tensor in zip(hf_names, whole, strict=True))


def content_hash(named_weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Collective over the replica, whose ranks share the work. Of names, precisions, shapes and every bit of a stream
    of full tensors: independent of how ranks share them."""
    replica = parallel_state.get_model_parallel_group()
    digests = []
    for index, (name, tensor) in enumerate(named_weights):
        if index % replica.size() == replica.rank():
            content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            digest = hashlib.blake2b(content.data, digest_size=16).hexdigest()
            digests.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} {digest}")
    shares: list[Any] = [digests]
    if replica.size() > 1:
        shares = [None] * replica.size()
        dist.all_gather_object(shares, digests, group=replica)
    listed = "\n".join(sorted(itertools.chain(*shares)))
    return hashlib.blake2b(listed.encode(), digest_size=16).hexdigest()


class SafetensorsReader:
    """Tensors of a Hugging Face folder, one file or sharded, read when asked for. Raises ConfigError for files that are
    missing or damaged."""

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.folder = folder
        index = folder / "model.safetensors.index.json"
        files = ["model.safetensors"]
        if index.exists():
            try:
                files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(f"{index} is damaged ({error}): fetch it again.") from None
        self._owner: dict[str, Any] = {}
        for name in files:
            try:
                handle = safe_open(folder / name, "pt")
            except FileNotFoundError:
                raise ConfigError(f"{folder} lacks {name}: fetch it again.") from None
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{folder / name} is damaged ({error}): fetch it again.") from None
            self._owner.update(dict.fromkeys(handle.keys(), handle))

    def __contains__(self, name: str) -> bool:
        return name in self._owner

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._owner[name].get_tensor(name)
        return tensor

    def names(self) -> Iterator[str]:
        return iter(self._owner)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._owner[name].get_slice(name).get_shape())

    def dtypes(self) -> set[str]:
        """As the files' headers spell them: {"BF16"}, {"F32"} ..."""
        return {self._owner[name].get_slice(name).get_dtype() for name in self._owner}


def _entries(model: Any) -> list[_Entry]:
    layers = model.decoder.layers
    offset = layers[0].layer_number - 1 if len(layers) else 0
    entries = []
    for name, parameter in model.named_parameters():
        copies_embedding = name == "output_layer.weight" and model.share_embeddings_and_output_weights
        split, hf_names = _look_up("embedding.word_embeddings.weight" if copies_embedding else name, offset)
        entries.append(
            _Entry(
                name=name,
                parameter=parameter,
                split=split,
                hf_names=hf_names,
                copies_embedding=copies_embedding,
            )
        )
    return entries


def _look_up(name: str, layer_offset: int) -> tuple[Split, list[str]]:
    match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
    if not match:
        return _TOP[name]
    split, hf_names = _LAYER[match[2]]
    return split, [f"model.layers.{int(match[1]) + layer_offset}.{hf_name}" for hf_name in hf_names]


def _tensor_parallel() -> tuple[int, int]:
    return (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_rank(),
    )


def _shard(
    split: Split, tensors: list[torch.Tensor], architecture: Architecture, ranks: int, rank: int, rows: int
) -> torch.Tensor:
    """Full Hugging Face tensors -> the parameter of one rank, which has `rows` rows."""
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


def _own(tensor: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """In memory of its own: copied if joining has not done so."""
    shared = tensor.untyped_storage().data_ptr() == shard.untyped_storage().data_ptr()
    return tensor.clone(memory_format=torch.contiguous_format) if shared else tensor


def _join(split: Split, shards: list[torch.Tensor], architecture: Architecture) -> list[torch.Tensor]:
    """The inverse of `_shard`: parameters of all ranks -> full Hugging Face tensors, or views of the only rank's."""
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
    """One is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=dim)
