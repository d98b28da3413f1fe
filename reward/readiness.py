"""Checks that the service can be trusted now: every domain keeps grading its known answers correctly."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import Any

from reward.answers import Failed
from reward.graders.plugins import plugins
from reward.graders.registry import domains
from reward.known_answers import KnownAnswer
from reward.protocol import PROTOCOL_VERSION, GradeStatus, ScoreRequest
from reward.service import Service

log = logging.getLogger("reward")

_PERIOD_S = 12.0
_VALID_S = 30.0


class Readiness:
    """Has known answers graded through the same queues as other requests, and remembers when each domain passed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._solved: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._lacking: set[str] = set()
        """Domains whose workers could not import a module."""
        self._known_answers: dict[str, tuple[KnownAnswer, ...]] = {}
        self._numbers = itertools.count()

    async def first_round(self) -> None:
        await asyncio.gather(*map(self._try, domains()))

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.first_round()

    def defect(self) -> str:
        """Returns a sentence about what no waiting mends: a plug-in fails its known answers, or workers lack a module.
        Empty if nothing is wrong."""
        for name, reason in self._failures.items():
            if name in plugins():
                return f"{plugins()[name]}: {reason}"
            if name in self._lacking:
                return f"{name} cannot be graded: {reason}"
        return ""

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
        if self._service.pool(domain) is None:
            return
        if failed := await self._service.failed_import(domain):
            if isinstance(failed, Failed):
                if domain not in self._lacking:
                    log.error("%s is not graded: %s", domain, failed.reason)
                self._lacking.add(domain)
            self._failures[domain] = failed.reason
            return
        self._lacking.discard(domain)
        if domain not in self._known_answers:
            self._known_answers[domain] = await self._service.known_answers(domain)
        for known in self._known_answers[domain]:
            request = ScoreRequest(
                request_id=f"known-answer-{next(self._numbers)}",
                domain=domain,
                response=known.response,
                task=known.task,
            )
            result = await self._service.score(request, urgent=True)
            if result.status is not GradeStatus.graded:  # busy, not broken: the last success stays and ages
                if result.verdict in ("plugin_failed", "invalid_task"):
                    self._failures[domain] = f"a known answer was not graded: {result.details['reason']}"
                return
            if result.score != known.score:
                self._failures[domain] = (
                    f"a known answer got {result.score} ({result.verdict}), not {known.score}"
                )
                self._solved.pop(domain, None)
                return
        if await self._service.ends_a_hang(domain):
            self._failures.pop(domain, None)
            self._solved[domain] = time.monotonic()
