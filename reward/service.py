"""The pools of workers, each behind a bounded queue, and the function that grades. This code is trusted: it passes text
on without parsing it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from reward import answers
from reward.graders.grade import Grade
from reward.graders.plugins import plugins
from reward.graders.registry import PLUGIN_POOL, domains
from reward.metrics import Metrics
from reward.pool import ForkedWorker, Pool, PoolOptions, Worker
from reward.protocol import MAX_RESPONSE_BYTES, GradeStatus, ScoreRequest, ScoreResult
from reward.sandbox.cell import Level
from reward.sandbox.execution import MAX_WALL_S
from reward.sandbox.launch import Judge, Zygote, ZygoteError

log = logging.getLogger("reward")
_MAX_TOLD = 100
_CPU_S, _WALL_S = 5.0, 30.0
"""Limits of a grader's worker for one response. The CPU time decides: a worker reaches it within the wall time even
with a sixth of a processor."""
_GROUP = 16
"""Puzzles or instructions that a worker gets in one message, at most."""
_QUEUE = 4096
"""Requests that may wait for a pool; further ones are told to come back."""


class Service:
    """All pools, and the function that grades. Used by the HTTP server and by the offline commands."""

    def __init__(
        self, level: Level | None, num_workers: int, version: str, only: Collection[str] | None = None
    ) -> None:
        """Without a `level` this machine has no sandbox: code is refused, and other graders run with resource limits
        only. `only`: the domains that will be asked for (default: all), because graders take seconds to load."""
        self.level, self.version, self.num_workers, self.metrics = level, version, num_workers, Metrics()
        self._domains = domains() if only is None else only
        self._zygote: Zygote | None = None
        """The fork server of all graders, started on first use, and again on the next use after it has died."""
        self._zygote_lock = threading.Lock()
        self._told: set[str] = set()
        """Failures of plug-ins whose tracebacks have already been logged."""
        sizes = {"math": num_workers, "rules": max(1, num_workers // 2)}
        if plugins():
            sizes[PLUGIN_POOL] = num_workers
        self.pools: dict[str, Pool] = {}
        for name, size in sizes.items():
            group = _GROUP if name == "rules" else 1
            options = PoolOptions(workers=size, cpu_s=_CPU_S, wall_s=_WALL_S, queue=_QUEUE, group=group)
            self.pools[name] = Pool(name, options, self._start_grader, self.metrics)
        if level is not None:
            options = PoolOptions(workers=num_workers, cpu_s=None, wall_s=MAX_WALL_S + 30.0, queue=_QUEUE)
            self.pools["code"] = Pool("code", options, lambda: Judge(level), self.metrics)

    def _start_grader(self) -> Worker:
        """Raises ZygoteError or OSError."""
        with self._zygote_lock:
            if self._zygote is not None:
                try:
                    return ForkedWorker(self._zygote)
                except ZygoteError:
                    self._zygote.close()
            self._zygote = Zygote("graders", self.level or Level.none, self._domains)
            return ForkedWorker(self._zygote)

    async def open(self) -> None:
        await asyncio.gather(*(pool.open() for pool in self.pools.values()))

    async def close(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self.pools.values()))
        if self._zygote is not None:
            await asyncio.to_thread(self._zygote.close)

    def pool(self, domain: str) -> Pool | None:
        return self.pools.get(domains()[domain].pool)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Grades a request. Never raises, whatever the request contains: the result's status says what happened."""
        started = time.monotonic()
        try:
            result = await self._score(request, started)
        except Exception as error:  # our fault, which must not cost the other items of a batch their results
            log.exception("grading the request %r failed", request.request_id)
            reason = f"the service has a defect: {type(error).__name__}"
            result = self.result(
                request.request_id, GradeStatus.infra_error, "internal_error", {"reason": reason}
            )
        self.metrics.seconds.add(request.domain, amount=time.monotonic() - started)
        self.metrics.verdicts.add(request.domain, result.status, result.verdict)
        return result

    async def _score(self, request: ScoreRequest, started: float) -> ScoreResult:
        pool = self.pool(request.domain)
        if pool is None:
            reason = "code is not graded here: this machine has no sandbox, see the server's log"
            return self.result(request.request_id, GradeStatus.infra_error, "no_sandbox", {"reason": reason})
        if len(request.response.encode("utf-8", "replace")) > MAX_RESPONSE_BYTES:
            limit = {"limit_bytes": MAX_RESPONSE_BYTES}
            return self.result(request.request_id, GradeStatus.graded, "too_long", limit, 0.0)
        if pool.depth >= pool.options.queue:
            full = {"reason": f"{pool.name} queue is full"}
            return self.result(request.request_id, GradeStatus.overloaded, "queue_full", full)
        deadline = None if request.deadline_ms is None else started + request.deadline_ms / 1000
        message = {
            "domain": request.domain,
            "response": request.response,
            "in_thought": request.in_thought,
            "task": dict(request.task),
        }
        status, verdict, details, score = self._outcome(await pool.run(message, deadline), pool)
        return self.result(request.request_id, status, verdict, details, score)

    def _outcome(
        self, answer: answers.Answer, pool: Pool
    ) -> tuple[GradeStatus, str, Mapping[str, Any], float | None]:
        match answer:
            case Grade(score=score, verdict=verdict, details=details):
                return GradeStatus.graded, verdict, details, score
            case answers.TimedOut():
                return GradeStatus.graded, "timeout", {"limit_s": pool.options.cpu_s}, 0.0
            case answers.Crashed(signal):
                return GradeStatus.graded, "crashed", {"signal": signal}, 0.0
            case answers.Invalid(reason):
                return GradeStatus.invalid_request, "invalid_task", {"reason": reason}, None
            case answers.Late():
                reason = "the deadline passed before a worker was free"
                return GradeStatus.overloaded, "deadline_passed", {"reason": reason}, None
            case answers.PluginRaised(reason, traceback):
                if reason not in self._told and len(self._told) < _MAX_TOLD:
                    self._told.add(reason)
                    log.warning("%s\n%s", reason, traceback)
                return GradeStatus.infra_error, "plugin_failed", {"reason": reason}, None
            case answers.Failed(reason) | answers.NoReply(reason):
                return GradeStatus.infra_error, "worker_failed", {"reason": reason}, None
        raise TypeError(f"a request to grade was answered with {type(answer).__name__}")

    def result(
        self,
        request_id: str,
        status: GradeStatus,
        verdict: str,
        details: Mapping[str, Any],
        score: float | None = None,
    ) -> ScoreResult:
        return ScoreResult(
            request_id=request_id,
            status=status,
            score=score,
            verdict=verdict,
            details=details,
            version=self.version,
        )
