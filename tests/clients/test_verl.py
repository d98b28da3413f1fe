"""verl's own reward managers with the adapter as their custom reward function."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip(
    "verl", reason="verl is not installed here: `make test-clients` runs this in .venv-clients"
)
pytest.importorskip("ray", reason="verl's reward managers import ray, which is not installed here")

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager

from reward.adapters.verl import StopTraining
from tests.reward.serving import Server

CODE = '{"inputs": ["1\\n", "2\\n"], "outputs": ["2\\n", "4\\n"]}'
ROWS = [
    ("math_dapo", "\\boxed{4}", "4", {}, 1.0),
    ("math_dapo", "\\boxed{5}", "4", {}, 0.0),
    ("gpqa", "\\boxed{B}", "B", {"domain": "stem"}, 1.0),
    ("codecontests", "```python\nprint(int(input()) + 1)\n```", CODE, {}, 0.5),
    ("math_dapo", "\\boxed{4}", "4", {"in_thought": True}, 0.0),
]
"""(data_source, response, ground_truth, extra_info, score)"""


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return bytes(int(token) for token in ids).decode()


def manager(name: str, function: str, **kwargs: Any) -> Any:
    """Returns a reward manager that is created as verl's reward loop worker does, from the options that a user
    writes."""
    custom = {"path": "pkg://reward.adapters.verl", "name": function, "reward_kwargs": kwargs}
    config = {
        "reward": {
            "num_workers": 1, "timeout": 30.0, "max_concurrent": 8, "custom_reward_function": custom,
            "reward_manager": {"source": "register", "name": name},
        }
    }  # fmt: skip
    return load_reward_manager(OmegaConf.create(config), Bytes())


def item(row: tuple[str, str, str, dict[str, Any], float]) -> DataProto:
    """Returns one rollout in the form in which verl passes it to a manager."""
    source, response, ground_truth, extra_info, _ = row
    ids, prompt = list(response.encode()), list(b"2+2?")
    return DataProto.from_dict(
        tensors={
            "prompts": torch.tensor([prompt]),
            "responses": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(prompt) + len(ids), dtype=torch.long),
        },
        non_tensors={
            "data_source": np.array([source], dtype=object),
            "reward_model": np.array([{"ground_truth": ground_truth}], dtype=object),
            "extra_info": np.array([dict(extra_info)], dtype=object),
        },
    )


def grade(using: Any, rows: list[Any]) -> list[dict[str, Any]]:
    async def all_of_them() -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(using.run_single(item(row)) for row in rows)))

    return using.loop.run_until_complete(all_of_them())


@pytest.mark.parametrize("function", ["compute_score", "compute_score_blocking"])
@pytest.mark.parametrize("name", ["naive", "dapo", "rate_limited"])
def test_verls_managers_get_the_services_scores(server: Server, name: str, function: str) -> None:
    results = grade(manager(name, function, servers=[server.url]), ROWS)
    assert [result["reward_score"] for result in results] == [row[-1] for row in ROWS]


@pytest.mark.parametrize("function", ["compute_score", "compute_score_blocking"])
@pytest.mark.parametrize("name", ["naive", "dapo", "rate_limited"])
@pytest.mark.parametrize("label", ["", '{"inputs": ["1"], "outputs": []}'])
def test_no_manager_of_verls_makes_a_0_of_a_bad_label(
    server: Server, label: str, name: str, function: str
) -> None:
    with pytest.raises(StopTraining):
        grade(manager(name, function, servers=[server.url]), [("math_dapo", "\\boxed{4}", label, {}, 0.0)])


@pytest.mark.parametrize("function", ["compute_score", "compute_score_blocking"])
@pytest.mark.parametrize("name", ["naive", "dapo", "rate_limited"])
def test_no_manager_of_verls_makes_a_0_of_no_verdict(name: str, function: str) -> None:
    using = manager(name, function, servers=["http://127.0.0.1:9"], patience_s=0.5)
    with pytest.raises(StopTraining, match="did not grade a response"):
        grade(using, ROWS[:1])
