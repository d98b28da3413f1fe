"""Phi-3 and Phi-4: Llama's layers with one tensor for queries, keys and values, and one for gate and up projection."""

from __future__ import annotations

from functools import partial

from nemo_prorl.engines.megatron.families.family import Family, layer

FAMILY = Family(
    name="Phi3ForCausalLM",
    layer=partial(layer, fused=True),
    keys=frozenset({"sliding_window", "original_max_position_embeddings", "resid_pdrop", "embd_pdrop"}),
    own_head_dim=False,
    norm_epsilon=1e-5,
)
