"""Small requests share the way to a worker and back.

A puzzle or a rule is graded in tens of microseconds; to send it to a worker by itself and to wake both sides costs
several times as much. So the requests that come in together, those of one HTTP batch, go to a worker together:

    {"group": [message, ...]} -> {"answers": [answer, ...], ...}      in order; those without an answer yet go again

Nothing but the grader's own answer comes of a group. If anything else happens to it (it computes for too long, its
worker dies or gives no answer, its latest deadline passes), each of its requests is sent again by itself. So only what
a response does when it is alone with a worker can count against it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reward import frames
from reward.pool import Pool

_MAX_MEMBERS = 16
_MAX_BYTES = 1 << 20
_CPU_S = 1.0
"""CPU seconds after which a group's worker is killed. A worker that takes longer than 0.1 s for a group sends what it
has (reward.worker), so this one works on a single request that is dear."""


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """One request. `body`: its message as JSON. `answer`: None if it is to be sent by itself."""

    body: bytes
    deadline: float | None
    answer: asyncio.Future[dict[str, Any] | None]

    def resolve(self, answer: dict[str, Any] | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Groups:
    """In front of one pool, for messages that take microseconds. Belongs to the event loop, as the pool does."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._gathered: list[_Member] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, message: Mapping[str, Any], deadline: float | None = None) -> dict[str, Any]:
        """As Pool.run."""
        loop = asyncio.get_running_loop()
        try:
            member = _Member(frames.body(message), deadline, loop.create_future())
        except ValueError:
            return await self.pool.run(message, deadline)  # which says what is wrong with it
        if not self._gathered:
            loop.call_soon(self._depart)  # after all that are ready in this turn of the loop
        self._gathered.append(member)
        answer = await member.answer
        return await self.pool.run(message, deadline) if answer is None else answer

    def _depart(self) -> None:
        gathered, self._gathered = self._gathered, []
        while gathered:
            sizes = itertools.accumulate(len(member.body) for member in gathered[:_MAX_MEMBERS])
            num_members = max(1, sum(size <= _MAX_BYTES for size in sizes))
            task = asyncio.get_running_loop().create_task(self._travel(gathered[:num_members]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            gathered = gathered[num_members:]

    async def _travel(self, group: list[_Member]) -> None:
        """Resolves every member of the group, whatever happens."""
        now = time.monotonic()
        left = [member for member in group if member.deadline is None or member.deadline > now]
        try:
            while len(left) > 1 and (answers := await self._answers(left)):
                for member, answer in zip(left, answers, strict=False):
                    member.resolve(answer)
                left = left[len(answers) :]
        finally:
            for member in group:  # those that have their answers keep them
                member.resolve(None)

    async def _answers(self, group: Sequence[_Member]) -> list[dict[str, Any]]:
        """Those of the first members, as many as the worker got to; none if the group failed. The group waits for a
        worker until the latest of its deadlines, so that a member with little time costs the others nothing."""
        data = frames.framed(b'{"group": [' + b", ".join(member.body for member in group) + b"]}")
        latest = max(math.inf if member.deadline is None else member.deadline for member in group)
        deadline = None if latest == math.inf else latest
        reply = await self.pool.ask(data, deadline, _CPU_S, num_requests=len(group), num_attempts=1)
        answers = reply.get("answers", [])
        return answers if isinstance(answers, list) and len(answers) <= len(group) else []
