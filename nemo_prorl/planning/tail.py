"""What the longest responses cost: engines simulated rollout by rollout, under four ways to share the work out.

Within an engine all active sequences grow by one token at each decoding step, so between two ends of sequences nothing
happens but steps that slowly take longer: the simulation jumps from end to end. Nothing is preempted: a sequence begins
when its engine has a place free, after the engine has read its prompt if it has not yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush

from nemo_prorl.types import IntArray

NUM_BATCHES_AHEAD = 8
"""Batches in a row of which the last ones tell how long one takes when sampling runs ahead."""


class Scheduling(Enum):
    """prompts: whole groups are dealt to the engines before the first token. rollouts: single rollouts are, so that the
    siblings of a hard prompt are on many engines. queue: an engine takes the next group when it has a place free.
    ahead: as queue, and the next batch's groups follow before the last of this one has ended (they are off-policy)."""

    prompts = "prompts"
    rollouts = "rollouts"
    queue = "queue"
    ahead = "ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCost:
    """Seconds of one decoding step: step_s + sequence_s x sequences + context_token_s x tokens in their contexts."""

    prefill_s: float
    """Of a prompt, once on each engine that has a rollout of it: siblings share it."""
    step_s: float
    sequence_s: float
    context_token_s: float

    def seconds(self, num_steps: int, num_sequences: int, context_tokens: int) -> float:
        """Of so many steps in a row, each of which adds a token to every context."""
        growth = num_sequences * num_steps * (num_steps - 1) / 2
        each = self.step_s + self.sequence_s * num_sequences
        return num_steps * each + self.context_token_s * (num_steps * context_tokens + growth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One batch of rollouts, sampled."""

    seconds: float
    waiting_share: float
    """Of the engines' time, in which an engine has nothing left to do and waits for the last one."""
    half_empty_share: float
    """Of the engines' time, in which an engine decodes less than half as many sequences as it had at its fullest,
    waiting included: the tail."""


def simulate(
    lengths: IntArray,
    *,
    prompt_tokens: int,
    num_engines: int,
    num_places: int,
    cost: DecodeCost,
    scheduling: Scheduling,
) -> Sampling:
    """Samples responses of `lengths` [num_prompts, num_rollouts] on engines of `num_places` sequences each.

    `ahead` repeats the batch until the time from the end of one to the end of the next has settled: that is its time.
    """
    rows = [_Row(batch=0, lengths=row) for row in lengths.tolist()]
    match scheduling:
        case Scheduling.prompts:
            queues = [deque(rows[first::num_engines]) for first in range(num_engines)]
        case Scheduling.rollouts:
            queues = [deque(_dealt(rows, engine, num_engines)) for engine in range(num_engines)]
        case _:
            queues = [deque(rows)] * num_engines
    engines = [
        _Engine(cost=cost, prompt_tokens=prompt_tokens, num_places=num_places, queue=queue)
        for queue in queues
    ]
    if scheduling is Scheduling.ahead:
        return _repeat(engines, queues[0], rows)
    end_s = _Race(engines).run()
    return _between(engines, [_Mark(0.0, 0.0, 0.0), _mark(engines, end_s)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One prompt: how long its rollouts get."""

    batch: int
    lengths: list[int]


def _dealt(rows: list[_Row], engine: int, num_engines: int) -> Iterator[_Row]:
    """One engine's rollouts when they are dealt one by one."""
    dealt = 0
    for row in rows:
        if mine := row.lengths[(engine - dealt) % num_engines :: num_engines]:
            yield _Row(batch=row.batch, lengths=mine)
        dealt += len(row.lengths)


@dataclass(slots=True, kw_only=True)
class _Engine:
    cost: DecodeCost
    prompt_tokens: int
    num_places: int
    queue: deque[_Row]
    """Of prompts to take next; shared with other engines, or its own."""
    backlog: deque[tuple[int, int]] = field(default_factory=deque)
    """(batch, length) of rollouts whose prompt is taken and that wait for a place."""
    active: list[tuple[int, int, int]] = field(default_factory=list)
    """Heap of (step at which it ends, batch, length)."""
    step: int = 0
    context_tokens: int = 0
    now_s: float = 0.0
    busy_s: float = 0.0
    half_empty_s: float = 0.0
    fullest: int = 0

    def take(self) -> bool:
        """The next prompt, if there is one and a place for a rollout of it."""
        if len(self.active) + len(self.backlog) >= self.num_places or not self.queue:
            return False
        row = self.queue.popleft()
        self.now_s += self.cost.prefill_s
        self.busy_s += self.cost.prefill_s
        self.backlog.extend((row.batch, length) for length in row.lengths)
        self.fill()
        return True

    def fill(self) -> None:
        """Starts what waits, as far as there are places."""
        while self.backlog and len(self.active) < self.num_places:
            batch, length = self.backlog.popleft()
            heappush(self.active, (self.step + length, batch, length))
            self.context_tokens += self.prompt_tokens
        self.fullest = max(self.fullest, len(self.active))

    def next_end_s(self) -> float:
        return self.now_s + self._seconds_to_next_end()

    def end_next(self) -> int:
        """Decodes until a sequence ends; returns its batch."""
        seconds = self._seconds_to_next_end()
        self.now_s += seconds
        self.busy_s += seconds
        if 2 * len(self.active) < self.fullest:
            self.half_empty_s += seconds
        end, batch, length = heappop(self.active)
        self.context_tokens += (end - self.step) * (len(self.active) + 1) - self.prompt_tokens - length
        self.step = end
        self.fill()
        while self.take():
            pass
        return batch

    def _seconds_to_next_end(self) -> float:
        return self.cost.seconds(self.active[0][0] - self.step, len(self.active), self.context_tokens)


class _Race:
    """Engines side by side, whoever ends a sequence next comes first."""

    def __init__(self, engines: list[_Engine]) -> None:
        self._engines = engines
        self._heap: list[tuple[float, int]] = []
        self.deal(0.0)

    def deal(self, now_s: float) -> None:
        """A prompt to each engine in turn, until no queue has one, or no engine a place. Idle engines start."""
        idle = [engine for engine in self._engines if not engine.active]
        for engine in idle:
            engine.now_s = now_s
        while sum(engine.take() for engine in (idle if self._heap else self._engines)):
            pass  # a sum, not any(): every engine has its turn
        for index, engine in enumerate(self._engines):
            if engine in idle and engine.active:
                heappush(self._heap, (engine.next_end_s(), index))

    def next(self) -> tuple[float, int] | None:
        """(when, batch) of the sequence that ends next; None: all have."""
        if not self._heap:
            return None
        now_s, index = heappop(self._heap)
        engine = self._engines[index]
        batch = engine.end_next()
        if engine.active:
            heappush(self._heap, (engine.next_end_s(), index))
        return now_s, batch

    def run(self) -> float:
        """To the last end."""
        now_s = 0.0
        while (ended := self.next()) is not None:
            now_s = ended[0]
        return now_s


@dataclass(frozen=True, slots=True)
class _Mark:
    now_s: float
    busy_s: float
    half_empty_s: float


def _mark(engines: list[_Engine], now_s: float) -> _Mark:
    busy = sum(engine.busy_s for engine in engines)
    waited = now_s * len(engines) - busy
    return _Mark(now_s, busy, waited + sum(engine.half_empty_s for engine in engines))


def _between(engines: list[_Engine], marks: list[_Mark]) -> Sampling:
    """A batch of those between the first and the last mark."""
    first, last = marks[0], marks[-1]
    seconds = last.now_s - first.now_s
    total = seconds * len(engines)
    return Sampling(
        seconds=seconds / (len(marks) - 1),
        waiting_share=max(0.0, 1 - (last.busy_s - first.busy_s) / total),
        half_empty_share=max(0.0, last.half_empty_s - first.half_empty_s) / total,
    )


def _repeat(engines: list[_Engine], queue: deque[_Row], rows: list[_Row]) -> Sampling:
    """The same batch over and over, of which at most two are under way at a time."""
    num_left = [sum(len(row.lengths) for row in rows)] * NUM_BATCHES_AHEAD
    queue.extend(_Row(batch=1, lengths=row.lengths) for row in rows)
    race, marks = _Race(engines), list[_Mark]()
    while (ended := race.next()) is not None:
        now_s, batch = ended
        num_left[batch] -= 1
        while len(marks) < NUM_BATCHES_AHEAD and num_left[len(marks)] == 0:
            marks.append(_mark(engines, now_s))
            if (fresh := len(marks) + 1) < NUM_BATCHES_AHEAD:
                queue.extend(_Row(batch=fresh, lengths=row.lengths) for row in rows)
                race.deal(now_s)
    # The first batches start together, and the last ones have nobody behind them.
    return _between(engines, marks[2:-1])
