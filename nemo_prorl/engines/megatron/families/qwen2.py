"""Qwen 2, Qwen 2.5 and what was distilled into them: biases on queries, keys and values. They have a window only where
use_sliding_window is true."""

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
    return *norms(sizes), *attention(sizes, bias=True), *feed_forward(sizes)


FAMILY = Family(
    name="Qwen2ForCausalLM",
    layer=layer,
    keys=frozenset({"use_sliding_window", "sliding_window", "max_window_layers"}),
    ropes=("default", "llama3", "yarn"),
    own_head_dim=False,
)
