"""What the optimizer updates: all weights of the model, or the factors of a low-rank difference between policy and
reference (low_rank.py), which overrides the methods. A policy chooses one of them when it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from nemo_prorl.config import RunConfig
from nemo_prorl.distributed import Layout
from nemo_prorl.engines.megatron import build, core, optimizer_state


class Trainable:
    """The parameters that have gradients, moments and a place in checkpoints: here every weight of the model."""

    module: torch.nn.Module
    """Has these parameters and no others."""
    wrapped: core.DistributedDataParallel
    """`module` with fp32 gradient buffers."""
    optimizer: core.MegatronOptimizer
    forward: torch.nn.Module
    """What Megatron runs the passes of."""
    lora: dict[str, Any]
    """Rank, scale and targets of low-rank factors; empty if all weights are trained."""

    def __init__(self, model: build.HiddenStateModel, config: RunConfig, layout: Layout) -> None:
        self.lora = config.lora.recorded
        self.module = model
        self.wrapped, self.optimizer = build.build_training(model, config, layout)
        self.forward = self.wrapped
        optimizer_state.allocate(self.optimizer)

    def put(self, reference: Mapping[str, torch.Tensor]) -> None:
        """Writes into the model what an optimizer step has changed: nothing, if it updates the weights themselves.
        reference: the local weights by parameter name."""

    @contextmanager
    def holding(self, reference: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Gives the model the weights of the reference inside the `with` block, and then its own again, exactly. These
        are not moved: the model's parameters refer to other tensors."""
        parameters = dict(self.module.named_parameters())
        current = {name: parameter.data for name, parameter in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.data = reference[name].to(parameter.device, non_blocking=True)
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = current[name]

    def restart(self, num_updates: int) -> None:
        """Begins anew after the model's weights have become the reference, on which whole weights do not depend.
        num_updates: those of the run so far."""

    def places(self) -> dict[str, Any]:
        """Returns parameter name -> description of the local shard of `module`'s parameter in a checkpoint."""
        sharded = self.module.sharded_state_dict()  # type: ignore[operator]
        return {name: sharded[name] for name, _ in self.module.named_parameters()}

    def in_use(self) -> str:
        """Returns what is trained, for the log."""
        return "all weights"

    def relative_change(self) -> dict[str, float]:
        """Returns group of matrices -> norm of their difference to the reference, divided by their own norm. Empty if
        no difference is kept. Collective over the replica."""
        return {}
