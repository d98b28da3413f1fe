"""Verifies rows with the real reward service: the gold answer scores 1, or at least the task can be graded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from nemo_prorl.data.building.source import Candidate, Ledger, Submit
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult

IN_FLIGHT = 256
"""Requests in flight."""


class GradingFailed(RuntimeError):
    """The reward service failed to grade; no row is dropped for that."""


def verify(
    candidates: Iterable[Candidate], submit: Submit, versions: set[str], ledger: Ledger
) -> Iterator[Candidate]:
    """Yields the candidates that pass, in their order, and rejects the others; adds the graders' versions to
    `versions`. Raises GradingFailed."""
    waiting: deque[Candidate] = deque()

    def requests() -> Iterator[ScoreRequest]:
        """Yields requests with the gold answer; without one, with an empty response: whatever its score, it shows that
        the service accepts the task."""
        for candidate in candidates:
            waiting.append(candidate)
            yield candidate.request(candidate.problem.gold or "")

    for result in graded(requests(), submit):
        versions.add(result.version)
        candidate = waiting.popleft()
        if result.status is GradeStatus.invalid_request:
            ledger.reject(candidate, "task_invalid", str(result.details.get("reason", result.verdict)))
        elif candidate.problem.gold is None or result.score == 1.0:
            yield candidate
        else:
            ledger.reject(candidate, f"gold_{result.verdict}", str(dict(result.details)))


def graded(requests: Iterable[ScoreRequest], submit: Submit) -> Iterator[ScoreResult]:
    """Yields results in the order of the requests, each graded or invalid. Raises GradingFailed."""
    pending: deque[Future[ScoreResult]] = deque()
    for request in requests:
        pending.append(submit(request))
        if len(pending) >= IN_FLIGHT:
            yield _settled(pending.popleft())
    while pending:
        yield _settled(pending.popleft())


def _settled(future: Future[ScoreResult]) -> ScoreResult:
    result = future.result()
    if result.status in (GradeStatus.graded, GradeStatus.invalid_request):
        return result
    raise GradingFailed(
        f"the reward service did not grade {result.request_id} ({result.status.value}: "
        f"{result.details.get('reason', result.verdict)}); nothing was written. Fix the service and start again."
    )
