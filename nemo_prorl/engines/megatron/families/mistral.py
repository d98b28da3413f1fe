"""Mistral 7B from v0.3 on, Nemo, Small and Magistral: Llama's layers. A missing sliding_window stands for 4,096."""

from __future__ import annotations

from nemo_prorl.engines.megatron.families.family import Family, layer

FAMILY = Family(name="MistralForCausalLM", layer=layer, keys=frozenset({"sliding_window"}), window=4096)
