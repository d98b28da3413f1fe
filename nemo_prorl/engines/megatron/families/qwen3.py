"""Qwen 3, dense: a norm on the queries and keys of each head. They have a window only where use_sliding_window is
true."""

from __future__ import annotations

from nemo_prorl.engines.megatron.families.family import (
    Architecture,
    Family,
    Tensor,
    attention,
    feed_forward,
    norms,
)


def layer(sizes: Architecture) -> tuple[Tensor, ...]:
    """Lists the tensors of one layer."""
    return *norms(sizes), *attention(sizes, head_norms=True), *feed_forward(sizes)


FAMILY = Family(
    name="Qwen3ForCausalLM",
    layer=layer,
    keys=frozenset({"use_sliding_window", "sliding_window", "max_window_layers"}),
    ropes=("default", "llama3", "yarn"),
)
