"""Families of dense decoders: what distinguishes their layers and their config.json from Llama's."""

from __future__ import annotations

from functools import partial

from nemo_prorl.engines.megatron.families.family import Family, layer

_WINDOW_IF_ASKED = frozenset({"use_sliding_window", "sliding_window", "max_window_layers"})

_FAMILIES = (
    # Llama 2, 3 and 3.1, and what has their layers, such as SmolLM 2.
    Family(
        name="LlamaForCausalLM", layer=layer, keys=frozenset({"pretraining_tp"}), ropes=("default", "llama3")
    ),
    # Mistral 7B from v0.3 on, Nemo, Small and Magistral. A missing sliding_window stands for 4,096.
    Family(name="MistralForCausalLM", layer=layer, keys=frozenset({"sliding_window"}), window=4096),
    # Phi-3 and Phi-4: one tensor for queries, keys and values, and one for gate and up projection.
    Family(
        name="Phi3ForCausalLM",
        layer=partial(layer, fused=True),
        keys=frozenset({"sliding_window", "original_max_position_embeddings", "resid_pdrop", "embd_pdrop"}),
        own_head_dim=False,
        norm_epsilon=1e-5,
    ),
    # Qwen 2, Qwen 2.5 and what was distilled into them: biases on queries, keys and values.
    Family(
        name="Qwen2ForCausalLM",
        layer=partial(layer, bias=True),
        keys=_WINDOW_IF_ASKED,
        ropes=("default", "llama3", "yarn"),
        own_head_dim=False,
    ),
    # Qwen 3, dense: a norm on the queries and keys of each head.
    Family(
        name="Qwen3ForCausalLM",
        layer=partial(layer, head_norms=True),
        keys=_WINDOW_IF_ASKED,
        ropes=("default", "llama3", "yarn"),
    ),
)
FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
"""Name in `architectures` of config.json -> family."""
