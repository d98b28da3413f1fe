"""SkyRL's own environments (skyrl_gym) with the class that docs/other_trainers.md shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip(
    "skyrl_gym", reason="SkyRL's environments are not installed here: `make test-clients` runs this"
)

import skyrl_gym

from reward.adapters.verl import StopTraining
from tests.reward.serving import Server

PAGE = Path(__file__).parents[2] / "docs" / "other_trainers.md"
CODE = '{"inputs": ["1\\n", "2\\n"], "outputs": ["2\\n", "4\\n"]}'


@pytest.fixture(scope="module", autouse=True)
def registered(server: Server) -> Iterator[None]:
    """Registers the page's class with SkyRL under the name `graded`, with this service's address."""
    found = re.search(r"## SkyRL\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    module = sys.modules["graded"] = ModuleType("graded")
    exec(found[1].replace("http://127.0.0.1:8700", server.url), module.__dict__)
    skyrl_gym.register(id="graded", entry_point="graded:Graded")
    yield
    del sys.modules["graded"]


def made(label: str) -> Any:
    env = skyrl_gym.make("graded", env_config={}, extras={"reward_spec": {"ground_truth": label}})
    env.init([{"role": "user", "content": "2 + 2?"}])
    return env


@pytest.mark.parametrize(
    ("label", "response", "reward"),
    [
        ("4", "so \\boxed{4}", 1.0),
        ("4", "so \\boxed{5}", 0.0),
        (CODE, "```python\nprint(int(input()) + 1)\n```", 0.5),
    ],
)
def test_an_episode_gets_the_services_score(label: str, response: str, reward: float) -> None:
    step = made(label).step(response)
    assert (step["reward"], step["done"]) == (reward, True)


def test_a_bad_label_is_not_a_0() -> None:
    with pytest.raises(StopTraining):
        made("").step("so \\boxed{4}")
