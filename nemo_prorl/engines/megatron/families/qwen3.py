"""Qwen 3, dense: a norm on the queries and keys of each head. They have a window only where use_sliding_window is
true."""

from __future__ import annotations

from functools import partial

from nemo_prorl.engines.megatron.families.family import Family, layer

FAMILY = Family(
    name="Qwen3ForCausalLM",
    layer=partial(layer, head_norms=True),
    keys=frozenset({"use_sliding_window", "sliding_window", "max_window_layers"}),
    ropes=("default", "llama3", "yarn"),
)
