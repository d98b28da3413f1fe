"""model.* and lora.*: the policy, how Megatron-Core builds it, and low-rank training."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nemo_prorl.config.sections.checks import ConfigError, at_least, positive

Precision = StrEnum("Precision", ["fp32", "bf16"])
LayerSpec = StrEnum("LayerSpec", ["auto", "local", "transformer_engine"])
Fp8Recipe = StrEnum("Fp8Recipe", ["off", "delayed", "tensorwise", "blockwise"])
Recompute = StrEnum("Recompute", ["none", "selective", "full"])
LoraTargets = StrEnum("LoraTargets", ["all", "attention", "mlp"])

FP8_NATS = 0.25
"""Error of log-probabilities, in nats a token, that FP8 may have; on one H100 it had 0.15 to 0.18 with random weights
(experiments/gpu.md)."""


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


@dataclass(slots=True, kw_only=True)
class LoraConfig:
    """Trains a low-rank difference to the reference, W = reference + (alpha / rank) B A (LoRA, arXiv 2106.09685, eq.
    3), instead of all weights. A reset merges the difference into the reference and begins a new one."""

    rank: int = 0
    """Columns of B and rows of A; 0: all weights are trained."""
    alpha: float = 0.0
    """Numerator of the scale alpha / rank; 0: the rank, so that the scale is 1."""
    targets: LoraTargets = LoraTargets.all
    """Matrices that get a difference: attention (queries, keys, values, output), mlp (gate, up, down), or all.
    Embedding, head, norms and biases stay as they are."""

    def __post_init__(self) -> None:
        at_least("lora", self, 0, ["rank", "alpha"])
        if not self.rank and (self.alpha or self.targets is not LoraTargets.all):
            name, value = ("alpha", f"{self.alpha:g}") if self.alpha else ("targets", self.targets.name)
            raise ConfigError(
                f"lora.{name}={value} without lora.rank would train all weights: write a rank as well, such as "
                "lora.rank=32, or leave it out."
            )

    @property
    def scale(self) -> float:
        """Returns the factor of B A."""
        return self.alpha / self.rank if self.alpha else 1.0

    @property
    def recorded(self) -> dict[str, Any]:
        """Returns what a checkpoint notes of the factors that it holds; empty if all weights are trained."""
        if not self.rank:
            return {}
        return {"rank": self.rank, "scale": self.scale, "targets": self.targets.name}
