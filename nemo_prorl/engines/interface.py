"""All that the loop knows of its engines: three protocols. `run.py` picks the real ones; tests may bring others."""

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
"""(current_logprobs_BT, entropy_BT, micro-batch, totals) -> scalar; summing it over the micro-batches of all ranks
gives the loss of the update, so the split does not matter."""


class NonFiniteUpdate(RuntimeError):
    """Loss or gradient of an update is NaN or infinite. The weights were left as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How rollouts are drawn. `max_response_tokens` counts the end-of-sequence token."""

    num_rollouts: int
    temperature: float
    top_p: float
    max_response_tokens: int
    seed: int
    """With the prompt's uid and the sibling index it decides every token: independent of batch order and of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """What a sampler says of weights that it was given. The same on all ranks of an engine, unless one got others."""

    received: Mapping[str, int]
    """`algorithm.fingerprint` of each tensor as it arrived, by its Hugging Face name."""
    not_held: tuple[str, ...] = ()
    """Names of tensors that arrived, and that the engine does not compute with: its loader left them out or changed
    them."""


class Sampler(Protocol):
    """Draws rollouts. Colocated with the policy: `sleep` gives its memory back, and its weights with it, so that
    `load_weights` comes after `wake`."""

    num_preemptions: int
    """Rollouts that were removed from a full KV cache since the sampler was built, to be computed again later."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> LoadedWeights:
        """Takes the complete set of Hugging-Face-named tensors, and says what it has got. Raises ValueError on a
        missing, unknown or misshaped tensor and NonFiniteUpdate on NaN or infinity; it then refuses to sample until a
        complete set is loaded."""
        ...

    def sample(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[Rollout], None],
        siblings: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Rollout]]:
        """One list of rollouts a prompt, siblings in order; `on_finish` sees each as soon as it ends. `siblings` says
        which of its `num_rollouts` rollouts each prompt gets here; None: all of them."""
        ...

    def wake(self) -> None: ...

    def sleep(self) -> None: ...

    def in_use(self) -> Mapping[str, str]:
        """Returns what this rank's engine computes with (versions, kernels, precision), by names for people. Every
        value is read from the engine as it was built."""
        ...

    def close(self) -> None: ...


class PendingSave(Protocol):
    """A policy's copy in host memory, on its way to disk."""

    def write(self) -> list[Path]:
        """Writes this rank's files and returns them; they are on disk then. For a background thread: nothing in it is
        collective."""
        ...

    def finish(self) -> None:
        """Collective, after `write` on every rank: completes the folder. Only the main rank may raise OSError."""
        ...


class Policy(Protocol):
    """The trained model on this replica's ranks (tensor x pipeline parallel). Every rank of a replica passes the same
    batch; replicas (data-parallel ranks) pass different ones."""

    def logprobs(self, batch: TokenBatch) -> FloatArray:
        """[B, T] log-probability of each response token under the current weights at the training temperature."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """In its body `logprobs` is of the reference weights. On CUDA they are fetched from host memory each time it is
        entered: once for many batches."""
        ...

    def update(self, batch: TrainBatch, loss_function: LossFunction) -> UpdateReport:
        """One optimizer update over the batches of all replicas. A replica may have no rows."""
        ...

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective over the replica: every full tensor under its Hugging Face name, one at a time, on every rank."""
        ...

    def adopt_as_reference(self) -> None:
        """The reference becomes a true copy of the current weights."""
        ...

    def reset_optimizer(self) -> None:
        """Moments and step count go; learning rate and weights stay."""
        ...

    def begin_save(self, directory: Path) -> PendingSave:
        """Collective over all ranks: weights, optimizer, reference and random states, copied to host memory as they are
        now, to be written into `directory` in any-layout shards. Training may go on at once."""
        ...

    def load(
        self,
        directory: Path,
        *,
        optimizer: bool = True,
        reference: bool = True,
        num_updates: int | None = None,
    ) -> None:
        """What `begin_save` has saved, in the same or another layout; what is not asked for is left as it is. The
        learning-rate schedule goes on after `num_updates` updates; None: where it stood when this was saved."""
        ...

    def reference_hash(self) -> str:
        """Collective over all ranks: identifies the reference weights bit by bit, whatever the layout."""
        ...

    def prepare_for_training(self) -> None: ...

    def finish_training(self) -> None: ...

    def take_peak_gib(self) -> float:
        """Returns the largest amount of memory, in GiB, that torch has reserved on this rank's GPU since the last call;
        0 on CPU. What vLLM's sleep mode has released may still count."""
        ...

    def in_use(self) -> Mapping[str, str]:
        """As `Sampler.in_use`."""
        ...


class Grader(Protocol):
    """The reward service, reward functions, or both, seen from the loop."""

    def submit(self, request: ScoreRequest, prompt: Prompt) -> Future[ScoreResult]:
        """Returns at once. The future never raises for a failing grader: its result has no score then. The request is
        what the service is told; `prompt`, which the response answers, has all columns of its row."""
        ...

    def check(self) -> None:
        """Raises when the grader is known to be gone for good, so that nobody waits for it."""
        ...
