"""A random model with a tokenizer of characters, for vLLM. tests/engines/vllm uses it as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from nemo_prorl.config import ModelConfig, Precision, RunConfig, SamplerConfig

SPECIAL = ["<pad>", "<eos>", "<think>", "</think>"]


def character_tokenizer() -> Qwen2Tokenizer:
    """Returns a tokenizer with one token a printable ASCII character, after the four special ones.
    It is byte-level BPE without merges, because transformers loads the tokenizer of any Qwen2 folder as that class,
    whatever class saved it."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    names = [byte_level.pre_tokenize_str(chr(code))[0][0] for code in range(32, 127)]
    return Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate([*SPECIAL, *names])},
        merges=[],
        unk_token=None,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<think>", "</think>"],
    )


def build_model(folder: Path, *, seed: int, tied: bool = True) -> Path:
    """Writes a random Qwen2 checkpoint whose next-token distribution is neither flat nor certain, eos included."""
    config = Qwen2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).float()
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.data = 0.15 * noise if parameter.ndim == 2 else parameter.data + 0.1 * noise
    if tied:
        model.tie_weights()
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def run_config(path: Path, *, precision: Precision = Precision.fp32, **sampler: Any) -> RunConfig:
    """Returns the options of a sampler of such a model."""
    settings = {
        "max_prompt_tokens": 256,
        "max_response_tokens": 256,
        "kv_cache_mib": 64,
        "max_sequences": 256,
    }
    return RunConfig(
        model=ModelConfig(path=str(path), precision=precision), sampler=SamplerConfig(**(settings | sampler))
    )
