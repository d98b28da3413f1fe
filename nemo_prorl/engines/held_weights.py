"""Which of the weights that arrived vLLM's model really computes with. Written for vLLM 0.32.

vLLM only logs a warning when an update leaves a layer without weights, and goes on with the old ones. So what arrived
is compared with what the model holds afterwards, by fingerprints that do not mind that vLLM fuses and shards tensors.

On CUDA the parameters are read back from memory. On CPU vLLM multiplies by a packed copy that cannot be read and drops
the original, so a layer is read at the moment it is packed; a layer that was not packed again is known by its old
fingerprint. What this cannot see is a fault after that moment; the canary (training/canary.py) is there for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed import get_tp_group
from vllm.platforms import current_platform

from nemo_prorl.algorithm.fingerprint import fingerprint, joined
from nemo_prorl.engines.interface import LoadedWeights


class HeldWeights:
    """Follows the updates of one model on one rank of an engine."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        """`dtype`: of the model's weights; fingerprints of other precisions are taken after a cast to it."""
        self._model, self._dtype = model, dtype
        self._fused: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
        self._received: dict[str, int] = {}
        self._expected: dict[str, int] = {}
        self._packed: dict[str, int] = {}
        """By parameter: what it held when its layer was last packed."""
        if current_platform.is_cpu():
            self._watch_packing()

    def noting(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The stream of one update, unchanged; what passes is remembered."""
        self._received, self._expected = {}, {}
        for name, tensor in weights:
            self._received[name] = self._expected[name] = fingerprint(tensor)
            if tensor.dtype is not self._dtype:
                self._expected[name] = fingerprint(tensor.to(self._dtype))
            yield name, tensor

    def loaded(self) -> LoadedWeights:
        """What has arrived in the last update, and what of it the model does not hold. Collective over the engine."""
        mine = self._held()
        shards: list[Any] = [mine]
        group = get_tp_group()
        if group.world_size > 1:
            shards = [None] * group.world_size
            dist.all_gather_object(shards, mine, group=group.cpu_group)
        right = {name for parameter in shards[0] for name in self._right_names(parameter, shards)}
        return LoadedWeights(received=self._received, not_held=tuple(sorted(self._received.keys() - right)))

    def _right_names(self, parameter: str, shards: Sequence[Mapping[str, int]]) -> list[str]:
        """The Hugging Face tensors that a parameter consists of, if it holds them as they arrived."""
        names, copies = self._parts(parameter)
        if not self._expected.keys() >= set(names):
            return []
        expected = joined(
            copies * self._expected[name] if index else self._expected[name]
            for index, name in enumerate(names)
        )
        held = [shard.get(parameter) for shard in shards]
        is_replicated = all(one == expected for one in held)
        is_sharded = None not in held and joined(one for one in held if one is not None) == expected
        return names if is_replicated or is_sharded else []

    def _parts(self, parameter: str) -> tuple[list[str], int]:
        """(its tensors in Hugging Face's names, how many ranks hold each key-value head: more than one where there are
        more ranks than heads)."""
        for fused, parts in self._fused.items():
            if f".{fused}." in parameter:
                module = self._model.get_submodule(parameter.rpartition(".")[0])
                names = [parameter.replace(f".{fused}.", f".{part}.") for part in parts]
                return names, getattr(module, "num_kv_head_replicas", 1)
        return [parameter], 1

    def _held(self) -> dict[str, int]:
        return {
            name: self._packed[name] if name in self._packed else fingerprint(parameter.to(self._dtype))
            for name, parameter in self._model.named_parameters()
            if name in self._packed or parameter.numel()
        }

    def _watch_packing(self) -> None:
        names = {id(module): name for name, module in self._model.named_modules()}

        def note(layer: torch.nn.Module) -> None:
            for name, parameter in layer.named_parameters(recurse=False):
                self._packed[f"{names[id(layer)]}.{name}"] = fingerprint(parameter.to(self._dtype))

        methods = {
            id(m.quant_method): m.quant_method for m in self._model.modules() if hasattr(m, "quant_method")
        }
        for method in methods.values():
            if hasattr(method, "process_weights_after_loading"):
                method.process_weights_after_loading = _first(note, method.process_weights_after_loading)


def _first(note: Any, pack: Any) -> Any:
    def note_and_pack(layer: torch.nn.Module) -> None:
        note(layer)
        pack(layer)

    return note_and_pack
