"""OpenRLHF's own executor (openrlhf.utils.agent) against /openrlhf: a generation, its reward, and every failure."""

from __future__ import annotations

import asyncio
import importlib.util
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.clients.conftest import import_alone
from tests.reward.fake_server import HANG_UP, gateway
from tests.reward.serving import Server

if importlib.util.find_spec("openrlhf") is None:
    pytest.skip("`make test-clients` runs these, with OpenRLHF installed", allow_module_level=True)


@pytest.fixture(scope="module")
def agent() -> ModuleType:
    return import_alone("openrlhf.utils.agent")


class Characters:
    """A tokenizer whose tokens are single characters, and <|im_end|>."""

    end = 1_114_112

    def __call__(self, text: str, **_: Any) -> Any:
        import torch

        return {"input_ids": torch.tensor([list(map(ord, text))])}

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join("<|im_end|>" if token == self.end else chr(token) for token in tokens)


class Engine:
    """An engine that generates one given text."""

    def __init__(self, text: str) -> None:
        self._tokens = [*map(ord, text), Characters.end]

    async def generate(self, *_: Any, **__: Any) -> Any:
        output = SimpleNamespace(token_ids=self._tokens, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


def rollout(
    agent: ModuleType, url: str, response: str, label: str, prompt: str = "2 + 2?", max_tokens: int = 500
) -> Any:
    executor = agent.SingleTurnAgentExecutor([url])
    params = SimpleNamespace(max_tokens=max_tokens, logprobs=None)
    return asyncio.run(executor.execute(prompt, label, params, 1000, Characters(), Engine(response)))


QUOTED = '{"instruction_id_list": ["startend:quotation"], "kwargs": [{}]}'


@pytest.mark.parametrize(
    ("response", "label", "prompt", "reward"),
    [
        ("so \\boxed{4}", "4", "2 + 2? Answer in \\boxed{4}.", 1.0),
        ("so 4", "4", "2 + 2? Answer in \\boxed{4}." * 40, 0.0),  # cut on the left
        ('"four"', QUOTED, "Speak.", 1.0),  # whose last character is before <|im_end|>
        ("perhaps \\boxed{4}", "4", "2 + 2?<|im_start|>assistant\n<think>\n", 0.0),
    ],
)
def test_rewards(
    agent: ModuleType, server: Server, response: str, label: str, prompt: str, reward: float
) -> None:
    output = rollout(agent, f"{server.url}/openrlhf", response, label, prompt)
    assert (output["reward"], output["scores"], output["extra_logs"]) == ([reward], [reward], {})


def test_the_token_goes_into_the_url(agent: ModuleType, guarded_url: str) -> None:
    assert rollout(agent, f"{guarded_url}/openrlhf", "\\boxed{4}", "4")["reward"] == [1.0]


def test_it_tries_again(agent: ModuleType, server: Server) -> None:
    with gateway(f"{server.url}/openrlhf", 503, HANG_UP, 503) as between:
        assert rollout(agent, between.url, "\\boxed{4}", "4")["reward"] == [1.0]
        assert len(between.batches) == 4


def test_it_gives_up_without_a_reward(agent: ModuleType, server: Server) -> None:
    """It returns None, for which its trainer stops (experience_maker.py), and not 0."""
    with gateway(f"{server.url}/openrlhf", *[503] * 5) as between:
        output = rollout(agent, between.url, "\\boxed{4}", "4")
    assert (output["reward"], output["scores"]) == (None, None)
