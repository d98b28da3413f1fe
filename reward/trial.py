"""Trials: decide whether a response is itself to blame if no worker could grade it.

A worker that dies, or gives no answer within its wall time, says nothing about the response: the machine may be
overloaded. But the trainer drops responses that are not graded, so if this were all, a policy would learn to write
responses that exhaust their graders. So a request that has failed in the pool is tried once more by a fresh worker of
its own, one request at a time. Meanwhile a second fresh worker, the witness, grades canaries continuously. If the fresh
worker answers, that counts. If not, the response gets 0 only where a busy machine cannot be the reason:

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
from reward.canaries import CANARIES
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
"""Seconds between two canaries, so that the witness itself is no load."""
_SLOW_S = 1.0
"""Seconds within which the witness must answer. Canaries take milliseconds, those of the code domain tens of them."""
_WARM_UP_S = 30.0
"""Seconds for the first canaries of a fresh worker: a judge has to start its fork server."""
_NUM_CANARIES = 8
"""The fewest canaries that a witness must answer, about 2 s of work, however soon the other worker died."""
_FROM_OUTSIDE = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})


class Trials:
    """All trials of a service, one at a time. All methods must be called in the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = asyncio.Lock()
        self._num_places = _PLACES
        self._exhausting: OrderedDict[bytes, str] = OrderedDict()
        """Reasons by digest of messages that exhaust their grader; the most recently used is at the end."""
        self._running: asyncio.Task[dict[str, Any]] | None = None
        self._closed = False

    async def decide(
        self, pool: Pool, message: Mapping[str, Any], deadline: float | None, failed: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns a fresh worker's answer, as `Pool.run` does, or {"exhausts": sentence} if the response is to blame,
        or else `failed`, the pool's own answer. No trial begins after the deadline (a time.monotonic value); one that
        has begun continues, as a request in the pool does. A message known to exhaust its grader is not tried again."""
        digest = hashlib.sha256(frames.body(message)).digest()
        if answer := self._remembered(pool, digest):
            return answer
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
            if answer := self._remembered(pool, digest):  # from a trial that ended while this request waited
                return answer
            answer = await self._tried(pool, message, failed)
            if "exhausts" in answer:
                self._exhausting[digest] = answer["exhausts"]
                if len(self._exhausting) > _REMEMBERED:
                    self._exhausting.popitem(last=False)
            return answer
        finally:
            self._lock.release()

    def _remembered(self, pool: Pool, digest: bytes) -> dict[str, Any]:
        """Returns the outcome of an earlier trial of this message; {} if there was none."""
        if digest not in self._exhausting:
            return {}
        self._exhausting.move_to_end(digest)
        self._metrics.trials.add(pool.name, "remembered")
        return {"exhausts": self._exhausting[digest]}

    async def close(self) -> None:
        """Cancels the trial in progress; its request and those that wait stay ungraded."""
        self._closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _tried(self, pool: Pool, message: Mapping[str, Any], failed: dict[str, Any]) -> dict[str, Any]:
        self._running = asyncio.get_running_loop().create_task(_trial(pool, message))
        try:
            await asyncio.wait([self._running])
            answer = {"failed": "the service ends"} if self._running.cancelled() else self._running.result()
        finally:
            self._running.cancel()
            self._running = None
        outcome = next(iter(answer.keys() & _OUTCOMES.keys()), "failed")
        self._metrics.trials.add(pool.name, _OUTCOMES[outcome])
        if outcome == "failed":
            return {**failed, "failed": f"{failed['failed']}; tried alone: {answer['failed']}"}
        return answer


_OUTCOMES = {
    "grade": "answered",
    "invalid": "answered",
    "timeout": "answered",
    "crashed": "answered",
    "exhausts": "exhausts",
    "failed": "undecided",
}
"""The name of a trial's outcome in the metrics, by the key of its answer."""


async def _trial(pool: Pool, message: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a trial. Returns the answer, {"timeout": True}, {"crashed": signal}, {"exhausts": sentence} or {"failed":
    sentence}."""
    domain = message["domain"]
    links: list[Link] = []
    over = asyncio.Event()
    try:
        for _ in range(2):
            links.append(await pool.fresh())
            if complaint := await _asked_canaries(links[-1], domain, _WARM_UP_S):
                return {"failed": f"a fresh worker {complaint}"}
        suspect, witness = links
        watching = asyncio.get_running_loop().create_task(_watched(witness, domain, over))
        try:
            answer = await _turn(pool, suspect, frames.encode(message))
            if not answer:
                links.remove(suspect)
                answer = _death(await suspect.end())
            over.set()
            if "exhausts" in answer and (complaint := await watching):
                return {"failed": f"{answer['exhausts']}, but a worker beside it {complaint}"}
            return answer
        finally:
            watching.cancel()
            await asyncio.wait([watching])
    except (ZygoteError, OSError) as error:
        return {"failed": f"no fresh worker could be started: {error}"}
    finally:
        for link in links:
            await link.end()


async def _turn(pool: Pool, suspect: Link, data: bytes) -> dict[str, Any]:
    """Returns the worker's answer to the request, or what its silence means; {} if it has died."""
    limit_s, own_cpu_s = max(_WALL_S, pool.options.wall_s + _STALL_S), pool.options.cpu_s
    meter, began_s = StallMeter(suspect.worker.pid), time.monotonic()
    asking = asyncio.get_running_loop().create_task(suspect.ask(data, own_cpu_s or _JUDGE_CPU_S))
    try:
        while not (await asyncio.wait([asking], timeout=_SAMPLE_S))[0]:
            now_s = time.monotonic()
            suspect.check(now_s, float("inf"))
            if meter.sample() >= _STALL_S:
                return {"exhausts": f"its worker did nothing at all for {_STALL_S:g} s"}
            if now_s - began_s > limit_s:
                return {"failed": f"no answer within {limit_s:g} s"}
        answer = asking.result()
    except TimeoutError:
        if own_cpu_s is not None:
            return {"timeout": True}
        return {"exhausts": f"its judge computed for {_JUDGE_CPU_S:g} s"}
    except ValueError as error:
        return {"exhausts": f"its worker sent a malformed answer: {error}"}
    except (OSError, EOFError):
        return {}
    finally:
        asking.cancel()
    return {"failed": answer["retry"]} if "retry" in answer else answer


def _death(signal_number: int) -> dict[str, Any]:
    """Returns what it means that a worker was ended by a signal, or ended by itself (0)."""
    if signal_number in CRASH_SIGNALS:
        return {"crashed": signal_number}
    if signal_number in _FROM_OUTSIDE:
        return {"failed": f"its worker was killed from outside (signal {signal_number})"}
    return {"exhausts": f"its worker ended by itself (signal {signal_number})"}


async def _watched(witness: Link, domain: str, over: asyncio.Event) -> str:
    """Asks canaries until the trial is over and enough were asked. Returns what went wrong, empty if nothing did."""
    num_answers = 0
    while num_answers < _NUM_CANARIES or not over.is_set():
        if complaint := await _asked_canaries(witness, domain, _SLOW_S):
            return complaint
        num_answers += len(CANARIES[domain])
        await asyncio.sleep(_PAUSE_S)
    return ""


async def _asked_canaries(link: Link, domain: str, limit_s: float) -> str:
    """Asks a domain's canaries, each within limit_s. Returns what was wrong with the answers, empty if nothing was."""
    for canary in CANARIES[domain]:
        message = {"domain": domain, "response": canary.response, "in_thought": False, "task": canary.task}
        try:
            async with asyncio.timeout(limit_s):
                answer = await link.ask(frames.encode(message), None)
        except TimeoutError:
            return f"did not answer a canary within {limit_s:g} s"
        except (OSError, EOFError, ValueError):
            return "died of a canary"
        if answer.get("grade", {}).get("score") != canary.score:
            return "did not solve a canary"
    return ""
