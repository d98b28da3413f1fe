"""Simulates what the longest responses cost, for two ways of distributing rollouts over engines.

    python -m experiments.estimates.tail

Lengths are log-normal and cut off at the longest response; rollouts of a prompt are correlated. Within an engine all
active sequences grow by one token per decoding step, so the simulation jumps from the end of one sequence to the end of
the next. Nothing is preempted: a sequence starts when its engine has a free place, after the prompt's prefill if it is
the prompt's first there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from math import ceil, exp, log, sqrt
from pathlib import Path
from statistics import NormalDist, fmean

import numpy as np

from nemo_prorl.cluster.plan.chain import load_chain
from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.known import GPUS
from nemo_prorl.cluster.scale.memory import estimate_memory
from nemo_prorl.cluster.scale.roofline import FITTED, DecodeCost, decode_cost
from nemo_prorl.cluster.scale.known import PAPER_MODEL, shape_of
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.types import IntArray

SIGMA = 0.8
"""Standard deviation of the log length (with a mean of half the longest response, 14 % are cut off)."""
SIBLING_CORRELATION = 0.5
"""Share of the log length's variance that the prompt explains (hard prompts have long answers, but rollouts
of one prompt differ)."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a response: min(X, limit), log X normal with mean `mu` and standard deviation SIGMA.

    Example: Lengths.with_mean(3536, limit=7072)
    """

    mu: float
    limit: int

    @classmethod
    def with_mean(cls, mean: float, *, limit: int) -> Lengths:
        """Returns the distribution whose mean is `mean`, in (0, limit), after the cut."""
        low, high = -10.0, log(limit) + 20 * SIGMA
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if _cut_moment(1, middle, limit) < mean else (low, middle)
        return cls(mu=low, limit=limit)

    @property
    def mean(self) -> float:
        return _cut_moment(1, self.mu, self.limit)

    @property
    def mean_square(self) -> float:
        """Mean square of the cut length, with which attention's arithmetic grows."""
        return _cut_moment(2, self.mu, self.limit)

    def draw(self, num_prompts: int, num_rollouts: int, seed: int) -> IntArray:
        """Draws [num_prompts, num_rollouts] lengths in whole tokens, at least 1."""
        rng = np.random.default_rng(seed)
        of_prompt = rng.standard_normal((num_prompts, 1))
        of_rollout = rng.standard_normal((num_prompts, num_rollouts))
        z = sqrt(SIBLING_CORRELATION) * of_prompt + sqrt(1 - SIBLING_CORRELATION) * of_rollout
        lengths = np.exp(self.mu + SIGMA * z)
        return np.clip(np.rint(lengths), 1, self.limit).astype(np.int64)


def _cut_moment(k: int, mu: float, limit: float) -> float:
    """Returns E[min(X, limit)^k], the limited moment of the log-normal: exp(k mu + k^2 SIGMA^2 / 2) Phi(a - k SIGMA)
    + limit^k (1 - Phi(a)) with a = (log limit - mu) / SIGMA (Klugman, Panjer and Willmot, Loss Models, appendix A)."""
    a = (log(limit) - mu) / SIGMA
    return exp(k * mu + (k * SIGMA) ** 2 / 2) * _NORMAL.cdf(a - k * SIGMA) + limit**k * (1 - _NORMAL.cdf(a))


class Scheduling(Enum):
    """prompts: whole groups are distributed over the engines before the first token. rollouts: single rollouts are, so
    that the long rollouts of a hard prompt are spread over many engines."""

    prompts = "prompts"
    rollouts = "rollouts"


def decode_seconds(cost: DecodeCost, num_steps: int, num_sequences: int, context_tokens: int) -> float:
    """Returns the time of consecutive decoding steps, each of which adds a token to every context."""
    loop = cost.loop_step_s + cost.loop_sequence_s * num_sequences
    first = cost.step_s + cost.sequence_s * num_sequences + cost.context_token_s * context_tokens
    growth = cost.context_token_s * num_sequences  # of the GPU's time, from step to step
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
        mine: Iterable[list[int]] = _split_over_engines(rows, index, num_engines)
        if scheduling is Scheduling.prompts:
            mine = rows[index::num_engines]
        engine = Engine(cost=cost, prompt_tokens=prompt_tokens, num_places=num_places, queue=deque(mine))
        engine.run()
        engines.append(engine)
    seconds = max(engine.busy_s for engine in engines)
    total = num_engines * seconds
    waiting = total - sum(engine.busy_s for engine in engines)
    half_empty = waiting + sum(engine.half_empty_s for engine in engines)
    return Sampling(seconds=seconds, waiting_share=waiting / total, half_empty_share=half_empty / total)


def _split_over_engines(rows: list[list[int]], engine: int, num_engines: int) -> Iterator[list[int]]:
    """Yields one engine's rollouts of each prompt, if rollouts are distributed one by one."""
    start = 0
    for row in rows:
        if mine := row[(engine - start) % num_engines :: num_engines]:
            yield mine
        start += len(row)


@dataclass(slots=True, kw_only=True)
class Engine:
    """One engine, and what it samples."""

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
    ends_s: list[float] = field(default_factory=list)
    """When each rollout has ended, in that order; of those that end in one step the shortest comes first."""

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
        seconds = decode_seconds(self.cost, end - self.step, num_active, self.context_tokens)
        self.busy_s += seconds
        self.half_empty_s += seconds * (2 * num_active < self.fullest)
        self.context_tokens += (end - self.step) * num_active - self.prompt_tokens - length
        self.step = end
        self.ends_s.append(self.busy_s)


def main() -> None:
    """Prints the sampling time of runs 1, 6 and 8 for both ways, as means over three draws."""
    for name in ("run1", "run6", "run8"):
        config = load_chain([name], [], config_name="train", conf_dir=Path("conf"))[-1]
        cluster = Cluster(num_nodes=4, gpus_per_node=8)
        case = Case(model=shape_of(PAPER_MODEL), config=config, cluster=cluster, gpu=GPUS["h100"])
        lengths = Lengths.with_mean(case.response_tokens, limit=config.sampler.max_response_tokens)
        places, cost = estimate_memory(case).num_places, decode_cost(case)
        for scheduling in Scheduling:
            draws = [
                simulate(
                    lengths.draw(case.sampled_prompts, config.sampler.num_rollouts, seed),
                    prompt_tokens=case.prompt_tokens,
                    num_engines=case.num_engines,
                    num_places=places,
                    cost=cost,
                    scheduling=scheduling,
                )
                for seed in range(3)
            ]
            seconds = fmean(draw.seconds for draw in draws) / FITTED.sampling
            waiting, half_empty = (
                fmean(getattr(draw, of) for draw in draws) for of in ("waiting_share", "half_empty_share")
            )
            print(
                f"{name} by {scheduling.value}: {seconds:.1f} s, waiting {waiting:.0%}, half empty {half_empty:.0%}"
            )


if __name__ == "__main__":
    main()
