"""Protocols through which the training loop uses its engines: sampler, policy and grader.

`run.py` chooses the implementations; tests may pass others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from nemo_prorl.types import FloatArray, Prompt, Rollout, TokenBatch, Totals, TrainBatch, UpdateReport
from reward.protocol import ScoreRequest, ScoreResult

LossFunction = Callable[[torch.Tensor, torch.Tensor, TrainBatch, Totals], torch.Tensor]
"""A function (current_logprobs_BT, entropy_BT, micro-batch, totals) -> scalar. The loss of an update is its sum over
the micro-batches of all ranks, so the result does not depend on how the batch is split."""


class NonFiniteUpdate(RuntimeError):
    """The loss, a gradient or a weight is NaN or infinite."""

    step = 0
    """Step of the run that was not trained on; the trainer sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How rollouts are sampled."""

    num_rollouts: int
    """Rollouts per prompt."""
    temperature: float
    top_p: float
    max_response_tokens: int
    """The end-of-sequence token counts."""
    seed: int
    """Together with the prompt's uid and the sibling index, it determines a rollout's random numbers, whatever the
    batch order and the number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """What a sampler reports about the weights it was given. Equal on all ranks of an engine, unless a rank received
    other weights than the rest."""

    received: Mapping[str, int]
    """Hugging Face name -> `algorithm.fingerprint` of the tensor as it arrived."""
    not_held: tuple[str, ...] = ()
    """Names of tensors that arrived but were not loaded as they are, because the engine's loader skipped or changed
    them."""
    not_finite: tuple[str, ...] = ()
    """Names of tensors that hold NaN or infinity."""


class Sampler(Protocol):
    """Samples rollouts, in the process of the policy. `sleep` frees the sampler's memory, weights included, so every
    `wake` has to be followed by `load_weights`."""

    num_preemptions: int
    """Rollouts that were evicted from a full KV cache, and later recomputed, since the sampler was built."""
    released_gib: float
    """GPU memory, in GiB, that `sleep` has given back and torch still counts as reserved."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> LoadedWeights:
        """Replaces all weights by `weights`, the complete set under Hugging Face names, and returns what arrived.

        Raises ValueError for a missing, unknown or misshaped tensor and NonFiniteUpdate for NaN or infinity; the
        sampler then refuses to sample until a complete set is loaded.
        """

    def sample(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[Rollout], None],
        siblings: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Rollout]]:
        """Returns one list of rollouts per prompt, in the order of the siblings. Calls `on_finish` with each rollout as
        soon as it ends.

        siblings: for each prompt, the indices of the rollouts to sample here, out of `num_rollouts`; None means all.
        """

    def wake(self) -> None:
        """Undoes `sleep`, so that `load_weights` can be called."""

    def sleep(self) -> None:
        """Frees the sampler's memory for the policy's updates."""

    def in_use(self) -> Mapping[str, str]:
        """Returns what this rank's engine computes with (versions, kernels, precision), by human-readable names. Every
        value is read from the engine, not from the configuration."""

    def close(self) -> None:
        """Stops the engine for good."""


class PendingSave(Protocol):
    """A copy of a policy's state in host memory that is still to be written to disk."""

    def write(self) -> list[Path]:
        """Writes this rank's files, waits until they are on disk, and returns their paths. Has no collectives, so a
        background thread may call it."""

    def finish(self) -> None:
        """Completes the folder, after `write` has returned on every rank. Collective over all ranks; only the main rank
        may raise OSError."""


class Policy(Protocol):
    """The model in training, spread over the ranks of a replica (tensor x pipeline parallel). Every rank of a replica
    passes the same batch; replicas (data-parallel ranks) pass different ones."""

    def logprobs(self, batch: TokenBatch) -> FloatArray:
        """Returns the [B, T] log-probabilities, in nats, of the response tokens under the current weights, at the
        training temperature; 0 elsewhere."""

    def reference(self) -> AbstractContextManager[None]:
        """Makes `logprobs` use the reference weights inside the `with` block. On CUDA each entry copies them from host
        memory, so one block should cover many batches."""

    def update(self, batch: TrainBatch, loss_function: LossFunction) -> UpdateReport:
        """Makes one optimizer update from the batches of all replicas. A replica may have no rows.

        Raises NonFiniteUpdate on every rank if the loss or a gradient of any rank is not finite; weights and optimizer
        are unchanged then.
        """

    def gradient_norm(self, batch: TrainBatch, loss_function: LossFunction) -> float:
        """Returns the norm of the gradients of an update that is not made, before clipping. As collective as
        `update`. With FP8's delayed scales the pass counts among those from which the next scales come."""

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields every full tensor under its Hugging Face name, one at a time, on every rank. Collective over the
        replica."""

    def adopt_as_reference(self) -> None:
        """Replaces the reference by a copy of the current weights."""

    def reset_optimizer(self) -> None:
        """Sets the optimizer's moments and step count to 0. Learning rate and weights stay."""

    def begin_save(self, directory: Path) -> PendingSave:
        """Copies weights, optimizer, reference and random states to host memory, and returns the copy. Training may go
        on at once, while `PendingSave.write` writes it to `directory`, as shards that any layout can load. Collective
        over all ranks."""

    def load(self, directory: Path, *, reference: bool = True, num_updates: int | None = None) -> None:
        """Loads what `begin_save` has saved, in the same or another layout; the reference only if `reference`.

        num_updates: number of updates after which the learning-rate schedule continues; None means the saved number.
        """

    def reference_hash(self) -> str:
        """Returns a hash of every bit of the reference weights, the same in any layout. Collective over all ranks."""

    def prepare_for_training(self) -> None:
        """Allocates the memory that `finish_training` has freed, which `update` and `load` need."""

    def finish_training(self) -> None:
        """Frees the memory that only updates need, for the sampler."""

    def take_peak_gib(self) -> float:
        """Returns the largest amount of memory, in GiB, that torch has reserved on this rank's GPU since the last call;
        0 on CPU. What a sleeping sampler has given back (`Sampler.released_gib`) counts too."""

    def in_use(self) -> Mapping[str, str]: ...


class Grader(Protocol):
    """Grades responses: the reward service, the user's reward functions, or both."""

    def submit(self, request: ScoreRequest, prompt: Prompt) -> Future[ScoreResult]:
        """Returns a future at once. If the grader fails, the future does not raise; its result has no score.

        request: what is sent to the service. prompt: the prompt that was answered, with all columns of its row.
        """

    def check(self) -> None:
        """Raises if the grader is known to be permanently gone, so that the loop does not wait for it."""


class GradingService(Grader, Protocol):
    """The reward service, as a grader that a mix of graders asks what it can grade."""

    version: str
    """Equal versions give equal scores."""

    def grades(self, domain: str) -> bool:
        """Returns whether it knows the domain."""
