"""Llama 2, 3 and 3.1, and what has their layers, such as SmolLM 2."""

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
    return *norms(sizes), *attention(sizes), *feed_forward(sizes)


FAMILY = Family(
    name="LlamaForCausalLM",
    layer=layer,
    keys=frozenset({"pretraining_tp"}),
    ropes=("default", "llama3"),
)
