"""Real vLLM engines on CPU, over tiny checkpoints built here. One engine serves a whole session: starting one takes
seconds, refreshing its weights milliseconds."""

from __future__ import annotations

from nemo_prorl.engines import environment

environment.prepare()  # before torch and vLLM are imported

from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from unittest import mock  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer  # noqa: E402

from benchmarks.gpu_check.tiny_model import build_model, character_tokenizer, run_config  # noqa: E402
from nemo_prorl import distributed  # noqa: E402
from nemo_prorl.engines.interface import SamplingSettings  # noqa: E402
from nemo_prorl.engines.vllm.sampler import VllmSampler  # noqa: E402
from nemo_prorl.types import Prompt, Rollout  # noqa: E402


@pytest.fixture(scope="session")
def tokenizer() -> Qwen2Tokenizer:
    return character_tokenizer()


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base and other: the same shape, other weights; untied and untied_other likewise."""
    folder = tmp_path_factory.mktemp("models")
    for seed, (name, tied) in enumerate(
        [("base", True), ("other", True), ("untied", False), ("untied_other", False)], start=1
    ):
        build_model(folder / name, seed=seed, tied=tied)
    return folder


@pytest.fixture(scope="session")
def hf_model(models_dir: Path) -> Callable[[str], Qwen2ForCausalLM]:
    def load(name: str) -> Qwen2ForCausalLM:
        return Qwen2ForCausalLM.from_pretrained(models_dir / name, dtype=torch.float32)

    return load


@pytest.fixture(scope="session")
def weights_of(hf_model: Callable[[str], Qwen2ForCausalLM]) -> Callable[[str], dict[str, torch.Tensor]]:
    """As a policy streams them: no lm_head where it is tied."""

    def collect(name: str) -> dict[str, torch.Tensor]:
        model = hf_model(name)
        left_out = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        return {key: tensor for key, tensor in model.state_dict().items() if key not in left_out}

    return collect


@pytest.fixture(scope="session")
def make_prompt(tokenizer: Qwen2Tokenizer) -> Callable[..., Prompt]:
    def make(text: str, uid: str = "") -> Prompt:
        token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        return Prompt(uid=uid or text, domain="logic", source="test", text=text, token_ids=token_ids, task={})

    return make


@pytest.fixture(scope="session")
def draw() -> Callable[..., list[list[Rollout]]]:
    """sampler.sample with settings that the tests share; name the ones that differ."""

    def call(
        sampler: VllmSampler,
        prompts: Sequence[Prompt],
        on_finish: Callable[[Rollout], None] = lambda rollout: None,
        siblings: Sequence[Sequence[int]] | None = None,
        **changes: Any,
    ) -> list[list[Rollout]]:
        settings = {"num_rollouts": 4, "temperature": 1.2, "top_p": 1.0, "max_response_tokens": 24, "seed": 7}
        return sampler.sample(prompts, SamplingSettings(**(settings | changes)), on_finish, siblings)

    return call


@pytest.fixture(scope="session")
def start(models_dir: Path, tokenizer: Qwen2Tokenizer) -> Iterator[Callable[..., VllmSampler]]:
    """Starts an engine on one of the checkpoints."""
    ranks = distributed.initialise(1, 1)
    started: list[VllmSampler] = []

    def build(name: str, *, reads_weights: bool = True, **settings: Any) -> VllmSampler:
        config = run_config(models_dir / name, **settings)
        started.append(VllmSampler(config, ranks, tokenizer, reads_weights=reads_weights))
        return started[-1]

    yield build
    with mock.patch("gc.collect"):  # vLLM calls it for each engine; at the end of a session it takes a second
        for sampler in started:
            sampler.close()


@pytest.fixture(scope="session")
def shared_sampler(start: Callable[..., VllmSampler]) -> VllmSampler:
    return start("base")


@pytest.fixture
def sampler(shared_sampler: VllmSampler, weights_of: Callable[[str], dict[str, torch.Tensor]]) -> VllmSampler:
    """The session's engine with the weights of `base` as version 0, whatever the test before did."""
    shared_sampler.load_weights(weights_of("base").items(), 0)
    return shared_sampler
