"""Families of dense decoders: the tensors of their layers, and the keys of config.json that they have. Standard library
only, so that the command line can refuse a model before torch is imported."""

from __future__ import annotations

import math
from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter of Megatron's model, with the Hugging Face tensors that it is made of.

    Queries, keys and values, and gate and up projection, may be one Hugging Face tensor, stacked in this order."""

    megatron: str
    """Name in a layer as checkpoints store it, which is that of Transformer Engine's layers."""
    split: Split
    hf: Mapping[str, tuple[int, ...]]
    """Name of each Hugging Face tensor in a layer -> its shape."""
    local: str = ""
    """Name in Megatron's own layers, if another."""

    @property
    def size(self) -> int:
        """Number of elements, without padding."""
        return sum(map(math.prod, self.hf.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the models of a family have in common."""

    name: str
    """Name in `architectures` of config.json."""
    qkv_bias: bool = False
    """Whether the projections to queries, keys and values have biases."""
    qk_norm: bool = False
    """Whether queries and keys of each head are normalised."""
    fused: bool = False
    """Whether one tensor projects to queries, keys and values, and one to gate and up."""
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
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all key heads together, or of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def layer(self) -> list[Tensor]:
        """The tensors of one layer: grouped-query attention and SwiGLU (Shazeer, arXiv 2002.05202), each behind an
        RMSNorm, which Transformer Engine fuses into the linear layer that follows it."""
        qkv, fc1, hidden = "self_attention.linear_qkv.", "mlp.linear_fc1.", self.hidden_size
        rows = {"q_proj": self.query_size, "k_proj": self.key_size, "v_proj": self.key_size}
        halves = {"gate_proj": self.ffn_size, "up_proj": self.ffn_size}
        if self.family.fused:
            rows, halves = {"qkv_proj": sum(rows.values())}, {"gate_up_proj": sum(halves.values())}
        norms = {"input_layernorm.weight": (hidden,)}, {"post_attention_layernorm.weight": (hidden,)}
        of_qkv = {f"self_attn.{name}.weight": (size, hidden) for name, size in rows.items()}
        biases = {f"self_attn.{name}.bias": (size,) for name, size in rows.items()}
        of_fc1 = {f"mlp.{name}.weight": (size, hidden) for name, size in halves.items()}
        of_proj = {"self_attn.o_proj.weight": (hidden, self.query_size)}
        return [
            Tensor(qkv + "layer_norm_weight", Split.whole, norms[0], local="input_layernorm.weight"),
            Tensor(fc1 + "layer_norm_weight", Split.whole, norms[1], local="pre_mlp_layernorm.weight"),
            Tensor(qkv + "weight", Split.qkv, of_qkv),
            *([Tensor(qkv + "bias", Split.qkv, biases)] if self.family.qkv_bias else []),
            Tensor("self_attention.linear_proj.weight", Split.columns, of_proj),
            *(
                Tensor(
                    f"self_attention.{x}_layernorm.weight",
                    Split.whole,
                    {f"self_attn.{x}_norm.weight": (self.head_dim,)},
                )
                for x in "qk"
                if self.family.qk_norm
            ),
            Tensor(fc1 + "weight", Split.gated, of_fc1),
            Tensor("mlp.linear_fc2.weight", Split.columns, {"mlp.down_proj.weight": (hidden, self.ffn_size)}),
        ]

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


_WINDOW_IF_ASKED = frozenset({"use_sliding_window", "sliding_window", "max_window_layers"})

_FAMILIES = (
    # Llama 2, 3 and 3.1, and what has their layers, such as SmolLM 2.
    Family(name="LlamaForCausalLM", keys=frozenset({"pretraining_tp"}), ropes=("default", "llama3")),
    # Mistral 7B from v0.3 on, Nemo, Small and Magistral. A missing sliding_window stands for 4,096.
    Family(name="MistralForCausalLM", keys=frozenset({"sliding_window"}), window=4096),
    # Phi-3 and Phi-4.
    Family(
        name="Phi3ForCausalLM",
        fused=True,
        keys=frozenset({"sliding_window", "original_max_position_embeddings", "resid_pdrop", "embd_pdrop"}),
        own_head_dim=False,
        norm_epsilon=1e-5,
    ),
    # Qwen 2, Qwen 2.5 and what was distilled into them.
    Family(
        name="Qwen2ForCausalLM",
        qkv_bias=True,
        keys=_WINDOW_IF_ASKED,
        ropes=("default", "llama3", "yarn"),
        own_head_dim=False,
    ),
    # Qwen 3, dense.
    Family(
        name="Qwen3ForCausalLM",
        qk_norm=True,
        keys=_WINDOW_IF_ASKED,
        ropes=("default", "llama3", "yarn"),
    ),
)
FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
"""Name in `architectures` of config.json -> family."""
