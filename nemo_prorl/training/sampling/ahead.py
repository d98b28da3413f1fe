"""Sampling ahead: the next step's first round of rollouts is sampled while the policy trains on this step's.

Its rollouts come from weights that are one step older than those they train. The importance weight (old / sampler
probability, docs/algorithm.md) corrects for that. A round begins at a fixed point of the step, whatever the timing, so
a run with sampling ahead is as reproducible as one without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from nemo_prorl.engines.interface import SamplingSettings
from nemo_prorl.training.sampling.grading import GradingInFlight
from nemo_prorl.types import Prompt, Rollout, Share

SampleShare = Callable[[Sequence[Prompt], SamplingSettings, Callable[[int, Rollout], None]], Share]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of sampling: its prompts, its settings, and the grading of this rank's share."""

    prompts: Sequence[Prompt]
    settings: SamplingSettings
    in_flight: GradingInFlight

    def submit(self, index: int, rollout: Rollout) -> None:
        """Hands a finished rollout to the graders."""
        self.in_flight.submit((index, rollout.sibling), rollout)


class RoundAhead:
    """A round that this rank's engine samples in a background thread, without collectives. Nobody else may use the
    engine until `share` or `cancel` has returned."""

    def __init__(self, round_: Round, sample_share: SampleShare) -> None:
        self.round = round_
        self._unwanted = Event()
        executor = ThreadPoolExecutor(1, thread_name_prefix="sampling-ahead")
        self._share = executor.submit(sample_share, round_.prompts, round_.settings, self._on_finish)
        executor.shutdown(wait=False)

    def share(self) -> Share:
        """Waits until the round has ended, and returns what this rank sampled. Raises what sampling raised."""
        return self._share.result()

    def cancel(self) -> None:
        """Stops sampling. Returns when the engine is idle, at the latest when its next rollout has ended."""
        self._unwanted.set()
        self._share.exception()

    def _on_finish(self, index: int, rollout: Rollout) -> None:
        if self._unwanted.is_set():
            raise CancelledError  # makes the sampler abort the other rollouts
        self.round.submit(index, rollout)
