"""Llama 2, 3 and 3.1, and what has their layers, such as SmolLM 2."""

from __future__ import annotations

from nemo_prorl.engines.megatron.families.family import Family, layer

FAMILY = Family(
    name="LlamaForCausalLM", layer=layer, keys=frozenset({"pretraining_tp"}), ropes=("default", "llama3")
)
