"""vLLM's asynchronous scheduler, which CUDA uses and CPU switches off: the next step is scheduled before the results of
the last are here. Driven on CPU with the real model; only torch's streams and events are stand-ins."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from vllm.platforms.cpu import CpuPlatform


@pytest.fixture
def asynchronous(start, monkeypatch):
    """An engine on `base` that schedules asynchronously."""
    settle = CpuPlatform.check_and_update_config.__func__

    def settle_and_switch_on(platform, config):
        settle(platform, config)
        config.scheduler_config.async_scheduling = True

    nothing = SimpleNamespace(
        wait_stream=lambda *args: None, record=lambda *args: None, synchronize=lambda: None
    )
    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(settle_and_switch_on))
    monkeypatch.setattr(torch.cuda, "Event", lambda **settings: nothing)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *args: nothing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *args: nothing)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return start("base")


def bits(groups):
    return [(r.token_ids.tobytes(), r.sampler_logprobs.tobytes()) for group in groups for r in group]


def core_of(sampler):
    return sampler._llm.llm_engine.engine_core.engine_core


def test_a_call_leaves_nothing_to_the_next(asynchronous, sampler, weights_of, make_prompt, draw):
    """When the last rollout has ended, a batch is still under way. It touches neither the prefix cache nor a refit, and
    the rollouts of the next call are, bit for bit, those of the synchronous scheduler."""
    core = core_of(asynchronous)
    assert asynchronous.in_use()["scheduling"] == "asynchronous"
    assert sampler.in_use()["scheduling"] == "synchronous"
    assert core.batch_queue_size == 2
    prompts = [make_prompt("3+4=?"), make_prompt("a prefix that is longer than one block of the cache, " * 2)]
    left = []
    for version, weights in enumerate(("base", "other", "base"), start=1):
        for engine in (asynchronous, sampler):
            assert not engine.load_weights(weights_of(weights).items(), version).not_held
        for seed in (7, 8):
            got = draw(asynchronous, prompts, num_rollouts=16, max_response_tokens=40, seed=seed)
            assert bits(got) == bits(
                draw(sampler, prompts, num_rollouts=16, max_response_tokens=40, seed=seed)
            )
            left.append(len(core.batch_queue))
            assert not core.scheduler.requests
            assert asynchronous._llm.reset_prefix_cache()
    assert any(left), "no batch was ever left over: the test shows nothing"
