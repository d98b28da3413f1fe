"""Phi-3 and Phi-4: Llama's layers with one tensor for queries, keys and values, and one for gate and up projection."""

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
    return *norms(sizes), *attention(sizes, fused=True), *feed_forward(sizes, fused=True)


FAMILY = Family(
    name="Phi3ForCausalLM",
    layer=layer,
    keys=frozenset({"sliding_window", "original_max_position_embeddings", "resid_pdrop", "embd_pdrop"}),
    own_head_dim=False,
    norm_epsilon=1e-5,
)
