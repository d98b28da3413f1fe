"""A Qwen2 of under a million parameters with a character tokenizer: small enough to train on a laptop's CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

END = "<|end|>"
_SPECIAL = ["<|pad|>", END, "<|user|>", "<|assistant|>"]
_TAGS = ["<think>", "</think>", "<answer>", "</answer>", "\\boxed{"]
"""One token each, so that the format costs the policy one decision; the graders see plain text."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_random_policy(folder: Path, *, seed: int, **sizes: int) -> None:
    """Writes a Hugging Face checkpoint with random weights: config, tokenizer, chat template, safetensors. sizes: other
    values of Qwen2Config than a tiny policy's."""
    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    tiny = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    config = Qwen2Config(
        **(tiny | sizes),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["Qwen2ForCausalLM"],
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_tokenizer() -> Qwen2Tokenizer:
    """Builds a tokenizer with one token per printable ASCII character, plus the tags above.

    It is a byte-level BPE without merges, because transformers loads the tokenizer of every Qwen2 folder as this class,
    whichever class saved it.
    """
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    characters = [byte_level.pre_tokenize_str(chr(code))[0][0] for code in range(32, 127)]
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate([*_SPECIAL, *characters])},
        merges=[],
        unk_token=None,
        bos_token=None,
        eos_token=END,
        pad_token="<|pad|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
    )
    tokenizer.add_tokens(_TAGS)
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer
