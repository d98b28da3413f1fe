"""Sends small requests to a worker in groups.

Grading a puzzle or a rule takes tens of microseconds; sending it to a worker on its own and waking both sides costs
several times as much. So requests that arrive together, such as those of one HTTP batch, go to a worker together:

    {"group": [message, ...]} -> a Reply with the answers to the first messages, in order; the others are sent again

Only the grader's own answers are taken from a group. If anything else happens to it (it computes for too long, its
worker dies, gives no answer or could not import a module, its latest deadline passes), each of its requests is sent
again on its own. So only what a response does alone with a worker can count against it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reward import frames
from reward.answers import Answer, Reply, Retry
from reward.pool import Pool

_MAX_MEMBERS = 16
_MAX_BYTES = 1 << 20
_CPU_S = 1.0
"""CPU seconds after which a group's worker is killed. A worker returns what it has after 0.1 s (reward.worker), so one
that runs into this limit is busy with a single expensive request."""


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """One request. `body`: its message as JSON. `answer`: None if it has to be sent on its own."""

    body: bytes
    deadline: float | None
    answer: asyncio.Future[Answer | None]

    def resolve(self, answer: Answer | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Groups:
    """Groups the messages for one pool, where each takes microseconds. Used in the event loop only, as the pool is."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._gathered: list[_Member] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, message: Mapping[str, Any], deadline: float | None = None) -> Answer:
        """Grades one message and returns what Pool.run returns."""
        loop = asyncio.get_running_loop()
        try:
            member = _Member(frames.body(message), deadline, loop.create_future())
        except ValueError:
            return await self.pool.run(message, deadline)  # reports what is wrong with it
        if not self._gathered:
            loop.call_soon(self._send_gathered)  # after everything that is ready in this turn of the loop
        self._gathered.append(member)
        answer = await member.answer
        return await self.pool.run(message, deadline) if answer is None else answer

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        while gathered:
            sizes = itertools.accumulate(len(member.body) for member in gathered[:_MAX_MEMBERS])
            num_members = max(1, sum(size <= _MAX_BYTES for size in sizes))
            task = asyncio.get_running_loop().create_task(self._send_group(gathered[:num_members]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            gathered = gathered[num_members:]

    async def _send_group(self, group: list[_Member]) -> None:
        """Sends a group and resolves every member of it, whatever happens."""
        now = time.monotonic()
        left = [member for member in group if member.deadline is None or member.deadline > now]
        try:
            while len(left) > 1:
                data = frames.framed(b'{"group": [' + b", ".join(member.body for member in left) + b"]}")
                # Waits for a worker until the latest deadline: a member with little time costs the others nothing.
                latest = max(math.inf if member.deadline is None else member.deadline for member in left)
                deadline = None if latest == math.inf else latest
                reply = await self.pool.ask(data, deadline, _CPU_S, num_requests=len(left), num_attempts=1)
                if not isinstance(reply, Reply) or not 0 < len(reply.answers) <= len(left):
                    break
                for member, answer in zip(left, reply.answers, strict=False):
                    member.resolve(None if isinstance(answer, Retry) else answer)
                left = left[len(reply.answers) :]
        finally:
            for member in group:  # members that have answers keep them
                member.resolve(None)
