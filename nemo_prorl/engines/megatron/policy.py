"""MegatronPolicy: the Policy protocol on Megatron-Core, for every layout of tensor, pipeline and data parallelism."""

from __future__ import annotations

import ctypes
import importlib.metadata
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nemo_prorl.config import Decay, Precision, RunConfig, TrainerConfig
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import LossFunction, NonFiniteUpdate, PendingSave
from nemo_prorl.engines.megatron import build, checkpoint, core, cpu, microbatch, optimizer_state, weights
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.check import check_model, use_transformer_engine
from nemo_prorl.engines.megatron.core import parallel_state
from nemo_prorl.engines.megatron.low_rank import LowRank
from nemo_prorl.engines.megatron.microbatch import Feed
from nemo_prorl.engines.megatron.pinned import Copies, empty_on_host
from nemo_prorl.engines.megatron.trainable import Trainable
from nemo_prorl.engines.megatron.vocab_parallel import can_fuse, logprob_and_entropy
from nemo_prorl.types import FloatArray, TokenBatch, Totals, TrainBatch, UpdateReport

LossOfPass = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""A function (index of the micro-batch, logprobs_BT, entropy_BT) -> scalar."""


class MegatronPolicy:
    """See `engines.interface.Policy`. Policies of different layouts cannot be used at the same time in one process,
    because Megatron's process groups are global.

    Raises ConfigError for a model that cannot be built as configured, or whose weights do not fit it.
    """

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        check_model(config.model.path, config, ranks.layout.world_size)
        self.config, self.ranks = config, ranks
        self.architecture = read_architecture(config.model.path)
        self.num_updates = 0
        """Number of updates since the first stage began, which determines the learning rate; unchanged by resets."""
        build.initialise_groups(ranks.layout, config.seed)
        self.model = build.build_model(self.architecture, config)
        weights.load_hf(self.model, self.architecture, Path(config.model.path))
        make = LowRank if config.lora.rank else Trainable
        self.trainable = make(self.model, config, ranks.layout)
        self.optimizer = self.trainable.optimizer
        self._device = torch.device(torch.cuda.current_device())
        # Transformer Engine has no attention for packed sequences in fp32 (its issue 2285).
        is_bf16 = config.model.precision is Precision.bf16
        has_engine = use_transformer_engine(config.model.layer_spec, torch.cuda.is_available())
        self._packs = config.trainer.packing and has_engine and is_bf16
        self._fuses = config.model.fused_logprobs and can_fuse(self._device)
        has_main_copies = next(self.trainable.module.parameters()).dtype is not torch.float32
        self._offload = optimizer_state.Offload(self.optimizer, main_copies=has_main_copies)
        self._copies = Copies(keep=self._device.type == "cuda")
        """Memory of checkpoints."""
        self._reference: dict[str, torch.Tensor] = {}
        self._reference_hash = ""
        """Hash of the reference; empty until it is computed."""
        self.adopt_as_reference()

    # Log-probabilities

    def logprobs(self, batch: TokenBatch) -> FloatArray:
        plan = self._plan(batch)
        with torch.no_grad():
            results = self._run([batch.select(rows) for rows in plan], None)
        return self._collect(batch, plan, results)[0]

    @contextmanager
    def reference(self) -> Iterator[None]:
        with self.trainable.holding(self._reference):
            yield

    # Updates

    def update(self, batch: TrainBatch, loss_function: LossFunction) -> UpdateReport:
        """See `engines.interface.Policy`. Raises ValueError if no replica has a response token."""
        plan, results, loss = self._accumulate_gradients(batch, loss_function)
        grad_norm = self._step(loss)
        self.num_updates += 1
        current, entropy = self._collect(batch.tokens, plan, results)
        return UpdateReport(
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=learning_rate(self.config.trainer, self.num_updates - 1),
            current_logprobs_BT=current,
            entropy_BT=entropy,
            relative_change=self.trainable.relative_change(),
        )

    def gradient_norm(self, batch: TrainBatch, loss_function: LossFunction) -> float:
        self._accumulate_gradients(batch, loss_function)
        self.optimizer.prepare_grads()
        return float(self.optimizer.get_grad_norm())

    def _accumulate_gradients(
        self, batch: TrainBatch, loss_function: LossFunction
    ) -> tuple[list[list[int]], list[dict[str, torch.Tensor]], float]:
        """Computes the gradients of an update. Returns the rows of each pass, the results of each, and the loss."""
        counts = torch.tensor([batch.num_tokens, len(batch)], dtype=torch.int64, device=self._device)
        dist.all_reduce(counts, group=parallel_state.get_data_parallel_group())
        num_tokens, num_rollouts = counts.tolist()
        totals = Totals(num_tokens=num_tokens, num_rollouts=num_rollouts)
        if num_tokens == 0:
            raise ValueError("The update has no response tokens: there is nothing to learn from.")
        plan = self._plan(batch.tokens)
        parts = [batch.select(rows) for rows in plan]

        def loss(index: int, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
            if not parts:  # a replica without rows takes part in the collectives of the backward pass
                return logprobs.sum()
            return loss_function(logprobs, entropy, parts[index], totals)

        self.trainable.wrapped.zero_grad_buffer()
        self.optimizer.zero_grad()
        results = self._run([part.tokens for part in parts], loss)
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        if parallel_state.is_pipeline_last_stage():
            for result in results:
                total += result["loss"]
            dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
        self._broadcast_from_last_stage(total)
        return plan, results, total.item()

    def _step(self, loss: float) -> float:
        """Clips and applies the gradients, and returns their norm before clipping. Raises NonFiniteUpdate."""
        self.optimizer.prepare_grads()
        norm = float(self.optimizer.get_grad_norm())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFiniteUpdate(
                f"Update {self.num_updates + 1} has loss {loss} and gradient norm {norm}: the weights were left as "
                "they were."
            )
        for optimizer in self.optimizer.chained_optimizers:
            core.clip_grad_by_total_norm_fp32(optimizer.get_parameters(), self.config.trainer.clip_grad, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config.trainer, self.num_updates)
            # For norms and biases Megatron sets a multiplier of 0, which only its own scheduler would apply.
            group["weight_decay"] = self.config.trainer.weight_decay * group["wd_mult"]
        self._offload.wait()
        self.optimizer.step_with_ready_grads()
        self.trainable.put(self._reference)
        return norm

    # Passes through the model

    def _plan(self, batch: TokenBatch) -> list[list[int]]:
        budget, multiple = self.config.trainer.micro_batch_tokens, build.token_multiple(self.config)
        return microbatch.plan_micro_batches(batch.lengths_B, budget, multiple, packed=self._packs)

    def _run(self, batches: Sequence[TokenBatch], loss: LossOfPass | None) -> list[dict[str, torch.Tensor]]:
        """Runs the forward pass of each micro-batch and, if there is a `loss`, the backward pass. Returns results on
        the last pipeline stage only."""
        batches = batches or [microbatch.empty_batch()]
        make = microbatch.packed_feed if self._packs else microbatch.padded_feed
        multiple = build.token_multiple(self.config)
        # Each is made when its pass begins, while a GPU computes the pass before.
        feeds = ((index, make(batch, multiple, self._device)) for index, batch in enumerate(batches))

        def forward_step(iterator: Iterator[tuple[int, Feed]], model: Any) -> tuple[Any, Any]:
            index, feed = next(iterator)
            hidden = model(feed.token_ids, None, None, packed_seq_params=feed.packed)
            if not parallel_state.is_pipeline_last_stage():
                return hidden, None

            def result(output: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, Any]:
                logprobs, entropy = output
                value = logprobs.new_zeros(()) if loss is None else loss(index, logprobs, entropy)
                data = {"loss": value.detach(), "logprobs": logprobs.detach(), "entropy": entropy.detach()}
                no_tokens = torch.zeros((), dtype=torch.int)  # so Megatron does not normalise
                return value, no_tokens, data

            return self._head(hidden, feed), result

        on_cpu = not torch.cuda.is_available()
        with cpu.passes(self.config.trainer.cpu_threads) if on_cpu else nullcontext():
            results: list[dict[str, torch.Tensor]] = core.get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=feeds,
                model=self.trainable.forward,
                num_microbatches=len(batches),
                seq_length=1,  # unused, because pipeline stages send each tensor's shape
                micro_batch_size=1,
                forward_only=loss is None,
            )
        for module in self.model.modules():
            getattr(module, "_fp8_workspaces", {}).clear()  # Transformer Engine makes them anew in each call
        return results

    def _head(self, hidden: torch.Tensor, feed: Feed) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (logprobs_BT, entropy_BT) from hidden states [T, B, H], of which a rank has only its own tokens under
        sequence parallelism. Computes logits only at the positions that predict response tokens."""
        if self.config.trainer.sequence_parallel:
            # The gradient of the hidden states is complete on every rank, hence no reduction here.
            hidden = core.tensor_parallel.gather_from_sequence_parallel_region(
                hidden, tensor_parallel_output_grad=False
            )
        tied = self.model.share_embeddings_and_output_weights
        logprobs, entropy = logprob_and_entropy(
            hidden.flatten(0, 1).index_select(0, feed.predict_at_N),
            self.model.shared_embedding_or_output_weight() if tied else self.model.output_layer.weight,
            feed.labels_N,
            vocab_size=self.architecture.vocab_size,
            temperature=self.config.sampler.temperature,
            chunk_tokens=self.config.model.logprob_chunk_tokens,
            group=parallel_state.get_tensor_model_parallel_group(),
            fused=self._fuses,
        )
        return feed.scatter(logprobs), feed.scatter(entropy)

    def _collect(
        self, batch: TokenBatch, plan: Sequence[Sequence[int]], results: Sequence[dict[str, torch.Tensor]]
    ) -> tuple[FloatArray, FloatArray]:
        """Returns (logprobs_BT, entropy_BT) in the batch's order, on every rank of the replica."""
        values = torch.zeros(2, *batch.token_ids_BT.shape, dtype=torch.float32)
        found = [torch.stack([result["logprobs"], result["entropy"]]).float() for result in results]
        # One copy for all passes.
        flat = torch.cat([one.flatten() for one in found] or [values.flatten()[:0]]).cpu()
        pieces = flat.split([one.numel() for one in found])
        for rows, one, piece in zip(plan, found, pieces, strict=False):
            values[:, list(rows), : one.shape[2]] = piece.view(one.shape)
        if parallel_state.get_pipeline_model_parallel_world_size() > 1:
            values = values.to(self._device)
            self._broadcast_from_last_stage(values)
        logprobs, entropy = values.cpu().numpy()
        return logprobs, entropy

    def _broadcast_from_last_stage(self, values: torch.Tensor) -> None:
        if parallel_state.get_pipeline_model_parallel_world_size() > 1:
            group = parallel_state.get_pipeline_model_parallel_group()
            dist.broadcast(values, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)

    # Weights, reference, optimizer

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return weights.named_weights(self.model, self.architecture)

    def adopt_as_reference(self) -> None:
        """See `engines.interface.Policy`. Each tensor's memory is new, since a checkpoint may still be written from
        the one before, which is freed first if none is."""
        for name, parameter in self.model.named_parameters():
            self._reference.pop(name, None)
            self._reference[name] = empty_on_host(parameter).copy_(parameter.detach())
        self._reference_hash = ""
        self._offload.wait()
        self.trainable.restart(self.num_updates)

    def reset_optimizer(self) -> None:
        self._offload.wait()
        optimizer_state.reset(self.optimizer)

    # Checkpoints

    def begin_save(self, directory: Path) -> PendingSave:
        self._offload.wait()
        return checkpoint.begin_save(
            directory, self.model, self.trainable, self._reference, self.num_updates, self._copies
        )

    def load(self, directory: Path, *, reference: bool = True, num_updates: int | None = None) -> None:
        self._offload.wait()
        saved = checkpoint.load(directory, self.model, self.trainable, self._reference if reference else None)
        self.num_updates = saved if num_updates is None else num_updates
        self._reference_hash = ""

    def reference_hash(self) -> str:
        if not self._reference_hash:
            stream = weights.named_weights(self.model, self.architecture, self._reference)
            self._reference_hash = weights.content_hash(stream)
        return self._reference_hash

    def take_peak_gib(self) -> float:
        if self._device.type != "cuda":
            return 0.0
        peak = torch.cuda.max_memory_reserved() / 2**30
        torch.cuda.reset_peak_memory_stats()
        return peak

    def in_use(self) -> dict[str, str]:
        """See `engines.interface.Policy`. The attention kernel of Transformer Engine is missing, because it is chosen
        in the first pass."""
        layer = next(iter(self.model.decoder.layers))
        has_engine = any(type(m).__module__.startswith("transformer_engine") for m in layer.modules())
        version = importlib.metadata.version("transformer_engine") if has_engine else ""
        config = self.model.config
        precision = str(config.params_dtype).removeprefix("torch.")
        return {
            "trainer": f"Megatron-Core {importlib.metadata.version('megatron-core')}",
            "layers": f"Transformer Engine {version}" if has_engine else "Megatron's own",
            "trainer's attention": type(layer.self_attention.core_attention).__name__,
            "sequences": "packed" if self._packs else "padded",
            "precision": f"{precision} and FP8 {config.fp8}" if config.fp8 else precision,
            "log-probabilities": "Triton's kernels" if self._fuses else "plain PyTorch",
            "gradient accumulation": "fused" if build.accumulates_in_place(self.model) else "plain",
            "trained": self.trainable.in_use(),
        }

    # Sharing the GPU with the sampler

    def finish_training(self) -> None:
        """See `engines.interface.Policy`. Moves the optimizer's state to host memory and frees the gradient buffers. A
        sampler that keeps its memory has left room for both, so they stay. On the host glibc would keep what is free in
        ever more pieces (experiments/speed.md)."""
        ctypes.CDLL(None).malloc_trim(0)
        if self._makes_room:
            self._offload.to_host()
            # vLLM empties the cache itself before it allocates: at its start, and when it wakes.
            self.trainable.wrapped.offload_grad_buffers(synchronize=False, empty_cache=False)

    def prepare_for_training(self) -> None:
        """See `engines.interface.Policy`. The optimizer's state arrives during the passes of the first update. All that
        reads or writes it waits for it: the optimizer's step, and what may come instead of an update."""
        if self._makes_room:
            self.trainable.wrapped.restore_grad_buffers(synchronize=False)
            self._offload.to_device(self._device)

    @property
    def _makes_room(self) -> bool:
        return self.config.sampler.release_memory and self._device.type == "cuda"


def learning_rate(config: TrainerConfig, num_updates: int) -> float:
    """Returns the learning rate of the update that follows `num_updates` others: it rises linearly during the warm-up,
    and then is constant, or falls to 0 linearly or along a cosine."""
    assert config.learning_rate > 0, "0 stands for a number that engines/limits.py finds"
    if num_updates < config.warmup_updates:
        return config.learning_rate * (num_updates + 1) / config.warmup_updates
    if config.decay is Decay.constant:
        return config.learning_rate
    done = min(1.0, (num_updates - config.warmup_updates) / (config.decay_updates - config.warmup_updates))
    left = 1.0 - done if config.decay is Decay.linear else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate * left
