"""Qwen 2, Qwen 2.5 and what was distilled into them: biases on queries, keys and values. They have a window only where
use_sliding_window is true."""

from __future__ import annotations

from functools import partial

from nemo_prorl.engines.megatron.families.family import Family, layer

FAMILY = Family(
    name="Qwen2ForCausalLM",
    layer=partial(layer, bias=True),
    keys=frozenset({"use_sliding_window", "sliding_window", "max_window_layers"}),
    ropes=("default", "llama3", "yarn"),
    own_head_dim=False,
)
