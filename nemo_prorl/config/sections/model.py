"""model.*: the policy and how Megatron-Core builds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nemo_prorl.config.sections.checks import positive


class Precision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"


class LayerSpec(Enum):
    auto = "auto"
    local = "local"
    transformer_engine = "transformer_engine"


class Fp8Recipe(Enum):
    off = "off"
    delayed = "delayed"
    tensorwise = "tensorwise"
    blockwise = "blockwise"


class Recompute(Enum):
    none = "none"
    selective = "selective"
    full = "full"


@dataclass(slots=True, kw_only=True)
class ModelConfig:
    """The policy and how Megatron-Core builds it."""

    path: str = ""
    """Folder of the Hugging Face checkpoint that the first stage starts from (weights, config, tokenizer)."""
    precision: Precision = Precision.bf16
    """Precision of weights and activations; the optimizer keeps fp32 main weights in any case."""
    layer_spec: LayerSpec = LayerSpec.auto
    """Layer implementations. auto: Transformer Engine's on CUDA, where it is required, and Megatron's own on CPU;
    local: Megatron's own, which are slower on CUDA and cannot pack sequences."""
    fp8: Fp8Recipe = Fp8Recipe.off
    """Transformer Engine's FP8 recipe for the linear layers; needs CUDA and Transformer Engine. With `delayed` the
    scales come from earlier passes, so the reference's log-probabilities depend on those of the current policy."""
    recompute: Recompute = Recompute.none
    """Activation recomputation: none, selective (attention core) or full (every layer)."""
    logprob_chunk_tokens: int = 1024
    """Number of tokens whose logits exist at a time; limits the memory for log-probabilities and entropy."""
    fused_logprobs: bool = True
    """Computes log-probabilities and entropy with Triton kernels on CUDA; false: with plain PyTorch, which is
    slower."""
    vocab_divisible_by: int = 1
    """The vocabulary is padded to a multiple of this times tensor_parallel; padding gets no probability."""
    megatron: dict[str, Any] = field(default_factory=dict)
    """Fields of Megatron-Core's configuration that change speed, memory or rounding alone, such as
    {overlap_grad_reduce: true}; docs/gpu.md lists them."""

    def __post_init__(self) -> None:
        positive("model", self, ["logprob_chunk_tokens", "vocab_divisible_by"])
