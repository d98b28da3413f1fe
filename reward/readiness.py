"""Checks that the service can be trusted now: every domain keeps grading its canaries correctly."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from reward.canaries import Canary
from reward.graders.plugins import plugins
from reward.graders.registry import domains
from reward.protocol import PROTOCOL_VERSION, ScoreRequest, Status
from reward.service import Service

_PERIOD_S = 12.0
_VALID_S = 30.0


class Readiness:
    """Sends canaries through the same queues as other requests, and remembers when each domain last passed them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._solved: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._canaries: dict[str, tuple[Canary, ...]] = {}
        self._numbers = itertools.count()

    async def first_round(self) -> None:
        await asyncio.gather(*map(self._try, domains()))

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.first_round()

    def broken_plugin(self) -> str:
        """A sentence about the first plug-in that has failed its canaries; empty if none has."""
        failures = (
            f"{plugin}: {self._failures[name]}"
            for name, plugin in plugins().items()
            if name in self._failures
        )
        return next(failures, "")

    def report(self) -> dict[str, Any]:
        """The report of /readyz: ready if every domain that this machine can grade passed its canaries in the last 30
        s."""
        now = time.monotonic()
        level = self._service.level
        states: dict[str, dict[str, Any]] = {}
        for domain in domains():
            if self._service.pool(domain) is None:
                states[domain] = {"ready": False, "reason": "no sandbox on this machine: code is refused"}
                continue
            age_s = now - self._solved.get(domain, float("-inf"))
            states[domain] = {"ready": age_s <= _VALID_S, "age_s": round(age_s, 1) if age_s < 1e9 else None}
            if domain in self._failures:
                states[domain]["reason"] = self._failures[domain]
        ready = all(state["ready"] for name, state in states.items() if self._service.pool(name) is not None)
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
        if failure := await self._service.failed_import(domain):
            self._failures[domain] = failure
            return
        if domain not in self._canaries:
            self._canaries[domain] = await self._service.canaries(domain)
        for canary in self._canaries[domain]:
            request = ScoreRequest(
                request_id=f"canary-{next(self._numbers)}",
                domain=domain,
                response=canary.response,
                task=canary.task,
            )
            result = await self._service.score(request, urgent=True)
            if result.status is not Status.graded:  # busy, not broken: the last success stays and ages
                if result.verdict in ("plugin_failed", "invalid_task"):
                    self._failures[domain] = f"a canary was not graded: {result.details['reason']}"
                return
            if result.score != canary.score:
                self._failures[domain] = f"a canary got {result.score} ({result.verdict}), not {canary.score}"
                self._solved.pop(domain, None)
                return
        if await self._service.ends_a_hang(domain):
            self._failures.pop(domain, None)
            self._solved[domain] = time.monotonic()
