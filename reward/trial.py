"""Trials: decide whether a response is itself to blame if no worker could grade it.

A worker that dies, or gives no answer within its wall time, says nothing about the response: the machine may be
overloaded. But the trainer drops responses that are not graded, so if this were all, a policy would learn to write
responses that exhaust their graders. So a request that has failed in the pool is tried once more by a fresh worker of
its own, one request at a time. Meanwhile a second fresh worker, the witness, grades known answers continuously. If the
fresh worker answers, that counts. If not, the response gets 0 only where a busy machine cannot be the reason:

- the worker died of a cause from within. SIGKILL, which the kernel sends when memory runs out, SIGTERM, SIGINT and
  SIGHUP come from outside and prove nothing.
- it sent a malformed answer, or one that is too long.
- it and all processes below it slept for 10 s without a break. A process that waits for a processor or the disk, or
  that was stopped, does not sleep.
- the judge of a program itself used 60 s of CPU time, where it usually needs milliseconds.

In all these cases the witness must also have given only right answers, each within 1 s, from before the request was
sent until after it had failed. The two workers need not have had the same share of the processor, because no rule
counts time in which a worker was kept from computing.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from reward import frames
from reward.answers import Answer, Crashed, Exhausts, Failed, Grade, NoAnswer, Retry, TimedOut
from reward.known_answers import KNOWN_ANSWERS
from reward.metrics import Metrics
from reward.pool import CRASH_SIGNALS, Link, Pool
from reward.sandbox.clock import StallMeter
from reward.sandbox.launch import ZygoteError

_PLACES = 64
"""Requests that may wait for a trial: a policy that exhausts workers must not exhaust the service's memory too. Further
requests stay ungraded."""
_REMEMBERED = 4096
"""Responses that a trial found to exhaust their grader, each remembered by a digest of 32 bytes."""
_STALL_S = 10.0
"""Longer than a program may sleep (5 s, reward/sandbox/execution.py); graders never sleep."""
_WALL_S = 60.0
"""Wall seconds for a worker in a trial, or the pool's limit if that is longer. Long enough that a worker reaches its
CPU limit, which decides the score, even with a tenth of a processor."""
_JUDGE_CPU_S = 60.0
"""CPU seconds of the judge alone, without the program that it judges. Other workers have their pool's limit."""
_SAMPLE_S = 0.25
_PAUSE_S = 0.2
"""Seconds between two known answers, so that the witness itself is no load."""
_SLOW_S = 1.0
"""Seconds within which the witness must answer. It takes milliseconds, and tens of them for code."""
_WARM_UP_S = 30.0
"""Seconds for the first known answers of a fresh worker: a judge has to start its fork server."""
_NUM_KNOWN = 8
"""The fewest known answers that a witness must answer, about 2 s of work, however soon the other worker died."""
_FROM_OUTSIDE = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})


class Trials:
    """All trials of a service, one at a time. All methods must be called in the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = asyncio.Lock()
        self._num_places = _PLACES
        self._exhausting: OrderedDict[bytes, Exhausts] = OrderedDict()
        """The outcome by digest of messages that exhaust their grader; the most recently used is at the end."""
        self._running: asyncio.Task[Answer] | None = None
        self._closed = False

    async def decide(
        self, pool: Pool, message: Mapping[str, Any], deadline: float | None, failed: NoAnswer
    ) -> Answer:
        """Returns a fresh worker's answer, as `Pool.run` does, or Exhausts if the response is to blame, or else
        `failed`, the pool's own answer. No trial begins after the deadline (a time.monotonic value); one that
        has begun continues, as a request in the pool does. A message known to exhaust its grader is not tried again."""
        digest = hashlib.sha256(frames.body(message)).digest()
        if found := self._recall(pool, digest):
            return found
        if self._num_places == 0:
            self._metrics.trials.add(pool.name, "no_place")
            return failed
        self._num_places -= 1
        try:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0.0:
                raise TimeoutError
            async with asyncio.timeout(left_s):
                await self._lock.acquire()
        except TimeoutError:
            self._metrics.trials.add(pool.name, "late")
            return failed
        finally:
            self._num_places += 1
        try:
            if self._closed:
                return failed
            if found := self._recall(pool, digest):  # from a trial that ended while this request waited
                return found
            answer = await self._try(pool, message, failed)
            if isinstance(answer, Exhausts):
                self._exhausting[digest] = answer
                if len(self._exhausting) > _REMEMBERED:
                    self._exhausting.popitem(last=False)
            return answer
        finally:
            self._lock.release()

    def _recall(self, pool: Pool, digest: bytes) -> Exhausts | None:
        """Returns the outcome of an earlier trial of this message; None if there was none."""
        if digest not in self._exhausting:
            return None
        self._exhausting.move_to_end(digest)
        self._metrics.trials.add(pool.name, "remembered")
        return self._exhausting[digest]

    async def close(self) -> None:
        """Cancels the trial in progress; its request and those that wait stay ungraded."""
        self._closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _try(self, pool: Pool, message: Mapping[str, Any], failed: NoAnswer) -> Answer:
        self._running = asyncio.get_running_loop().create_task(_trial(pool, message))
        try:
            await asyncio.wait([self._running])
            answer = Failed("the service ends") if self._running.cancelled() else self._running.result()
        finally:
            self._running.cancel()
            self._running = None
        match answer:
            case Failed(reason):
                self._metrics.trials.add(pool.name, "undecided")
                return NoAnswer(f"{failed.reason}; tried alone: {reason}")
            case Exhausts():
                self._metrics.trials.add(pool.name, "exhausts")
            case _:
                self._metrics.trials.add(pool.name, "answered")
        return answer


async def _trial(pool: Pool, message: Mapping[str, Any]) -> Answer:
    """Runs a trial. Returns its outcome; Failed if it decides nothing."""
    domain = message["domain"]
    links: list[Link] = []
    over = asyncio.Event()
    try:
        for _ in range(2):
            links.append(await pool.fresh())
            if complaint := await _ask_known(links[-1], domain, _WARM_UP_S):
                return Failed(f"a fresh worker {complaint}")
        suspect, witness = links
        watching = asyncio.get_running_loop().create_task(_watch(witness, domain, over))
        try:
            answer = await _turn(pool, suspect, frames.encode(message))
            if answer is None:
                links.remove(suspect)
                signal_number = await suspect.end()  # 0 if it ended by itself
                if signal_number in CRASH_SIGNALS:
                    answer = Crashed(signal_number)
                elif signal_number in _FROM_OUTSIDE:
                    answer = Failed(f"its worker was killed from outside (signal {signal_number})")
                else:
                    answer = Exhausts(f"its worker ended by itself (signal {signal_number})")
            over.set()
            if isinstance(answer, Exhausts) and (complaint := await watching):
                return Failed(f"{answer.reason}, but a worker beside it {complaint}")
            return answer
        finally:
            watching.cancel()
            await asyncio.wait([watching])
    except (ZygoteError, OSError) as error:
        return Failed(f"no fresh worker could be started: {error}")
    finally:
        for link in links:
            await link.end()


async def _turn(pool: Pool, suspect: Link, data: bytes) -> Answer | None:
    """Returns the worker's answer to the request, or what its silence means; None if it has died."""
    limit_s, own_cpu_s = max(_WALL_S, pool.options.wall_s + _STALL_S), pool.options.cpu_s
    meter, began_s = StallMeter(suspect.worker.pid), time.monotonic()
    asking = asyncio.get_running_loop().create_task(suspect.ask(data, own_cpu_s or _JUDGE_CPU_S))
    try:
        while not (await asyncio.wait([asking], timeout=_SAMPLE_S))[0]:
            now_s = time.monotonic()
            suspect.check(now_s, float("inf"))
            if meter.sample() >= _STALL_S:
                return Exhausts(f"its worker did nothing at all for {_STALL_S:g} s")
            if now_s - began_s > limit_s:
                return Failed(f"no answer within {limit_s:g} s")
        answer = asking.result().answers[0]
    except TimeoutError:
        if own_cpu_s is not None:
            return TimedOut()
        return Exhausts(f"its judge computed for {_JUDGE_CPU_S:g} s")
    except ValueError as error:
        return Exhausts(f"its worker sent a malformed answer: {error}")
    except (OSError, EOFError):
        return None
    finally:
        asking.cancel()
    return Failed(answer.reason) if isinstance(answer, Retry) else answer


async def _watch(witness: Link, domain: str, over: asyncio.Event) -> str:
    """Has known answers graded until the trial is over and enough were. Returns what went wrong, empty if nothing."""
    num_answers = 0
    while num_answers < _NUM_KNOWN or not over.is_set():
        if complaint := await _ask_known(witness, domain, _SLOW_S):
            return complaint
        num_answers += len(KNOWN_ANSWERS[domain])
        await asyncio.sleep(_PAUSE_S)
    return ""


async def _ask_known(link: Link, domain: str, limit_s: float) -> str:
    """Has a domain's known answers graded, each within limit_s. Returns what was wrong, empty if nothing was."""
    for known in KNOWN_ANSWERS[domain]:
        message = {"domain": domain, "response": known.response, "in_thought": False, "task": known.task}
        try:
            async with asyncio.timeout(limit_s):
                (answer,) = (await link.ask(frames.encode(message), None)).answers
        except TimeoutError:
            return f"did not answer a known answer within {limit_s:g} s"
        except (OSError, EOFError, ValueError):
            return "died of a known answer"
        if not isinstance(answer, Grade) or answer.score != known.score:
            return "did not solve a known answer"
    return ""
