"""A random Qwen2 of any size with the vocabulary of Qwen2.5: what benchmarks measure when no model of that size is
there. Its tokenizer is the tiny policy's; tokens beyond it decode to nothing."""

from __future__ import annotations

from pathlib import Path

VOCAB = 151_936


def write_random_model(folder: Path, *, features: int, num_layers: int, vocab_size: int = VOCAB) -> None:
    """A Hugging Face folder, fp32: heads of 64 features, an MLP of four times `features`, embedding and head tied."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from nemo_prorl.demo.tiny_policy import build_tokenizer

    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=features,
        intermediate_size=4 * features,
        num_hidden_layers=num_layers,
        num_attention_heads=features // 64,
        num_key_value_heads=features // 64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
