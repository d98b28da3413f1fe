"""Shapes of well-known models, so that a plan needs no download. Source: their config.json on the Hugging Face hub."""

from __future__ import annotations

from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.engines.megatron.families import FAMILIES
from nemo_prorl.engines.megatron.families.family import Rope

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
