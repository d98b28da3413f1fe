"""Describes families of dense decoders: the tensors of a layer, and the keys of config.json that they have. Standard
library only, so that the command line can refuse a model before torch is imported."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Split(Enum):
    """How tensor parallelism splits a parameter, and how it is made of Hugging Face's tensors."""

    whole = "whole"
    """Not split."""
    columns = "columns"
    """Split along the input dimension."""
    vocab = "vocab"
    """Split along the vocabulary, which is padded so that all ranks have the same number of rows."""
    gated = "gated"
    """Gate and up projection, each split along its output; a rank holds [its gate | its up]."""
    qkv = "qkv"
    """Split by key-value head, each of which is stored as [its query heads | key head | value head]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One parameter of Megatron's model, with the Hugging Face tensors that it is made of.

    Queries, keys and values, and gate and up projection, may be one Hugging Face tensor, stacked in this order."""

    megatron: str
    """Name in a layer as checkpoints store it, which is that of Transformer Engine's layers."""
    split: Split
    hf: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the Hugging Face tensors."""
    local: str = ""
    """Name in Megatron's own layers, if another."""

    @property
    def size(self) -> int:
        """Number of elements, without padding."""
        return sum(map(math.prod, self.shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the models of a family have in common."""

    name: str
    """Name in `architectures` of config.json."""
    layer: Callable[[Architecture], tuple[Tensor, ...]]
    """Lists the tensors of one layer."""
    keys: frozenset[str] = frozenset()
    """Keys of config.json beyond those of every family (`architecture.COMMON_KEYS`)."""
    ropes: tuple[str, ...] = ("default",)
    """Kinds of rotary embedding (`Rope.kind`) that were checked."""
    own_head_dim: bool = True
    """Whether head_dim may differ from hidden_size / num_attention_heads. vLLM ignores the key in other families."""
    norm_epsilon: float = 1e-6
    """What a missing rms_norm_eps stands for."""
    window: int | None = None
    """What a missing sliding_window stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding. Llama 3's scaling depends on `factor` only, YaRN's (Peng et al., arXiv 2309.00071) on all."""

    theta: float
    kind: str = "default"
    """default, llama3 or yarn."""
    factor: float = 1.0
    original_positions: int = 0
    """Positions of the model before its context was extended."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Whether the bounds of YaRN's ramp are rounded to whole dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes and features of a dense decoder.

    Example: Architecture(family=FAMILIES["Qwen2ForCausalLM"], num_layers=28, hidden_size=1536, ffn_size=8960,
    num_heads=12, num_kv_heads=2, head_dim=128, vocab_size=151936, max_positions=131072, norm_epsilon=1e-6,
    rope=Rope(theta=1e4), tied=True)
    """

    family: Family
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_epsilon: float
    rope: Rope
    tied: bool
    """Whether the output layer shares the embedding's weight."""

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def layer(self) -> tuple[Tensor, ...]:
        return self.family.layer(self)

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to queries, keys and values have biases."""
        return any(tensor.megatron == QKV + "bias" for tensor in self.layer)

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys of each head are normalised."""
        return any(tensor.megatron.endswith("q_layernorm.weight") for tensor in self.layer)

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all key heads together, or of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Number of weights and biases, without padding. Example: 1_777_088_000 for DeepSeek-R1-Distill-Qwen-1.5B."""
        of_layer = sum(tensor.size for tensor in self.layer)
        embeddings = (1 if self.tied else 2) * self.vocab_size * self.hidden_size
        return self.num_layers * of_layer + embeddings + self.hidden_size

    def padded_vocab(self, tensor_parallel: int, divisible_by: int) -> int:
        """Returns the number of rows of the embedding, over all tensor-parallel ranks: `vocab_size` rounded up to a
        multiple of `divisible_by` rows per rank."""
        multiple = divisible_by * tensor_parallel
        return -(-self.vocab_size // multiple) * multiple

    def layers_per_stage(self, pipeline_parallel: int) -> list[int]:
        """Returns the number of layers of each pipeline stage, as even as possible. Remaining layers go to the middle
        stages, then to the first: the last stage has the output layer and the loss, and the first the embedding, which
        costs less."""
        each, left = divmod(self.num_layers, pipeline_parallel)
        last = pipeline_parallel - 1
        favoured = [*range(1, last), 0][:left]
        return [each + (stage in favoured) for stage in range(pipeline_parallel)]


QKV, _FC1 = "self_attention.linear_qkv.", "mlp.linear_fc1."


def norms(sizes: Architecture) -> tuple[Tensor, ...]:
    """Lists the RMSNorms before attention and before the feed-forward block. Transformer Engine fuses each into the
    following linear layer."""
    hidden = ((sizes.hidden_size,),)
    return (
        Tensor(
            megatron=QKV + "layer_norm_weight",
            local="input_layernorm.weight",
            split=Split.whole,
            hf=("input_layernorm.weight",),
            shapes=hidden,
        ),
        Tensor(
            megatron=_FC1 + "layer_norm_weight",
            local="pre_mlp_layernorm.weight",
            split=Split.whole,
            hf=("post_attention_layernorm.weight",),
            shapes=hidden,
        ),
    )


def attention(
    sizes: Architecture, *, bias: bool = False, head_norms: bool = False, fused: bool = False
) -> tuple[Tensor, ...]:
    """Lists the projections of grouped-query attention. bias: on queries, keys and values. head_norms: RMSNorms of the
    queries and keys of each head. fused: queries, keys and values are projected by one tensor."""
    rows = {"q": sizes.query_size, "k": sizes.key_size, "v": sizes.key_size}
    if fused:
        rows = {"qkv": sum(rows.values())}
    found = [
        Tensor(
            megatron=QKV + "weight",
            split=Split.qkv,
            hf=tuple(f"self_attn.{x}_proj.weight" for x in rows),
            shapes=tuple((num_rows, sizes.hidden_size) for num_rows in rows.values()),
        )
    ]
    if bias:
        found += [
            Tensor(
                megatron=QKV + "bias",
                split=Split.qkv,
                hf=tuple(f"self_attn.{x}_proj.bias" for x in rows),
                shapes=tuple((num_rows,) for num_rows in rows.values()),
            )
        ]
    found += [
        Tensor(
            megatron="self_attention.linear_proj.weight",
            split=Split.columns,
            hf=("self_attn.o_proj.weight",),
            shapes=((sizes.hidden_size, sizes.query_size),),
        )
    ]
    if head_norms:
        found += [
            Tensor(
                megatron=f"self_attention.{x}_layernorm.weight",
                split=Split.whole,
                hf=(f"self_attn.{x}_norm.weight",),
                shapes=((sizes.head_dim,),),
            )
            for x in "qk"
        ]
    return tuple(found)


def feed_forward(sizes: Architecture, *, fused: bool = False) -> tuple[Tensor, ...]:
    """Lists the projections of SwiGLU (Shazeer, arXiv 2002.05202). fused: gate and up projection are one tensor."""
    rows, parts = sizes.ffn_size, ("gate_up",) if fused else ("gate", "up")
    names = tuple(f"mlp.{part}_proj.weight" for part in parts)
    shapes = ((2 * rows // len(parts), sizes.hidden_size),) * len(parts)
    return (
        Tensor(megatron=_FC1 + "weight", split=Split.gated, hf=names, shapes=shapes),
        Tensor(
            megatron="mlp.linear_fc2.weight",
            split=Split.columns,
            hf=("mlp.down_proj.weight",),
            shapes=((sizes.hidden_size, rows),),
        ),
    )


def layer(
    sizes: Architecture, *, bias: bool = False, head_norms: bool = False, fused: bool = False
) -> tuple[Tensor, ...]:
    """Lists the tensors of one layer. bias, head_norms: of `attention`. fused: of `attention` and `feed_forward`."""
    projections = attention(sizes, bias=bias, head_norms=head_norms, fused=fused)
    return *norms(sizes), *projections, *feed_forward(sizes, fused=fused)
