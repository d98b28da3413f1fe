"""Models and GPUs that `plan` knows by name.

Models: their config.json on the Hugging Face hub. GPUs: the data sheets "NVIDIA H100 Tensor Core GPU" (SXM column),
"NVIDIA H200 Tensor Core GPU", "NVIDIA A100 Tensor Core GPU" (80 GB SXM column), and for network adapters "NVIDIA DGX
H100" and "DGX A100" (one adapter per GPU). Arithmetic is dense bf16, half of what the sheets print with sparsity;
bandwidths of links are for one direction, half of what they print.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.engines.megatron.families import FAMILIES, Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Peak rates. Example: GPUS["h100"]"""

    name: str
    memory_gib: float
    """As CUDA reports it, which is less than on the data sheet."""
    flops: float
    """Dense bf16 operations per second."""
    memory_bytes_s: float
    nvlink_bytes_s: float
    """Bandwidth to all other GPUs of the node together, one direction."""
    network_bytes_s: float
    """Bandwidth to other nodes, one direction."""


_H100 = Gpu(
    name="h100", memory_gib=79.1, flops=989.4e12, memory_bytes_s=3.35e12,
    nvlink_bytes_s=450e9, network_bytes_s=50e9,
)  # fmt: skip
_H200 = replace(_H100, name="h200", memory_gib=139.8, memory_bytes_s=4.8e12)
_A100 = Gpu(
    name="a100", memory_gib=79.2, flops=312e12, memory_bytes_s=2.039e12,
    nvlink_bytes_s=300e9, network_bytes_s=25e9,
)  # fmt: skip
GPUS = {gpu.name: gpu for gpu in (_H100, _H200, _A100)}

PAPER_MODEL = "r1-distill-qwen-1.5b"
"""DeepSeek-R1-Distill-Qwen-1.5B (2507.12507 section 4.1)."""

_FIELDS = (
    "family", "num_layers", "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size",
    "max_positions", "tied",
)  # fmt: skip
_SHAPES = {
    "r1-distill-qwen-1.5b": ("Qwen2ForCausalLM", 28, 1536, 8960, 12, 2, 128, 151936, 131072, False),
    "qwen2.5-1.5b": ("Qwen2ForCausalLM", 28, 1536, 8960, 12, 2, 128, 151936, 131072, True),
    "qwen2.5-7b": ("Qwen2ForCausalLM", 28, 3584, 18944, 28, 4, 128, 152064, 131072, False),
    "qwen2.5-14b": ("Qwen2ForCausalLM", 48, 5120, 13824, 40, 8, 128, 152064, 131072, False),
    "qwen2.5-32b": ("Qwen2ForCausalLM", 64, 5120, 27648, 40, 8, 128, 152064, 131072, False),
    "qwen3-0.6b": ("Qwen3ForCausalLM", 28, 1024, 3072, 16, 8, 128, 151936, 40960, True),
    "qwen3-4b": ("Qwen3ForCausalLM", 36, 2560, 9728, 32, 8, 128, 151936, 40960, True),
    "qwen3-8b": ("Qwen3ForCausalLM", 36, 4096, 12288, 32, 8, 128, 151936, 40960, False),
    "qwen3-32b": ("Qwen3ForCausalLM", 64, 5120, 25600, 64, 8, 128, 151936, 40960, False),
    "llama3-8b": ("LlamaForCausalLM", 32, 4096, 14336, 32, 8, 128, 128256, 131072, False),
    "llama3-70b": ("LlamaForCausalLM", 80, 8192, 28672, 64, 8, 128, 128256, 131072, False),
}


def gpu_of(name: str) -> Gpu:
    """Returns the GPU of this name. Raises ConfigError if it is unknown."""
    if name not in GPUS:
        raise ConfigError(f"--gpu={name} is not known: write one of {', '.join(GPUS)}.")
    return GPUS[name]


def shape_of(name: str) -> Architecture:
    """Returns the shape of a model named above. Raises ConfigError for any other."""
    if name not in _SHAPES:
        raise ConfigError(
            f"--shape={name} is not a known shape: write one of {', '.join(_SHAPES)}, or model.path=FOLDER of your "
            "model."
        )
    shape: dict[str, Any] = dict(zip(_FIELDS, _SHAPES[name], strict=True))
    shape |= {"family": FAMILIES[shape["family"]], "norm_epsilon": 1e-6, "rope": Rope(theta=1e6)}
    return Architecture(**shape)
