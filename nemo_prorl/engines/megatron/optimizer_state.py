"""The moments of Adam, whichever optimizer keeps them: torch's AdamW or the fused one, whole or sharded over replicas,
with the weights themselves or with fp32 copies of 16-bit ones.

The rest of the engine sees one view: each model parameter has a `Slot`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nemo_prorl.engines.megatron.core import DistributedOptimizer, MegatronOptimizer

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What this rank's optimizer keeps of one model parameter."""

    main: torch.Tensor
    """What the optimizer updates: (a flat part of) the parameter or of its fp32 copy."""
    state: dict[str, Any]
    span: slice | None
    """Which part of the flattened parameter, when sharded over replicas; None: all of it."""


def slots(optimizer: MegatronOptimizer, model: torch.nn.Module) -> dict[str, Slot]:
    """By parameter name. A sharded optimizer has slots only for the parameters that it holds a part of."""
    (inner,) = optimizer.chained_optimizers
    found = {}
    for name, parameter in model.named_parameters():
        if not isinstance(inner, DistributedOptimizer):
            main, span = getattr(parameter, "main_param", parameter), None
        elif parameter in inner.model_param_group_index_map:
            group, index = inner.model_param_group_index_map[parameter]
            main = inner.optimizer.param_groups[group]["params"][index]
            span_of = inner._get_model_param_range_map(parameter)["param"]
            span = slice(span_of.start, span_of.end)
        else:
            continue
        found[name] = Slot(main=main, state=inner.optimizer.state[main], span=span)
    return found


def allocate(optimizer: MegatronOptimizer) -> None:
    """Moments of 0 from the start instead of from the first update on: saving, loading and resetting then need not ask
    whether there has been one."""
    for inner in _torch_optimizers(optimizer):
        per_parameter_step = isinstance(inner, torch.optim.Adam)
        for group in inner.param_groups:
            if not per_parameter_step:
                group["step"] = 0
            for parameter in group["params"]:
                state = inner.state[parameter]
                for moment in MOMENTS:
                    state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format).detach()
                if per_parameter_step:
                    state["step"] = torch.tensor(0.0)


def reset(optimizer: MegatronOptimizer) -> None:
    """Back to `allocate`. Learning rate, weights and fp32 copies of weights stay."""
    for inner in _torch_optimizers(optimizer):
        for state in inner.state.values():
            for moment in MOMENTS:
                state[moment].zero_()
    set_step(optimizer, 0)


def get_step(optimizer: MegatronOptimizer) -> int:
    """Updates since the moments were 0: Adam's bias correction counts them."""
    for inner in _torch_optimizers(optimizer):
        for group in inner.param_groups:
            if "step" in group:
                return int(group["step"])
            for parameter in group["params"]:
                return int(inner.state[parameter]["step"])
    return 0


def set_step(optimizer: MegatronOptimizer, step: int) -> None:
    """The inverse of `get_step`."""
    for inner in _torch_optimizers(optimizer):
        for group in inner.param_groups:
            if "step" in group:
                group["step"] = step
        for state in inner.state.values():
            if "step" in state:
                state["step"].fill_(step)


def move(optimizer: MegatronOptimizer, device: torch.device, *, main_copies: bool) -> None:
    """Moves moments, and with `main_copies` the fp32 copies of 16-bit weights. Megatron's own offload also moves
    parameters that are the model's weights, which the sampler still needs."""
    for inner in _torch_optimizers(optimizer):
        for state in inner.state.values():
            for moment in MOMENTS:
                state[moment] = state[moment].to(device)
        if main_copies:
            for group in inner.param_groups:
                for parameter in group["params"]:
                    parameter.data = parameter.data.to(device)


def _torch_optimizers(optimizer: MegatronOptimizer) -> Iterator[Any]:
    for inner in optimizer.chained_optimizers:
        yield inner.optimizer
