"""Sampling ahead: the next step's first round of rollouts comes while the policy trains on this step's.

Its rollouts are of weights that are one step old when they are trained on, for which the importance weight makes up
(old / sampler probability, docs/algorithm.md). When a round begins is decided by the step, never by how long something
took: a run with sampling ahead repeats itself, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any

from nemo_prorl.engines.interface import SamplingSettings
from nemo_prorl.training.fleet import Share
from nemo_prorl.training.grading import GradingInFlight
from nemo_prorl.types import Prompt, Rollout

SampleShare = Callable[[Sequence[Prompt], SamplingSettings, Callable[[int, Rollout], None]], Share]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round of sampling is asked for, and the verdicts on this rank's share of it."""

    prompts: Sequence[Prompt]
    settings: SamplingSettings
    in_flight: GradingInFlight

    def submit(self, index: int, rollout: Rollout) -> None:
        """To the graders, the moment it ends."""
        self.in_flight.submit((index, rollout.sibling), rollout)


class RoundAhead:
    """A round that this rank's engine samples in a thread of its own. Nothing of it is collective, and until `share`
    has returned nobody else may use the engine."""

    def __init__(self, round_: Round, sample_share: SampleShare, cursor: dict[str, Any]) -> None:
        """`cursor`: of the prompts, before those of the round were taken."""
        self.round, self.cursor = round_, cursor
        self._unwanted = Event()
        with_one_thread = ThreadPoolExecutor(1, thread_name_prefix="sampling-ahead")
        self._share = with_one_thread.submit(sample_share, round_.prompts, round_.settings, self._on_finish)
        with_one_thread.shutdown(wait=False)

    def share(self) -> Share:
        """Waits for it. Raises what sampling raised."""
        return self._share.result()

    def cancel(self) -> None:
        """Returns when the engine is idle: at the latest when its next rollout has ended."""
        self._unwanted.set()
        self._share.exception()

    def _on_finish(self, index: int, rollout: Rollout) -> None:
        if self._unwanted.is_set():
            raise CancelledError  # the sampler gives up the rest
        self.round.submit(index, rollout)
