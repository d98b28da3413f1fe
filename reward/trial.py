"""A trial: whether it is the response's own doing that no worker has a verdict on it.

A worker that dies, or gives no answer within its wall time, says nothing about the response: the machine may be
overloaded. But if that could never cost a response anything, a policy would learn to write responses that exhaust
their graders, because the trainer drops what has no verdict. So a request that has failed in the pool is tried once
more, by a fresh worker of its own, one request at a time, while a second fresh worker, the witness, is asked canaries
over and over. What the fresh worker answers counts. If it has no answer either, the response gets 0 only where a busy
machine cannot be the reason:

- the worker has died of something that did not come from outside. SIGKILL, which the kernel sends when memory runs
  out, SIGTERM, SIGINT and SIGHUP prove nothing against the response.
- it has sent what is no answer, or too long a one.
- it and all processes below it have slept for 10 s without a break. A process that waits for a processor or for the
  disk, or that was stopped, does not sleep.
- the judge of a program has itself computed for 60 s, where it usually takes milliseconds.

And in all these cases only if the witness has given nothing but right answers, none of them later than after 1 s, from
before the request was sent until after it had failed. The two workers need not have got the same amount of processor
time for this, because no rule counts time in which a worker was kept from computing.
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
"""Requests that may wait for a trial: a policy that exhausts workers must not exhaust the service's memory too. A
request that finds no place stays without a verdict."""
_REMEMBERED = 4096
"""Responses that a trial has found to exhaust their grader, of which the service keeps a digest of 32 bytes."""
_STALL_S = 10.0
"""A program is stopped after 5 s of sleep (reward/sandbox/judge.py), and the graders never sleep."""
_WALL_S = 60.0
"""A worker's turn in a trial, or the pool's own limit if that is longer. Long, so that a worker reaches its limit of
CPU time, which is a verdict, even where it gets a tenth of a processor."""
_JUDGE_CPU_S = 60.0
"""Of the judge alone, without the program that it judges. The other workers have their pool's limit."""
_SAMPLE_S = 0.25
_PAUSE_S = 0.2
"""Between two canaries: the witness must not be a load itself."""
_SLOW_S = 1.0
"""Canaries take milliseconds, those of the code domain tens of them."""
_WARM_UP_S = 30.0
"""For the first canaries of a fresh worker: a judge has to start its zygote."""
_NUM_CANARIES = 8
"""The fewest that a witness must answer, about 2 s of its time, however soon the other worker has died."""
_FROM_OUTSIDE = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})


class Trials:
    """All trials of a service, one at a time. All methods belong to the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = asyncio.Lock()
        self._num_places = _PLACES
        self._exhausting: OrderedDict[bytes, str] = OrderedDict()
        """Digests of messages that exhaust their grader, with the reasons; the one used last is at the end."""
        self._running: asyncio.Task[dict[str, Any]] | None = None
        self._closed = False

    async def decide(
        self, pool: Pool, message: Mapping[str, Any], deadline: float | None, failed: dict[str, Any]
    ) -> dict[str, Any]:
        """What a fresh worker answers, as `Pool.run` gives it, or {"exhausts": sentence} if the response is to blame,
        or else `failed`, the pool's own answer. No trial begins after the deadline (a time.monotonic value); one that
        has begun goes on, as a worker's turn does. A message that has been found to exhaust its grader is not tried
        again."""
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
            if answer := self._remembered(pool, digest):  # of a trial that ended while this request waited
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
        """The verdict on a message that has had its trial; {} if there is none."""
        if digest not in self._exhausting:
            return {}
        self._exhausting.move_to_end(digest)
        self._metrics.trials.add(pool.name, "remembered")
        return {"exhausts": self._exhausting[digest]}

    async def close(self) -> None:
        """Ends a trial in progress; its request stays without a verdict, and so do those that wait."""
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
"""The name that a trial's outcome has in the metrics, by the key of its answer."""


async def _trial(pool: Pool, message: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's answer, {"timeout": True}, {"crashed": signal}, {"exhausts": sentence} or {"failed": sentence}."""
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
        return {"failed": f"no fresh worker could be had: {error}"}
    finally:
        for link in links:
            await link.end()


async def _turn(pool: Pool, suspect: Link, data: bytes) -> dict[str, Any]:
    """The worker's answer to the request, or what its silence means; {} if it has died."""
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
        return {"exhausts": f"its worker sent what is no answer: {error}"}
    except (OSError, EOFError):
        return {}
    finally:
        asking.cancel()
    return {"failed": answer["retry"]} if "retry" in answer else answer


def _death(signal_number: int) -> dict[str, Any]:
    """What it means that a worker has ended by a signal, or by itself (0)."""
    if signal_number in CRASH_SIGNALS:
        return {"crashed": signal_number}
    if signal_number in _FROM_OUTSIDE:
        return {"failed": f"its worker was killed from outside (signal {signal_number})"}
    return {"exhausts": f"its worker ended by itself (signal {signal_number})"}


async def _watched(witness: Link, domain: str, over: asyncio.Event) -> str:
    """Asks canaries until the trial is over, and until there were enough; what was wrong, or nothing."""
    num_answers = 0
    while num_answers < _NUM_CANARIES or not over.is_set():
        if complaint := await _asked_canaries(witness, domain, _SLOW_S):
            return complaint
        num_answers += len(CANARIES[domain])
        await asyncio.sleep(_PAUSE_S)
    return ""


async def _asked_canaries(link: Link, domain: str, limit_s: float) -> str:
    """What was wrong with a worker's answers to its domain's canaries, each within a limit of time; or nothing."""
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
