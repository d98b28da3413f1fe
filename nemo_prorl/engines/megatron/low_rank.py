"""Low-rank training without adapters: the policy is its reference plus a low-rank difference,

    W = round(reference + (alpha / rank) B A)     W [out, in], B [out, rank], A [rank, in]

(LoRA, arXiv 2106.09685, eq. 3). The model computes with W, so passes, refit and export are those of full training. When
the backward pass has completed the gradient of a W, a hook turns it into those of A and B and frees it:

    dA = (alpha / rank) B^T dW     dB = (alpha / rank) dW A^T

A hard reset copies W into the reference, draws A anew and sets B to 0, which merges the difference without changing W.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from nemo_prorl.config import LoraTargets, RunConfig
from nemo_prorl.distributed import Layout
from nemo_prorl.engines.megatron import build, core, optimizer_state
from nemo_prorl.engines.megatron.core import parallel_state
from nemo_prorl.engines.megatron.families import Split
from nemo_prorl.engines.megatron.trainable import Trainable

_MATRICES = {
    "self_attention.linear_qkv.weight": ("qkv", LoraTargets.attention, Split.qkv),
    "self_attention.linear_proj.weight": ("attention_out", LoraTargets.attention, Split.columns),
    "mlp.linear_fc1.weight": ("mlp_up", LoraTargets.mlp, Split.gated),
    "mlp.linear_fc2.weight": ("mlp_down", LoraTargets.mlp, Split.columns),
}
"""Megatron's name -> (group of the metrics, target, split). Split by columns, A is split too and B is whole on every
rank; otherwise B is split by rows and A is whole. Gated, B has the shape [2, out / 2, rank], as a rank holds
[its gate | its up]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A matrix of this rank and its factors."""

    name: str
    """The parameter's name in the model."""
    weight: torch.nn.Parameter
    group: str
    split: Split
    layer: int
    """Index in the whole model."""
    key: str
    """Name in checkpoints, under which layers are stacked."""
    a: torch.nn.Parameter
    """[rank, in], of which this rank may hold only its columns. fp32."""
    b: torch.nn.Parameter
    """[out, rank], of which this rank may hold only its rows. fp32."""

    @property
    def flat_b(self) -> torch.Tensor:
        """Returns B as a matrix."""
        return self.b.detach().view(-1, self.b.shape[-1])


class _Factors(core.MegatronModule):
    """All factors of this rank, with a configuration as Megatron's wrappers expect it."""

    def __init__(self, config: core.TransformerConfig) -> None:
        super().__init__(config=config)
        self.a, self.b = torch.nn.ParameterList(), torch.nn.ParameterList()


class LowRank(Trainable):
    """The factors belong to the reference with which `restart` was called last."""

    def __init__(self, model: build.HiddenStateModel, config: RunConfig, layout: Layout) -> None:
        self._config, self._scale, self.lora = config, config.lora.scale, config.lora.recorded
        self._num_layers: int = model.config.num_layers
        self._ranks = parallel_state.get_tensor_model_parallel_world_size()
        self._rank = parallel_state.get_tensor_model_parallel_rank()
        self.forward = model
        self._factors = _Factors(model.config)
        self.module = self._factors
        model.requires_grad_(False)
        self.targets = [self._target(*found) for found in _matrices(model, config.lora.targets)]
        self.wrapped, self.optimizer = build.build_training(self._factors, config, layout)
        optimizer_state.allocate(self.optimizer)
        for target in self.targets:
            target.weight.requires_grad_(True)
            target.weight.register_post_accumulate_grad_hook(self._hook(target))
        model.config.finalize_model_grads_func = self._finish_gradients
        if hasattr(model, "embedding"):
            # Megatron's recomputation needs an input that requires a gradient, and the embedding is frozen.
            model.embedding.register_forward_hook(_require_gradient)

    def _target(self, name: str, weight: torch.nn.Parameter, layer: int, matrix: str) -> _Target:
        group, _, how = _MATRICES[matrix]
        rank, (num_out, num_in) = self._config.lora.rank, weight.shape
        of_b = (2, num_out // 2, rank) if how is Split.gated else (num_out, rank)
        a, b = (
            torch.nn.Parameter(torch.zeros(shape, dtype=torch.float32, device=weight.device))
            for shape in ((rank, num_in), of_b)
        )
        # Without these attributes only rank 0's shard would count in the gradient's norm (see `weights.mark_shards`).
        split: Any
        split, dim = (a, 1) if how is Split.columns else (b, b.dim() - 2)
        split.tensor_model_parallel, split.partition_dim, split.partition_stride = True, dim, 1
        self._factors.a.append(a)
        self._factors.b.append(b)
        key = f"lora.decoder.layers.{matrix}"
        return _Target(name=name, weight=weight, group=group, split=how, layer=layer, key=key, a=a, b=b)

    def _hook(self, target: _Target) -> Any:
        def project(weight: torch.nn.Parameter) -> None:
            assert weight.grad is not None
            gradient, factors = weight.grad.float(), (target.a, target.b)
            of_a, of_b = (factor.main_grad for factor in factors)  # type: ignore[attr-defined]
            of_a.addmm_(target.flat_b.t(), gradient, alpha=self._scale)
            of_b.view(-1, of_b.shape[-1]).addmm_(gradient, target.a.detach().t(), alpha=self._scale)
            weight.grad = None

        return project

    def _finish_gradients(self, _model: list[Any], _num_tokens: Any = None, **_groups: Any) -> None:
        """Sums the gradients over tensor-parallel ranks, for the factor that each of them holds whole and has computed
        from its part of dW, and then over replicas."""
        if self._ranks > 1:
            group = parallel_state.get_tensor_model_parallel_group()
            for target in self.targets:
                whole: Any = target.b if target.split is Split.columns else target.a
                dist.all_reduce(whole.main_grad, group=group)
        self.wrapped.finish_grad_sync()

    def put(self, reference: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for target in self.targets:
                base = reference[target.name].to(target.weight.device, non_blocking=True).float()
                target.weight.copy_(torch.addmm(base, target.flat_b, target.a.detach(), alpha=self._scale))

    @contextmanager
    def holding(self, reference: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """See `trainable.Trainable`. In place, because the policy's weights can be computed again: no second copy of
        them is on the GPU."""
        try:
            for target in self.targets:
                target.weight.data.copy_(reference[target.name], non_blocking=True)
            yield
        finally:
            self.put(reference)

    def restart(self, num_updates: int) -> None:
        """See `trainable.Trainable`. Also clears the moments, which belong to factors that are no more. A is drawn from
        N(0, 1 / rank) with the run's seed, whole, so that it is the same in any layout."""
        with torch.no_grad():
            for target in self.targets:
                where = f"{self._config.seed}/{num_updates}/{target.key}/{target.layer}"
                seed = int.from_bytes(hashlib.blake2b(where.encode(), digest_size=7).digest())
                rank, columns = target.a.shape
                parts = self._ranks if target.split is Split.columns else 1
                generator = torch.Generator().manual_seed(seed)
                whole = torch.randn(rank, parts * columns, generator=generator) / math.sqrt(rank)
                target.a.copy_(whole.chunk(parts, dim=1)[self._rank if parts > 1 else 0])
                target.b.zero_()
        self.optimizer.reload_model_params()
        optimizer_state.reset(self.optimizer)

    def places(self) -> dict[str, Any]:
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        replica = parallel_state.get_data_parallel_rank()
        places = {}
        for target in self.targets:
            for letter, factor in (("a", target.a), ("b", target.b)):
                is_split = (letter == "a") == (target.split is Split.columns)
                axis = (1 if letter == "a" else factor.dim() - 2) + 1  # behind the axis of the layers
                offsets = [(0, target.layer, self._num_layers)]
                offsets += [(axis, self._rank, self._ranks)] if is_split else []
                places[names[id(factor)]] = core.ShardedTensor.from_rank_offsets(
                    f"{target.key}.{letter}",
                    factor.detach(),
                    *offsets,
                    replica_id=(0, 0 if is_split else self._rank, replica),
                    prepend_axis_num=1,
                )
        return places

    def in_use(self) -> str:
        trained, whole = (
            sum(parameter.numel() for parameter in module.parameters())
            for module in (self.module, self.forward)
        )
        rank, scale = self._config.lora.rank, f" x {self._scale:g}" if self._scale != 1 else ""
        count = f"{trained:,} factors for {whole:,} weights" + " of this rank" * (self._ranks > 1)
        return f"rank {rank}{scale} of {len(self.targets)} matrices: {count}"

    def relative_change(self) -> dict[str, float]:
        """See `trainable.Trainable`. The norm of B A comes from its small products, |B A|^2 = sum((B^T B) * (A A^T)),
        with * by element."""
        squares: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))
        for target in self.targets:
            a, b = target.a.detach().double(), target.flat_b.double()
            change = self._scale**2 * ((b.t() @ b) * (a @ a.t())).sum()
            norm = torch.linalg.vector_norm(target.weight.detach(), dtype=torch.float32)
            squares[target.group] += torch.stack([change, norm.double().square()]).cpu()
        groups = sorted({group for group, *_ in _MATRICES.values()})
        table = torch.stack([squares[group] for group in groups]).to(self.targets[0].a.device)
        dist.all_reduce(table, group=parallel_state.get_model_parallel_group())
        return {
            group: math.sqrt(change / size)
            for group, (change, size) in zip(groups, table.tolist(), strict=True)
            if size > 0
        }


def _matrices(
    model: build.HiddenStateModel, targets: LoraTargets
) -> Iterator[tuple[str, torch.nn.Parameter, int, str]]:
    """Yields (parameter name, parameter, layer of the whole model, name within the layer) of each matrix."""
    first = model.decoder.layers[0].layer_number - 1
    for name, parameter in model.named_parameters():
        found = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
        if found and found[2] in _MATRICES and targets in (LoraTargets.all, _MATRICES[found[2]][1]):
            yield name, parameter, first + int(found[1]), found[2]


def _require_gradient(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output.requires_grad_() if torch.is_grad_enabled() else output
