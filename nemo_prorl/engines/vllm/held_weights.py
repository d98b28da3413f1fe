"""Checks after a refit which of the weights that arrived vLLM's model really holds. Written for vLLM 0.32.

When an update leaves a layer without weights, vLLM only logs a warning and keeps the old ones. Hence the tensors that
arrived are compared with those that the model holds afterwards, by fingerprints that do not depend on how vLLM fuses
and shards tensors.

On CUDA the parameters are read back from memory. On CPU vLLM keeps only a packed copy that cannot be read, so a layer
is read at the moment it is packed; a layer that was not packed again keeps its old fingerprint. A fault after that
moment is not detected here, but by the canary (training/sampling/refit.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed import get_tp_group
from vllm.platforms import current_platform

from nemo_prorl.algorithm.fingerprint import bit_sum, joined, read
from nemo_prorl.engines.interface import LoadedWeights


class HeldWeights:
    """Compares what one rank of an engine receives with what its model holds, for every update."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        """dtype: of the model's weights; tensors of other precisions are cast to it before comparison."""
        self._model, self._dtype = model, dtype
        self._fused: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
        self._received: dict[str, torch.Tensor] = {}
        self._expected: dict[str, torch.Tensor] = {}
        self._is_bad: dict[str, torch.Tensor] = {}
        self._packed: dict[str, torch.Tensor] = {}
        """Parameter -> sum of its bits when its layer was last packed."""
        if current_platform.is_cpu():
            self._watch_packing()

    def recording(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the tensors of one update unchanged, and records their fingerprints and whether they are finite. Only
        `loaded` reads any of it, so that the host waits for the device once per update, not for every tensor."""
        self._received, self._expected, self._is_bad = {}, {}, {}
        for name, tensor in weights:
            self._received[name] = self._expected[name] = bit_sum(tensor)
            if tensor.dtype is not self._dtype:
                self._expected[name] = bit_sum(tensor.to(self._dtype))
            # Minimum and maximum reveal NaN and infinity without a mask of the tensor's size.
            self._is_bad[name] = (~torch.stack(tensor.aminmax()).isfinite()).sum()
            yield name, tensor

    def loaded(self) -> LoadedWeights:
        """Returns what arrived in the last update, and which of it the model does not hold. Collective over the
        engine."""
        sums = {
            name: self._packed[name] if name in self._packed else bit_sum(parameter.to(self._dtype))
            for name, parameter in self._model.named_parameters()
            if name in self._packed or parameter.numel()
        }
        mine, received, expected, is_bad = read(sums, self._received, self._expected, self._is_bad)
        shards: list[Any] = [mine]
        group = get_tp_group()
        if group.world_size > 1:
            shards = [None] * group.world_size
            dist.all_gather_object(shards, mine, group=group.cpu_group)
        held = {name for parameter in mine for name in self._names_held(parameter, expected, shards)}
        return LoadedWeights(
            received=received,
            not_held=tuple(sorted(received.keys() - held)),
            not_finite=tuple(filter(is_bad.get, is_bad)),
        )

    def _names_held(
        self, parameter: str, arrived: Mapping[str, int], shards: Sequence[Mapping[str, int]]
    ) -> list[str]:
        """Returns the names of the Hugging Face tensors in a parameter, or none if it does not hold them as they
        arrived. arrived: name -> fingerprint in the model's precision. shards: parameter -> fingerprint on each
        rank."""
        names, copies = [parameter], 1
        for fused, parts in self._fused.items():
            if f".{fused}." in parameter:
                names = [parameter.replace(f".{fused}.", f".{part}.") for part in parts]
                # Several ranks hold a copy of each key-value head if there are more ranks than heads.
                module = self._model.get_submodule(parameter.rpartition(".")[0])
                copies = getattr(module, "num_kv_head_replicas", 1)
                break
        if not arrived.keys() >= set(names):
            return []
        expected = joined(
            copies * arrived[name] if index else arrived[name] for index, name in enumerate(names)
        )
        held = [shard.get(parameter) for shard in shards]
        is_replicated = all(one == expected for one in held)
        is_sharded = None not in held and joined(one for one in held if one is not None) == expected
        return names if is_replicated or is_sharded else []

    def _watch_packing(self) -> None:
        """Makes every layer record its fingerprints right before vLLM packs it."""
        names = {id(module): name for name, module in self._model.named_modules()}

        def record_and_pack(pack: Callable[[torch.nn.Module], None], layer: torch.nn.Module) -> None:
            for name, parameter in layer.named_parameters(recurse=False):
                self._packed[f"{names[id(layer)]}.{name}"] = bit_sum(parameter.to(self._dtype))
            pack(layer)

        methods: list[Any] = [getattr(module, "quant_method", None) for module in self._model.modules()]
        for method in {id(method): method for method in methods}.values():
            if pack := getattr(method, "process_weights_after_loading", None):
                method.process_weights_after_loading = partial(record_and_pack, pack)
