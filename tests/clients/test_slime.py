"""slime's and miles' own `remote_rm` against /slime. They are in no package index: PRORL_SLIME and PRORL_MILES name
checkouts."""

from __future__ import annotations

import asyncio
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.clients.conftest import import_alone
from tests.reward.fake_server import gateway
from tests.reward.serving import Server

CHECKOUTS = {"slime": "PRORL_SLIME", "miles": "PRORL_MILES"}
if not any(
    map(os.environ.get, CHECKOUTS.values())
):  # here, because a fixture would skip only after the service
    names = " or ".join(CHECKOUTS.values())
    pytest.skip(f"needs a checkout of slime or miles: give its folder in {names}", allow_module_level=True)


@pytest.fixture(scope="module", params=CHECKOUTS)
def hub(request: pytest.FixtureRequest) -> ModuleType:
    folder = os.environ.get(CHECKOUTS[request.param], "")
    if not folder:
        pytest.skip(f"needs a checkout of {request.param}: give its folder in {CHECKOUTS[request.param]}")
    sys.path.insert(0, folder)
    return import_alone(f"{request.param}.rollout.rm_hub", unused=("ray", "pylatexenc"))


def reward(hub: ModuleType, url: str, response: str, label: Any, prompt: Any = "2 + 2?", **more: Any) -> Any:
    sample = SimpleNamespace(prompt=prompt, response=response, label=label)

    async def main() -> Any:
        try:
            return await hub.remote_rm(SimpleNamespace(rm_url=url), sample, **more)
        finally:
            if getattr(hub, "_shared_session", None) is not None:
                await hub._shared_session.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("response", "label", "prompt", "wanted"),
    [
        ("so \\boxed{4}<|im_end|>", "4", "2 + 2?", 1.0),
        ("so \\boxed{5}<|im_end|>", "4", "2 + 2?", 0.0),
        ("```python\nprint(2)\n```<|im_end|>", {"inputs": ["1", "3"], "outputs": ["2", "6"]}, "?", 0.5),
        ("perhaps \\boxed{4}", "4", "2 + 2?<think>\n", 0.0),
        ("\\boxed{4}", "4", [{"role": "user", "content": "2 + 2?"}], 1.0),
    ],
)
def test_rewards(
    hub: ModuleType, server: Server, response: str, label: Any, prompt: Any, wanted: float
) -> None:
    assert reward(hub, f"{server.url}/slime", response, label, prompt) == wanted


def test_the_token_goes_into_the_url(hub: ModuleType, guarded_url: str) -> None:
    assert reward(hub, f"{guarded_url}/slime?domain=stem", "\\boxed{B}", "B") == 1.0


def test_what_is_not_graded_is_raised(hub: ModuleType, server: Server) -> None:
    few = {"max_retries": 2} if hub.__name__.startswith("slime") else {}
    with gateway(f"{server.url}/slime", *[503] * 2) as between, pytest.raises(Exception, match="503"):
        reward(hub, between.url, "\\boxed{4}", "4", **few)


def test_a_bad_label_is_raised(hub: ModuleType, server: Server) -> None:
    few = {"max_retries": 1} if hub.__name__.startswith("slime") else {}
    with pytest.raises(Exception, match="400"):
        reward(hub, f"{server.url}/slime", "\\boxed{4}", None, **few)


def test_slime_tries_again(hub: ModuleType, server: Server) -> None:
    if not hub.__name__.startswith("slime"):
        pytest.skip("miles does not try again: it raises at once")
    with gateway(f"{server.url}/slime", 503, 503) as between:
        assert reward(hub, between.url, "\\boxed{4}", "4") == 1.0
        assert len(between.batches) == 3
