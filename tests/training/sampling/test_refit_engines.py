"""`train` on the real engines with a sampler that does not get or use the policy's weights: the run stops within two
steps, saves, and names the fault. A healthy run with temperature 1.2 reports none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_prorl.__main__ import main
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.markers import why_failed
from tests.engines.conftest import run_ranks
from tests.training.tiny import TIMEOUT_S, Case, steps

pytestmark = pytest.mark.slow

Weights = Iterable[tuple[str, torch.Tensor]]
LAYER = "model.layers.1."


def frozen_layer() -> None:
    """A layer that is never updated, on the last rank only."""
    from nemo_prorl.config.layout import rank_from_environment
    from nemo_prorl.engines.vllm.sampler import VllmSampler

    load, frozen = VllmSampler.load_weights, dict[str, torch.Tensor]()

    def load_frozen(self: Any, weights: Weights, version: int) -> Any:
        def stream() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights:
                yield name, frozen.setdefault(name, tensor.clone()) if name.startswith(LAYER) else tensor

        return load(self, stream(), version)

    if rank_from_environment() == 1:
        VllmSampler.load_weights = load_frozen  # type: ignore[method-assign]


def left_out_by_the_loader() -> None:
    from nemo_prorl.engines.vllm.weight_transfer import InProcessTransfer

    receive, received = InProcessTransfer.receive_weights, list[int]()

    def receive_less(self: Any, update_info: Any) -> None:
        received.append(1)
        if len(received) == 2:  # the first load is whole
            load = self.model.load_weights
            self.model.load_weights = lambda weights: load(
                (n, t) for n, t in weights if not n.startswith(LAYER)
            )
        receive(self, update_info)

    InProcessTransfer.receive_weights = receive_less  # type: ignore[method-assign]


def colder_sampling() -> None:
    """A sampler with the right weights and a lower temperature."""
    from nemo_prorl.engines.vllm.sampler import VllmSampler

    params = VllmSampler._params

    def colder(self: Any, *arguments: Any) -> Any:
        made = params(self, *arguments)
        made.temperature *= 0.5
        return made

    VllmSampler._params = colder  # type: ignore[method-assign]


def nothing() -> None: ...


def train_spoiled(spoil: Callable[[], None], arguments: list[str]) -> None:
    """Trains with a fault, in a process of its own."""
    spoil()
    with suppress(SystemExit):
        main(arguments)


def train(case: Case, spoil: Callable[[], None], *overrides: str, num_ranks: int = 1) -> Path:
    name = f"refit_{spoil.__name__}"
    arguments = case.command(name, "validation.max_prompts=1", *overrides)
    run_ranks(train_spoiled, num_ranks, timeout_s=TIMEOUT_S, spoil=spoil, arguments=arguments)
    return case.run_dir(name)


@pytest.mark.parametrize(
    ("spoil", "num_ranks", "overrides", "last_step", "named"),
    [
        (frozen_layer, 2, [], 1, "12 of 50 tensors, all in model.layers.1 (model.layers.1.input_layernorm.weight"),
        (left_out_by_the_loader, 2, ["sampler.tensor_parallel=2"], 1, "12 of 50 tensors, all in model.layers.1 (model"),
        (colder_sampling, 1, [], 2, "The sampler holds every tensor bit for bit as the policy sent it"),
    ],
)  # fmt: skip
def test_a_faulty_sampler_stops_the_run_within_two_steps_and_the_fault_is_named(
    case: Case, spoil: Callable[[], None], num_ranks: int, overrides: list[str], last_step: int, named: str
) -> None:
    folder = train(case, spoil, "trainer.num_steps=4", *overrides, num_ranks=num_ranks)
    reason = why_failed(folder, "main")
    assert f"stopped after step {last_step}" in reason
    assert named in reason
    assert find_checkpoints(folder)[-1].state.step == last_step
    assert steps(folder)[-1]["controller"]["signal"] == "sampler_mismatch"


def test_a_healthy_run_finds_nothing(case: Case) -> None:
    """With the recipe's temperature, resets and sampling ahead."""
    folder = train(
        case, nothing, "trainer.num_steps=4", "sampler.ahead=true", "algorithm.correction_level=token",
        "algorithm.kl_weighted=true",
        "exp_manager.checkpoint_callback_params.every_n_train_steps=0", "controller.mode=interval",
        "controller.interval=2",
    )  # fmt: skip
    records = steps(folder)
    assert len(records) == 4
    assert records[-1]["num_resets"] == 2
    assert all(0 <= record["sampler/canary_abs_diff_max"] < 1e-4 for record in records)
    assert not any(record["sampler/num_wrong_tensors"] for record in records)
    said = (folder / "run.log").read_text()
    warnings = [line for line in said.splitlines() if "warning: " in line]
    assert all(
        "warning: trainer.learning_rate" in line for line in warnings
    )  # large, so that few steps are enough
    assert "refit after" not in said
