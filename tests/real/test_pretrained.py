"""Tests a pretrained model (stories260K: Llama, grouped-query attention, tied embeddings, its own tokenizer) with
conversion, Megatron and vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nemo_prorl import distributed
from nemo_prorl.engines.interface import SamplingSettings
from nemo_prorl.engines.megatron import conversion
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.engines.vllm.sampler import VllmSampler
from nemo_prorl.types import Prompt, Rollout, TokenBatch
from tests.engines.conftest import run_ranks
from tests.engines.megatron.helpers import plain_logprobs, run_config
from tests.engines.vllm.conftest import run_config as sampler_config

pytestmark = pytest.mark.slow

OPENINGS = (
    "Once upon a time", "One day, a little girl", "Tom had a", "The big dog", "In the park", "Lily and Ben",
    "There was a small", "Every morning", "Mom said", "The sun was",
)  # fmt: skip
ENDINGS = (
    "", " named Tim", " who loved to", " and he was", " near the lake", " with a red ball", " saw a bird",
    " wanted to go", " was very happy", " played with",
)  # fmt: skip
GREEDY_TOKENS = 32


@pytest.fixture(scope="module")
def stories(real_data: Path) -> Path:
    return real_data / "stories260K"


@pytest.fixture(scope="module")
def tokenizer(stories: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(stories)


@pytest.fixture(scope="module")
def model(stories: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[Prompt]:
    """Returns a hundred different beginnings of stories."""
    return [
        Prompt(
            uid=text,
            domain="instruction",
            source="stories",
            text=text,
            token_ids=tuple(tokenizer.encode(text)),
            task={},
        )
        for text in (opening + ending for opening in OPENINGS for ending in ENDINGS)
    ]


@pytest.fixture(scope="module")
def sampler(stories: Path, tokenizer: Any) -> Iterator[VllmSampler]:
    started = VllmSampler(
        sampler_config(stories, max_prompt_tokens=64, max_response_tokens=192),
        distributed.initialise(1, 1),
        tokenizer,
    )
    yield started
    started.close()


def test_import_and_export_give_back_every_bit(stories: Path, tmp_path: Path) -> None:
    conversion.import_hf(stories, tmp_path / "megatron")
    conversion.save_hf(*conversion.open_checkpoint(tmp_path / "megatron"), tmp_path / "hf")
    before = load_file(stories / "model.safetensors")
    after = {n: t for file in (tmp_path / "hf").glob("*.safetensors") for n, t in load_file(file).items()}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].view(torch.int32), after[name].view(torch.int32)) for name in before)
    for file in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "hf" / file).read_bytes() == (stories / file).read_bytes()
    exported, original = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "hf", stories)
    )
    assert exported == original


@pytest.fixture(scope="module")
def batch(prompts: list[Prompt], model: Any) -> TokenBatch:
    """Returns a batch of stories that the model sampled at random, so that likely and unlikely tokens are compared."""
    torch.manual_seed(3)
    rows = []
    for prompt in prompts[::9]:
        ids = torch.tensor([prompt.token_ids])
        with torch.no_grad():
            told = model.generate(ids, do_sample=True, temperature=1.5, top_k=0, max_new_tokens=40)
        rows.append((len(prompt.token_ids), told[0].numpy()))
    width = max(len(ids) for _, ids in rows)
    token_ids = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=bool)
    for index, (num_prompt_tokens, ids) in enumerate(rows):
        token_ids[index, : len(ids)] = ids
        mask[index, num_prompt_tokens : len(ids)] = True
    lengths = np.array([len(ids) for _, ids in rows])
    return TokenBatch(token_ids_BT=token_ids, response_mask_BT=mask, lengths_B=lengths)


def megatron_logprobs(path: Path, batch: TokenBatch, **trainer: int) -> np.ndarray:
    config = run_config(path, **trainer)
    ranks = distributed.initialise(config.trainer.tensor_parallel, config.trainer.pipeline_parallel)
    return MegatronPolicy(config, ranks).logprobs(batch)


@pytest.mark.parametrize("layout", [{}, {"tensor_parallel": 2}, {"pipeline_parallel": 2}], ids=str)
def test_logprobs_equal_those_of_transformers_in_every_layout(
    layout: dict[str, int], stories: Path, batch: TokenBatch
) -> None:
    """Splits four key-value heads and eight query heads over ranks, and five layers unevenly over stages."""
    wanted = plain_logprobs(stories, batch, 1.2)
    for got in run_ranks(megatron_logprobs, 2 if layout else 1, path=stories, batch=batch, **layout):
        np.testing.assert_allclose(got, wanted, atol=2e-5, rtol=0)


def logits_of(rollout: Rollout, model: Any) -> torch.Tensor:
    """Returns transformers' logits of each token of the response, given the tokens before it."""
    ids = torch.tensor([[*rollout.prompt.token_ids, *rollout.token_ids]])
    with torch.no_grad():
        return model(ids).logits[0, len(rollout.prompt.token_ids) - 1 : -1]


def test_greedy_text_equals_that_of_transformers(
    sampler: VllmSampler, prompts: list[Prompt], model: Any, tokenizer: Any
) -> None:
    """Each token is the one that transformers finds the most likely after those before it, up to the end of a story or
    the limit: this is its greedy text, without the time of generating it."""
    greedy = SamplingSettings(
        num_rollouts=1, temperature=0.0, top_p=1.0, max_response_tokens=GREEDY_TOKENS, seed=5
    )
    groups = sampler.sample(prompts, greedy, lambda rollout: None)
    assert [group[0].prompt.uid for group in groups] == [prompt.uid for prompt in prompts]
    for (rollout,) in groups:
        told, end = rollout.token_ids.tolist(), tokenizer.eos_token_id
        assert told == logits_of(rollout, model).argmax(-1).tolist(), rollout.prompt.text
        assert end not in told[:-1]
        assert len(told) == GREEDY_TOKENS or told[-1] == end
