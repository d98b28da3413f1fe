"""Tests of the tiny policy's tokenizer, loaded through the class that transformers chooses: decoding returns the
encoded text."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from experiments.boundary import tiny_policy
from nemo_prorl.commands.parsing import composed
from nemo_prorl.data.mix import render
from nemo_prorl.demo import tasks

PRINTABLE = "".join(chr(code) for code in range(32, 127))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    tiny_policy.write_random_policy(folder, seed=1)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def decode(tokenizer: Any, token_ids: list[int]) -> str:
    """Decodes tokens as the sampler does."""
    return tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from(PRINTABLE), max_size=40))
@example(text="  two  spaces <think> a </think> b Hello , world ! it 's \\boxed{ 1 } <answer> x</answer> ")
def test_text_comes_back_to_the_last_space(tokenizer: Any, text: str) -> None:
    assert decode(tokenizer, encode(tokenizer, text)) == text


def test_a_character_is_one_token_and_so_is_a_tag(tokenizer: Any) -> None:
    assert len(encode(tokenizer, string.ascii_letters)) == len(string.ascii_letters)
    tags = (
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "\\boxed{",
        "<|end|>",
        "<|user|>",
        "<|assistant|>",
    )
    for tag in tags:
        assert len(encode(tokenizer, tag)) == 1, tag


def test_the_vocabulary_is_the_models(folder: Path, tokenizer: Any) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    assert config.vocab_size == len(tokenizer) == 1 + max(tokenizer.get_vocab().values())
    assert config.eos_token_id == tokenizer.eos_token_id == encode(tokenizer, tiny_policy.END)[0]
    assert config.pad_token_id == tokenizer.pad_token_id != config.eos_token_id
    assert config.max_position_embeddings >= 208, "the context of conf/laptop.yaml"


@pytest.mark.parametrize("name", tasks.TASKS)
def test_prompts_fit_the_laptops_context(tokenizer: Any, name: str) -> None:
    sampler = composed("laptop", []).sampler
    for row in tasks.problems(name, max(tasks.TASKS[name].measured), count=100, split="train"):
        assert len(render(row, tokenizer).token_ids) <= sampler.max_prompt_tokens
