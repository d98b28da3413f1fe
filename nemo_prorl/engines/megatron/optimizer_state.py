"""Uniform access to Adam's moments, one `Slot` per model parameter, for all of Megatron's optimizers: torch's AdamW or
the fused one, whole or sharded over replicas, updating the weights themselves or fp32 copies of 16-bit weights. SGD has
no moments and no step count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from nemo_prorl.engines.megatron.core import DistributedOptimizer, MegatronOptimizer
from nemo_prorl.engines.megatron.pinned import empty_on_host

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The state that this rank's optimizer keeps for one model parameter."""

    main: torch.Tensor
    """The tensor that the optimizer updates: the parameter, its fp32 copy, or a flat part of one of these."""
    state: dict[str, Any]
    """The moments, by the names in MOMENTS; empty with SGD."""
    span: slice | None
    """The part of the flattened parameter that this rank updates; None means all of it."""


def slots(optimizer: MegatronOptimizer, model: torch.nn.Module) -> dict[str, Slot]:
    """Returns parameter name -> slot. A sharded optimizer has slots only for parameters of which it holds a part."""
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
        found[name] = Slot(main=main, state=inner.optimizer.state.get(main, {}), span=span)
    return found


def moments_of(optimizer: MegatronOptimizer) -> tuple[str, ...]:
    """Returns the names of the moments that the optimizer keeps."""
    is_sgd = any(isinstance(inner, torch.optim.SGD) for inner in _torch_optimizers(optimizer))
    return () if is_sgd else MOMENTS


def allocate(optimizer: MegatronOptimizer) -> None:
    """Creates moments of 0. The optimizers themselves would do so at the first update; saving, loading and resetting
    would have to handle both cases."""
    for inner in _torch_optimizers(optimizer) if moments_of(optimizer) else ():
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
    """Sets moments and step count to 0. Learning rate, weights and fp32 copies of weights stay."""
    for inner in _torch_optimizers(optimizer):
        for state in inner.state.values():
            for moment in MOMENTS:
                state[moment].zero_()
    set_step(optimizer, 0)


def get_step(optimizer: MegatronOptimizer) -> int:
    """Returns the number of updates since the moments were 0, which Adam's bias correction depends on."""
    for inner in _torch_optimizers(optimizer):
        for group in inner.param_groups:
            if "step" in group:
                return int(group["step"])
        for state in inner.state.values():
            return int(state["step"])
    return 0


def set_step(optimizer: MegatronOptimizer, step: int) -> None:
    """Sets the number that `get_step` returns."""
    for inner in _torch_optimizers(optimizer):
        for group in inner.param_groups:
            if "step" in group:
                group["step"] = step
        for state in inner.state.values():
            if "step" in state:
                state["step"].fill_(step)


class Offload:
    """Moves the moments to host memory and back, and with `main_copies` also the fp32 copies of 16-bit weights.
    Megatron's own offload would also move fp32 parameters that are the model's weights, which the refit still reads."""

    def __init__(self, optimizer: MegatronOptimizer, *, main_copies: bool) -> None:
        self._optimizer, self._main_copies = optimizer, main_copies
        self._kept: dict[tuple[int, str], torch.Tensor] = {}
        """Memory on the host, kept because pinning takes long."""
        self._is_away = False
        self._arriving: torch.cuda.Stream | None = None
        """The stream on which the states come back, until somebody has waited for it."""

    def to_host(self) -> None:
        """Moves the states to the host, where they are complete on return."""
        if self._is_away:
            return
        self.wait()
        for key, tensor, put in self._movable():
            if key not in self._kept:
                self._kept[key] = empty_on_host(tensor)
            put(self._kept[key].copy_(tensor, non_blocking=True))
        torch.cuda.synchronize()
        self._is_away = True

    def to_device(self, device: torch.device) -> None:
        """Begins to move the states back, beside whatever the GPU is given to do next. Whoever reads or writes them
        calls `wait` first."""
        if not self._is_away:
            return
        self._is_away = False
        self._arriving = torch.cuda.Stream()
        # The work that was given to the GPU before may still use memory that was freed.
        self._arriving.wait_stream(torch.cuda.current_stream())
        for _, tensor, put in self._movable():
            arrived = torch.empty_like(tensor, device=device)
            with torch.cuda.stream(self._arriving):
                put(arrived.copy_(tensor, non_blocking=True))

    def wait(self) -> None:
        """Makes what the GPU is given from now on wait for states that come back; the host does not wait."""
        if self._arriving is not None:
            torch.cuda.current_stream().wait_stream(self._arriving)
            self._arriving = None

    def _movable(self) -> Iterator[tuple[tuple[int, str], torch.Tensor, Callable[[torch.Tensor], None]]]:
        """Yields a key, a tensor, and a function that puts another one in its place."""
        for inner in _torch_optimizers(self._optimizer):
            for parameter, state in inner.state.items():
                for moment in MOMENTS:
                    yield (id(parameter), moment), state[moment], partial(state.__setitem__, moment)
            if self._main_copies:
                for group in inner.param_groups:
                    for parameter in group["params"]:
                        yield (id(parameter), "main"), parameter.data, partial(setattr, parameter, "data")


def _torch_optimizers(optimizer: MegatronOptimizer) -> Iterator[Any]:
    for inner in optimizer.chained_optimizers:
        yield inner.optimizer
