"""The config.json of published models: every key is understood, and the tensors have the size that the hub shows."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_prorl.engines.megatron.architecture import read_architecture

OF_ALL: dict[str, Any] = {
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
    "torch_dtype": "bfloat16", "transformers_version": "4.47.0", "use_cache": True, "tie_word_embeddings": False,
}  # fmt: skip
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "DeepSeek-R1-Distill-Qwen-1.5B": (
        1_777_088_000,
        {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1536,
            "intermediate_size": 8960, "max_position_embeddings": 131072, "max_window_layers": 21,
            "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "rope_theta": 10000, "sliding_window": 4096, "use_mrope": False, "use_sliding_window": False,
            "vocab_size": 151936,
        },
    ),
    "Qwen3-8B": (
        8_190_735_360,
        {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
            "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
            "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
            "use_sliding_window": False, "vocab_size": 151936,
        },
    ),
    "Llama-3.1-8B-Instruct": (
        8_030_261_248,
        {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
            "eos_token_id": [128001, 128008, 128009], "hidden_size": 4096, "intermediate_size": 14336,
            "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
            "rope_scaling": {
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "rope_theta": 500000.0, "vocab_size": 128256,
        },
    ),
    "Mistral-Nemo-Instruct-2407": (
        12_247_782_400,
        {
            "architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 128, "hidden_size": 5120,
            "intermediate_size": 14336, "max_position_embeddings": 131072, "num_attention_heads": 32,
            "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
            "sliding_window": None, "vocab_size": 131072,
        },
    ),
    "phi-4": (
        14_659_507_200,
        {
            "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False, "auto_map": {},
            "embd_pdrop": 0.0, "hidden_size": 5120, "intermediate_size": 17920, "max_position_embeddings": 16384,
            "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
            "original_max_position_embeddings": 16384, "resid_pdrop": 0.0, "rms_norm_eps": 1e-5,
            "rope_scaling": None, "rope_theta": 250000, "sliding_window": None, "vocab_size": 100352,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_is_understood_and_has_its_size(name: str) -> None:
    num_parameters, config = PUBLISHED[name]
    assert read_architecture(OF_ALL | config).num_parameters == num_parameters
