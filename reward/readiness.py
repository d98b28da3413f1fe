"""Checks that the service can be trusted now: every domain keeps grading its known answers correctly."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from reward.answers import Failed, Invalid, NoReply, PluginRaised, TimedOut
from reward.graders.grade import Grade
from reward.graders.plugins import plugins
from reward.graders.registry import domains
from reward.known_answers import LATE_MODULES
from reward.protocol import PROTOCOL_VERSION
from reward.service import Service

log = logging.getLogger("reward")

_PERIOD_S = 12.0
_VALID_S = 30.0
_KNOWN_ANSWERS_CPU_S, _HANG_CPU_S = 30.0, 0.1


class Readiness:
    """Has known answers graded through the same queues as other requests, and remembers when each domain passed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._solved: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        """Why a domain did not pass the last time."""
        self._defects: dict[str, str] = {}
        """Sentences about domains that will not pass later either."""

    async def first_round(self) -> None:
        await asyncio.gather(*map(self._try, domains()))

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.first_round()

    def defect(self) -> str:
        """Returns a sentence about what no waiting mends: a plug-in fails its known answers, or workers lack a module.
        Empty if nothing is wrong."""
        return next(iter(self._defects.values()), "")

    def report(self) -> dict[str, Any]:
        """Returns the report of /readyz: ready if every domain that this machine can grade passed in the last 30 s."""
        now = time.monotonic()
        level = self._service.level
        states: dict[str, dict[str, Any]] = {}
        for domain in domains():
            if self._service.pool(domain) is None:
                reason = "no sandbox on this machine: code is refused"
                states[domain] = {"ready": False, "is_refused": True, "reason": reason}
                continue
            age_s = now - self._solved.get(domain, float("-inf"))
            states[domain] = {"ready": age_s <= _VALID_S, "age_s": round(age_s, 1) if age_s < 1e9 else None}
            if domain in self._failures:
                states[domain]["reason"] = self._failures[domain]
        ready = all(state["ready"] or "is_refused" in state for state in states.values())
        return {
            "ready": ready,
            "protocol": PROTOCOL_VERSION,
            "sandbox": "none" if level is None else level.value,
            "version": self._service.version,
            "workers": self._service.num_workers,
            "domains": states,
        }

    async def _try(self, domain: str) -> None:
        pool = self._service.pool(domain)
        if pool is None:
            return
        answer = await pool.run({"known_answers": domain}, cpu_s=_KNOWN_ANSWERS_CPU_S, urgent=True)
        is_solved = isinstance(answer, Grade) and answer.score == 1.0
        if is_solved and domain != "code":  # one of the known answers of code hangs
            answer = await pool.run({"hang": LATE_MODULES}, cpu_s=_HANG_CPU_S, urgent=True)
            is_solved = isinstance(answer, TimedOut)
        self._defects.pop(domain, None)
        if is_solved:
            self._failures.pop(domain, None)
            self._solved[domain] = time.monotonic()
            return
        match answer:
            case Grade(details=details, verdict=verdict):
                reason = str(details.get("reason", verdict))
                self._solved.pop(domain, None)  # it is wrong, not busy
            case PluginRaised(reason) | Invalid(reason) | Failed(reason) | NoReply(reason):
                pass
            case _:
                reason = f"known answers were not graded: {answer}"
        if self._failures.get(domain) != reason:
            log.error("%s is not ready: %s\n%s", domain, reason, getattr(answer, "traceback", ""))
        self._failures[domain] = reason
        if domain in plugins() and not isinstance(answer, NoReply):
            self._defects[domain] = f"{plugins()[domain]}: {reason}"
        elif isinstance(answer, Failed) and domain != "code":
            self._defects[domain] = f"{domain} cannot be graded: {reason}"
