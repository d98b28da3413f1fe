"""Configurations of models, and folders whose weights are zeros, for what reads only headers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_prorl.engines.megatron.architecture import hf_shapes, read_architecture

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
SMALL = QWEN | {"vocab_size": 10, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 8, "num_hidden_layers": 1}
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1, "F8_E4M3": 1}


def write_model(folder: Path, config: Mapping[str, Any]) -> Path:
    """Writes config.json and weights that fit it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder / "model.safetensors", hf_shapes(read_architecture(config)))
    return folder


def write_weights(
    file: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str = "F32",
    ends: Mapping[str, bytes] | None = None,
) -> None:
    """Writes tensors of zeros. ends: name of a tensor -> its last bytes."""
    header, content = {}, bytearray()
    for name, shape in shapes.items():
        begin, end = len(content), (ends or {}).get(name, b"")
        content += bytes(BYTES[dtype] * math.prod(shape) - len(end)) + end
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, len(content))}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content)
