"""A backend for vLLM's weight-transfer API that passes tensors by reference from a policy in the same process.

vLLM's own backends send tensors between processes (NCCL, CUDA IPC) and do not run on CPU. Here the payload is the
iterator of (name, tensor) itself, from which vLLM's layerwise reload reads. Beyond the model, at most one incomplete
layer is in memory. Written for vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info
from vllm.platforms import current_platform

from nemo_prorl.engines.interface import LoadedWeights
from nemo_prorl.engines.megatron.architecture import HEAD, Architecture, hf_shapes
from nemo_prorl.engines.vllm.held_weights import HeldWeights

BACKEND = "in_process"
"""Name of the backend in vLLM's WeightTransferConfig."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Settings of the connection: none, since both sides are this process."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """All weights of one update. The iterator is consumed once. A tensor must not be written to until the update is
    finished, because vLLM keeps a reference to it until its layer is complete."""

    weights: Iterable[tuple[str, torch.Tensor]] = field(default_factory=list)
    loaded: list[LoadedWeights] = field(default_factory=list)
    """The worker appends its report here when the update is finished."""


class InProcessTransfer(WeightTransferEngine[InitInfo, UpdateInfo]):
    """The worker's side of an update: start, receive, finish. An exception from the iterator `weights` ends the update;
    the next update starts from the weights as they are then."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        stop_packing_embedding(self.model)
        self._held = HeldWeights(self.model, self.model_config.dtype)
        self._loaded: list[LoadedWeights] = []

    def start_weight_update(self) -> None:
        # A failed update may have left layers incomplete. They get their previous weights back; otherwise vLLM would
        # complete them with tensors left over from that update.
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                _place_kernel_tensors(layer, info)
                info.reset()
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        self._loaded = update_info.loaded
        self.model.load_weights(self._held.recording(update_info.weights))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        repack_tied_heads(self.model)
        self._loaded.append(self._held.loaded())

    def shutdown(self) -> None:
        pass


def register() -> None:
    """Registers BACKEND with vLLM. Further calls have no effect."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, InProcessTransfer)


def stop_packing_embedding(model: torch.nn.Module) -> None:
    """Frees the packed copy of the embedding, on CPU, and keeps vLLM from making another one. vLLM packs weights for
    matrix products, and the embedding is in none if the model has an output layer."""
    if not current_platform.is_cpu() or not any(isinstance(m, ParallelLMHead) for m in model.modules()):
        return
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead):
            module.cpu_linear = torch.nn.functional.linear
            module.quant_method.process_weights_after_loading = lambda layer: None


def repack_tied_heads(model: torch.nn.Module) -> None:
    """Packs output layers that are tied to the embedding again, on CPU. vLLM repacks only layers into which tensors are
    loaded, and none is loaded into a tied one, so it would go on producing the old logits."""
    if not current_platform.is_cpu():
        return
    embeddings = {
        module.weight.data_ptr()
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)
    }
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and module.weight.data_ptr() in embeddings:
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def checked(
    weights: Iterable[tuple[str, torch.Tensor]], architecture: Architecture
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields `weights` unchanged and checks each tensor, because vLLM does not detect a missing part of a fused layer.
    A tied `lm_head.weight` is optional and left out, since the embedding takes its place.

    Raises ValueError for an unknown, repeated or misshaped tensor and, at the end, for missing ones.
    """
    shapes = hf_shapes(architecture)
    missing = set(shapes)
    for name, tensor in weights:
        if architecture.tied and name == HEAD:
            continue
        if name not in shapes:
            raise ValueError(f"The sampler's model has no weight {name!r}.")
        if name not in missing:
            raise ValueError(f"The weight {name!r} came twice in one update.")
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"The weight {name!r} has shape {tuple(tensor.shape)}, expected {shapes[name]}.")
        missing.discard(name)
        yield name, tensor
    if missing:
        first = ", ".join(sorted(missing)[:4])
        raise ValueError(f"The update lacks {len(missing)} of {len(shapes)} weights, among them {first}.")
