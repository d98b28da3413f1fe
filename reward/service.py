"""The pools of workers, each behind a bounded queue, and the function that grades. Trusted code: it passes text on
without parsing it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from reward.canaries import CANARIES, DOUBLE, HANGING_PROGRAM, Canary
from reward.graders.plugins import plugins
from reward.graders.registry import PLUGIN_POOL, domains
from reward.groups import Groups
from reward.metrics import Metrics
from reward.pool import ForkedWorker, Pool, PoolOptions, Worker
from reward.protocol import MAX_RESPONSE_BYTES, ScoreRequest, ScoreResult, Status, is_too_long
from reward.sandbox.cell import Level
from reward.sandbox.judge import MAX_WALL_S
from reward.sandbox.launch import Judge, Zygote, ZygoteError
from reward.sandbox.programs import Program, ProgramRun
from reward.trial import Trials

log = logging.getLogger("reward")
_MAX_TOLD = 100


class SharedZygote:
    """A fork server (zygote) for graders, started on first use and again after it died."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._zygote: Zygote | None = None

    def worker(self) -> ForkedWorker:
        """Forks a worker. Raises ZygoteError or OSError. Not thread-safe; see Service._start_grader."""
        if self._zygote is not None:
            try:
                return ForkedWorker(self._zygote)
            except ZygoteError:
                self.close()
        self._zygote = Zygote("graders", self._level)
        return ForkedWorker(self._zygote)

    @property
    def pid(self) -> int | None:
        return None if self._zygote is None else self._zygote.pid

    def close(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


class NotRun(Exception):
    """A program was not run, through no fault of its own, and can be tried again; the message is one sentence."""

    def __init__(self, sentence: str, *, is_busy: bool = False) -> None:
        super().__init__(sentence)
        self.is_busy = is_busy


class Service:
    """All pools, and the function that grades. Used by the HTTP server and by the offline commands."""

    def __init__(self, level: Level | None, num_workers: int, version: str, queue: int = 4096) -> None:
        """`level` None: this machine has no sandbox, so code is refused and the rest runs with resource limits only."""
        self.level, self.version, self.num_workers, self.metrics = level, version, num_workers, Metrics()
        self._zygote = SharedZygote(level or Level.none)
        self._zygote_lock = threading.Lock()
        self._told: set[str] = set()
        """Failures of plug-ins whose tracebacks have already been logged."""
        size, small = num_workers, max(1, num_workers // 2)
        self.pools = {
            "math": Pool(
                "math",
                PoolOptions(workers=size, cpu_s=5.0, wall_s=10.0, queue=queue),
                self._start_grader,
                self.metrics,
            ),
            "rules": Pool(
                "rules",
                PoolOptions(workers=small, cpu_s=5.0, wall_s=10.0, queue=queue),
                self._start_grader,
                self.metrics,
            ),
        }
        if level is not None:
            options = PoolOptions(workers=size, cpu_s=None, wall_s=MAX_WALL_S + 30.0, queue=queue)
            self.pools["code"] = Pool("code", options, lambda: Judge(level), self.metrics)
        if plugins():
            options = PoolOptions(workers=size, cpu_s=5.0, wall_s=10.0, queue=queue)
            self.pools[PLUGIN_POOL] = Pool(PLUGIN_POOL, options, self._start_grader, self.metrics)
        self._trials = Trials(self.metrics)
        self._groups = Groups(self.pools["rules"])

    def _start_grader(self) -> Worker:
        with self._zygote_lock:
            return self._zygote.worker()

    async def open(self) -> None:
        await asyncio.gather(*(pool.open() for pool in self.pools.values()))

    async def close(self) -> None:
        await self._trials.close()
        await asyncio.gather(*(pool.close() for pool in self.pools.values()))
        await asyncio.to_thread(self._zygote.close)

    def pool(self, domain: str) -> Pool | None:
        return self.pools.get(domains()[domain].pool)

    async def score(self, request: ScoreRequest, urgent: bool = False) -> ScoreResult:
        """Grades a request. Never raises for anything in it: the result's status says what happened."""
        started = time.monotonic()
        try:
            result = await self._score(request, started, urgent)
        except Exception as error:  # our fault, which must not cost the other items of a batch their results
            log.exception("grading the request %r failed", request.request_id)
            reason = f"the service has a defect: {type(error).__name__}"
            result = self.result(request, Status.infra_error, None, "internal_error", {"reason": reason})
        self.metrics.seconds.observe(request.domain, time.monotonic() - started)
        self.metrics.verdicts.add(request.domain, result.status, result.verdict)
        return result

    async def _score(self, request: ScoreRequest, started: float, urgent: bool) -> ScoreResult:
        pool = self.pool(request.domain)
        if pool is None:
            reason = "code is not graded here: this machine has no sandbox, see the server's log"
            return self.result(request, Status.infra_error, None, "no_sandbox", {"reason": reason})
        if is_too_long(request.response):
            details = {"limit_bytes": MAX_RESPONSE_BYTES}
            return self.result(request, Status.graded, 0.0, "too_long", details)
        if pool.is_full and not urgent:
            return self.result(
                request, Status.overloaded, None, "queue_full", {"reason": f"{pool.name} queue is full"}
            )
        deadline = None if request.deadline_ms is None else started + request.deadline_ms / 1000
        message = {
            "domain": request.domain,
            "response": request.response,
            "in_thought": request.in_thought,
            "task": dict(request.task),
        }
        if pool is self._groups.pool and not urgent:
            answer = await self._groups.run(message, deadline)
        else:
            answer = await pool.run(message, deadline, urgent=urgent)
        if answer.get("no_answer") and not urgent and request.domain not in plugins():  # trials need canaries
            answer = await self._trials.decide(pool, message, deadline, answer)
        if "grade" in answer:
            grade = answer["grade"]
            return self.result(request, Status.graded, grade["score"], grade["verdict"], grade["details"])
        if "invalid" in answer:
            return self.result(
                request, Status.invalid_request, None, "invalid_task", {"reason": answer["invalid"]}
            )
        if "plugin_failed" in answer:
            reason = answer["plugin_failed"]
            if reason not in self._told and len(self._told) < _MAX_TOLD:
                self._told.add(reason)
                log.warning("%s\n%s", reason, answer["traceback"])
            return self.result(request, Status.infra_error, None, "plugin_failed", {"reason": reason})
        if "timeout" in answer:
            return self.result(request, Status.graded, 0.0, "timeout", {"limit_s": pool.options.cpu_s})
        if "crashed" in answer:
            return self.result(request, Status.graded, 0.0, "crashed", {"signal": answer["crashed"]})
        if "exhausts" in answer:
            details = {"reason": answer["exhausts"]}
            return self.result(request, Status.graded, 0.0, "exhausts_grader", details)
        if "late" in answer:
            reason = "the deadline passed before a worker was free"
            return self.result(request, Status.overloaded, None, "deadline_passed", {"reason": reason})
        return self.result(request, Status.infra_error, None, "worker_failed", {"reason": answer["failed"]})

    async def run_program(self, program: Program) -> ProgramRun:
        """Runs a program in the sandbox, in the code domain's queue and pool. Raises NotRun."""
        pool, started = self.pool("code"), time.monotonic()
        if pool is None:
            raise NotRun("programs are not run here: this machine has no sandbox, see the server's log")
        if pool.is_full:
            raise NotRun(f"the {pool.name} queue is full", is_busy=True)
        answer = await pool.run({"program": asdict(program)})
        self.metrics.seconds.observe("program", time.monotonic() - started)
        if "ran" not in answer:
            self.metrics.verdicts.add("program", Status.infra_error, "worker_failed")
            raise NotRun(str(answer.get("failed", "the worker failed")))
        ran = ProgramRun(**answer["ran"])
        self.metrics.verdicts.add("program", Status.graded, ran.end)
        return ran

    async def canaries(self, domain: str) -> tuple[Canary, ...]:
        """Returns responses with known scores for a domain. A plug-in's come from a worker, because only workers import
        it; a plug-in may have none."""
        if domain not in plugins():
            return CANARIES.get(domain, ())
        pool = self.pool(domain)
        assert pool is not None
        answer = await pool.run({"canaries": domain}, urgent=True)
        return tuple(Canary(**fields) for fields in answer.get("canaries", ()))

    async def ends_a_hang(self, domain: str) -> bool:
        """Gives a worker of the domain an endless task, and returns whether the service ends it in time."""
        pool = self.pool(domain)
        assert pool is not None
        if domain == "code":
            message = {"response": HANGING_PROGRAM, "task": {**DOUBLE, "cpu_s": 0.2}}
            answer = await pool.run(message, urgent=True)
            return answer.get("grade", {}).get("verdict") == "timeout"
        return "timeout" in await pool.run({"spin": True}, cpu_s=0.1, urgent=True)

    def result(
        self,
        request: ScoreRequest,
        status: Status,
        score: float | None,
        verdict: str,
        details: Mapping[str, Any],
    ) -> ScoreResult:
        return ScoreResult(
            request_id=request.request_id,
            status=status,
            score=score,
            verdict=verdict,
            details=details,
            version=self.version,
        )


def default_workers() -> int:
    """The number of cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))
