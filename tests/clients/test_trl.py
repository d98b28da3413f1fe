"""TRL's own GRPOTrainer with the adapter: five steps against the real service, and what it does with None."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed here: `make test-clients` runs this in .venv-clients")

import numpy as np
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from experiments.boundary.tiny_policy import write_random_policy
from reward.adapters.connection import ServiceConnection
from reward.adapters.trl import RewardFunction, reward_service
from tests.reward.serving import Server

STEPS, GROUP = 5, 4
WORDS = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
"""Instructions that a policy with random weights sometimes follows, so that rewards of 0 and 1 occur."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    write_random_policy(folder, seed=0)
    return str(folder)


def trainer(policy: str, out: Path, reward: Any, rows: list[dict[str, Any]], **options: Any) -> GRPOTrainer:
    options = {
        "max_steps": STEPS, "per_device_train_batch_size": 2 * GROUP, "num_generations": GROUP,
        "max_completion_length": 24, "learning_rate": 1e-3, "logging_steps": 1, "use_cpu": True, "bf16": False,
        "model_init_kwargs": {"dtype": "float32"}, "gradient_checkpointing": False, "save_strategy": "no",
        "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False, "seed": 1, "top_k": 0,
    } | options  # fmt: skip
    args = GRPOConfig(output_dir=str(out), **options)
    return GRPOTrainer(model=policy, reward_funcs=[reward], args=args, train_dataset=Dataset.from_list(rows))


class Recorded:
    """Forwards calls and keeps the rewards."""

    def __init__(self, function: RewardFunction) -> None:
        self.function, self.__name__ = function, function.__name__
        self.seen: list[float | None] = []

    def __call__(self, **arguments: Any) -> list[float | None]:
        rewards = self.function(**arguments)
        self.seen += rewards
        return rewards


@pytest.mark.parametrize("form", ["text", "messages"])
def test_five_steps_of_grpo_get_and_log_the_rewards(
    server: Server, policy: str, tmp_path: Path, form: str
) -> None:
    prompts: list[Any] = ["2+2?", "say a"]
    if form == "messages":
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    rows = [{"prompt": prompt, "domain": "instruction", "task": WORDS} for prompt in prompts]
    function = Recorded(reward_service(server.url))
    run = trainer(policy, tmp_path, function, rows)
    run.train()
    assert run.state.global_step == STEPS
    assert len(function.seen) == STEPS * 2 * GROUP
    assert set(function.seen) == {0.0, 1.0}
    logged = [entry for entry in run.state.log_history if "rewards/reward_service/mean" in entry]
    steps = np.array(function.seen, dtype=float).reshape(STEPS, 2 * GROUP)
    assert [entry["rewards/reward_service/mean"] for entry in logged] == pytest.approx(
        steps.mean(axis=1).tolist()
    )
    assert all(entry["reward_service/not_graded"] == 0 for entry in logged)


def test_without_a_service_nothing_is_learned_rather_than_zeros(policy: str, tmp_path: Path) -> None:
    nobody = RewardFunction(connection=ServiceConnection(servers=("http://127.0.0.1:9",), patience_s=0.5))
    rows = [{"prompt": f"{number}+1?", "answer": str(number + 1)} for number in range(2)]
    run = trainer(policy, tmp_path, nobody, rows, max_steps=1)
    before = {name: weight.detach().clone() for name, weight in run.model.named_parameters()}
    run.train()
    (entry,) = (entry for entry in run.state.log_history if "reward_service/not_graded" in entry)
    assert entry["reward_service/not_graded"] == 1.0
    assert entry["rewards/reward_service/mean"] is None  # transformers writes a NaN in this form
    assert all((weight == before[name]).all() for name, weight in run.model.named_parameters())
