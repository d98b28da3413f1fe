"""Simulates what the longest responses cost, for two ways of distributing rollouts over engines.

Within an engine all active sequences grow by one token per decoding step, so the simulation jumps from the end of one
sequence to the end of the next. Nothing is preempted: a sequence starts when its engine has a free place, after the
prompt's prefill if it is the prompt's first there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from math import ceil

from nemo_prorl.types import IntArray


class Scheduling(Enum):
    """prompts: whole groups are distributed over the engines before the first token. rollouts: single rollouts are, so
    that the long rollouts of a hard prompt are spread over many engines."""

    prompts = "prompts"
    rollouts = "rollouts"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCost:
    """Costs in seconds. A decoding step, during which the engine's loop on the CPU prepares the next one, takes
    max(step_s + sequence_s x sequences + context_token_s x tokens in their contexts,
    loop_step_s + loop_sequence_s x sequences)."""

    prefill_s: float
    """Prefill of a prompt, once on each engine that has rollouts of it."""
    step_s: float
    sequence_s: float
    context_token_s: float
    loop_step_s: float = 0.0
    loop_sequence_s: float = 0.0

    def seconds(self, num_steps: int, num_sequences: int, context_tokens: int) -> float:
        """Returns the time of consecutive steps, each of which adds a token to every context."""
        loop = self.loop_step_s + self.loop_sequence_s * num_sequences
        first = self.step_s + self.sequence_s * num_sequences + self.context_token_s * context_tokens
        growth = self.context_token_s * num_sequences  # of the GPU's time, from step to step
        by_loop = ceil((loop - first) / growth) if growth else num_steps * (loop > first)
        by_loop = min(max(by_loop, 0), num_steps)  # steps in which the loop takes longer than the GPU
        by_gpu = num_steps - by_loop
        return by_loop * loop + by_gpu * (first + growth * (by_loop + num_steps - 1) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Simulated time of sampling one batch of rollouts."""

    seconds: float
    waiting_share: float
    """Share of the engines' time in which an engine has nothing left to do and waits for the last one."""
    half_empty_share: float
    """Share of the engines' time in which an engine decodes less than half of its peak number of sequences, waiting
    included."""


def simulate(
    lengths: IntArray,
    *,
    prompt_tokens: int,
    num_engines: int,
    num_places: int,
    cost: DecodeCost,
    scheduling: Scheduling,
) -> Sampling:
    """Simulates responses of `lengths` [num_prompts, num_rollouts] tokens on engines of `num_places` sequences each."""
    rows: list[list[int]] = lengths.tolist()
    engines = []
    for index in range(num_engines):
        mine: Iterable[list[int]] = _dealt(rows, index, num_engines)
        if scheduling is Scheduling.prompts:
            mine = rows[index::num_engines]
        engine = _Engine(cost=cost, prompt_tokens=prompt_tokens, num_places=num_places, queue=deque(mine))
        engine.run()
        engines.append(engine)
    seconds = max(engine.busy_s for engine in engines)
    total = num_engines * seconds
    waiting = total - sum(engine.busy_s for engine in engines)
    half_empty = waiting + sum(engine.half_empty_s for engine in engines)
    return Sampling(seconds=seconds, waiting_share=waiting / total, half_empty_share=half_empty / total)


def _dealt(rows: list[list[int]], engine: int, num_engines: int) -> Iterator[list[int]]:
    """Yields one engine's rollouts of each prompt, if rollouts are distributed one by one."""
    dealt = 0
    for row in rows:
        if mine := row[(engine - dealt) % num_engines :: num_engines]:
            yield mine
        dealt += len(row)


@dataclass(slots=True, kw_only=True)
class _Engine:
    cost: DecodeCost
    prompt_tokens: int
    num_places: int
    queue: deque[list[int]]
    """Lengths of the rollouts of each prompt that is not yet prefilled."""
    backlog: deque[int] = field(default_factory=deque)
    """Lengths of rollouts whose prompt is prefilled and that wait for a place."""
    active: list[tuple[int, int]] = field(default_factory=list)
    """Heap of (step at which the rollout ends, length)."""
    step: int = 0
    context_tokens: int = 0
    busy_s: float = 0.0
    half_empty_s: float = 0.0
    fullest: int = 0

    def run(self) -> None:
        """Simulates from the first prompt to the end of the last rollout."""
        self._take()
        while self.active:
            self._end_next()
            self._take()

    def _take(self) -> None:
        """Prefills prompts and starts their rollouts, as long as there are prompts and places."""
        self._fill()
        while self.queue and len(self.active) + len(self.backlog) < self.num_places:
            self.busy_s += self.cost.prefill_s
            self.backlog.extend(self.queue.popleft())
            self._fill()

    def _fill(self) -> None:
        """Starts waiting rollouts, as long as there are places."""
        while self.backlog and len(self.active) < self.num_places:
            length = self.backlog.popleft()
            heappush(self.active, (self.step + length, length))
            self.context_tokens += self.prompt_tokens
        self.fullest = max(self.fullest, len(self.active))

    def _end_next(self) -> None:
        """Decodes until a sequence ends."""
        num_active = len(self.active)
        end, length = heappop(self.active)
        seconds = self.cost.seconds(end - self.step, num_active, self.context_tokens)
        self.busy_s += seconds
        self.half_empty_s += seconds * (2 * num_active < self.fullest)
        self.context_tokens += (end - self.step) * num_active - self.prompt_tokens - length
        self.step = end
