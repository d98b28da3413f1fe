"""Rollouts in, verdicts out: hands each rollout to the graders the moment it ends, and keeps the clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, Future, wait
from dataclasses import replace
from functools import partial

from nemo_prorl.algorithm.shaping import Shaped
from nemo_prorl.config import ConfigError
from nemo_prorl.engines.interface import Grader
from nemo_prorl.training.timing import union_s
from nemo_prorl.types import PARTS, Prompt, Rollout, RolloutGroup, RolloutOutline, ScoredRollout
from reward.protocol import ScoreRequest, ScoreResult, Status

_REASON = "reason"
"""The entry of a verdict's details that says why there is no score."""
WAITING_LINE_S = 30.0
"""How often somebody who watches the run is told that it stands still because no verdict comes."""


class RewardServiceFailing(RuntimeError):
    """The reward service or a reward function failed on more rollouts than the run bears (reward.max_failed_share)."""


def was_graded(verdict: ScoreResult) -> bool:
    """False when the grader, not the answer, is to blame for a missing score."""
    return verdict.status is Status.graded and verdict.score is not None


def graded_group(
    prompt: Prompt,
    rollouts: Sequence[RolloutOutline],
    verdicts: Sequence[ScoreResult],
    shape: Callable[[RolloutOutline, float], Shaped],
) -> RolloutGroup:
    """The group without the rollouts that a grader failed on: a failure is nobody's reward of 0.

    `verdicts` are in the order of `rollouts`; `shape` says what a rollout and its score are worth.
    """
    members = tuple(
        ScoredRollout(rollout=rollout, verdict=verdict, **shape(rollout, verdict.score)._asdict())
        for rollout, verdict in zip(rollouts, verdicts, strict=True)
        if was_graded(verdict) and verdict.score is not None
    )
    return RolloutGroup(prompt=prompt, members=members, num_failed=len(rollouts) - len(members))


def for_all_ranks(verdict: ScoreResult) -> ScoreResult:
    """Returns the verdict without what only the rank that asked for it looks at."""
    details = {name: verdict.details[name] for name in (PARTS, _REASON) if name in verdict.details}
    return replace(verdict, request_id="", details=details)


def check_failures(verdicts: Sequence[ScoreResult], max_failed_share: float) -> None:
    """Raises RewardServiceFailing, with the most frequent reasons, when too many verdicts are missing, and ConfigError
    where all of them are missing because the graders refuse the tasks."""
    failed = [verdict for verdict in verdicts if not was_graded(verdict)]
    if len(failed) <= max_failed_share * len(verdicts):
        return
    reasons = Counter(f"{v.status.value}: {v.details.get(_REASON, v.verdict)}" for v in failed).most_common(3)
    if all(verdict.status is Status.invalid_request for verdict in failed):
        raise ConfigError(
            f"the graders refuse the tasks of {len(failed)} of {len(verdicts)} rollouts "
            f"({'; '.join(f'{n} x {why}' for why, n in reasons)}): correct the column task of the data (docs/data.md), "
            "or leave such rows out."
        )
    raise RewardServiceFailing(
        f"grading failed on {len(failed)} of {len(verdicts)} rollouts, more than "
        f"reward.max_failed_share={max_failed_share:g} ({'; '.join(f'{n} x {why}' for why, n in reasons)}). "
        "No reward was made up for them; mend what failed and start again: a run that has a checkpoint goes on from it."
    )


class GradingInFlight:
    """What this rank has submitted and not yet taken back. Keys are whatever the caller tells rollouts apart by."""

    def __init__(
        self,
        grader: Grader,
        *,
        say: Callable[[str], None] = lambda text: None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`say` is told when verdicts are long in coming, `on_progress` that something has come or gone."""
        self._grader = grader
        self._say, self._on_progress = say, on_progress
        self._quiet_since = time.perf_counter()
        self._num_lines = 0
        self._pending: dict[tuple[int, int], Future[ScoreResult]] = {}
        self._busy: list[tuple[float, float]] = []
        self.exposed_s = 0.0
        """Seconds spent in `wait`, that is with nothing else to do."""

    def submit(self, key: tuple[int, int], rollout: Rollout) -> None:
        """Raises if the graders are known to be gone for good: what is still to be sampled would be sampled in vain."""
        self._grader.check()
        request = ScoreRequest(
            request_id=f"{rollout.policy_version}/{rollout.prompt.uid}/{key[0]}/{key[1]}",
            domain=rollout.prompt.domain,
            response=rollout.text,
            in_thought=rollout.prompt.opens_thought,
            task=rollout.prompt.task,
        )
        self._note_progress()
        future = self._grader.submit(request, rollout.prompt)
        future.add_done_callback(partial(self._note_end, time.perf_counter()))
        self._pending[key] = future

    def _note_end(self, start: float, _: Future[ScoreResult]) -> None:
        self._busy.append((start, time.perf_counter()))

    def take_finished(self) -> dict[tuple[int, int], ScoreResult]:
        """Verdicts that have arrived since the last call."""
        finished = {key: future.result() for key, future in self._pending.items() if future.done()}
        for key in finished:
            del self._pending[key]
        if finished:
            self._note_progress()
        return finished

    def wait(self, timeout_s: float) -> None:
        """Until all verdicts are there, or the time is up. Raises if the graders are known to be gone for good."""
        self._grader.check()
        start = time.perf_counter()
        if self._pending:
            wait(self._pending.values(), timeout=timeout_s, return_when=ALL_COMPLETED)
        else:
            time.sleep(timeout_s)
        now = time.perf_counter()
        self.exposed_s += now - start
        if self._pending and now - self._quiet_since > (self._num_lines + 1) * WAITING_LINE_S:
            self._num_lines += 1
            self._say(
                f"waiting for verdicts: nothing came for {now - self._quiet_since:.0f} s, and "
                f"{len(self._pending)} verdicts are missing"
            )

    def _note_progress(self) -> None:
        self._quiet_since, self._num_lines = time.perf_counter(), 0
        self._on_progress()

    @property
    def num_pending(self) -> int:
        """Verdicts that this rank still waits for."""
        return len(self._pending)

    @property
    def busy_s(self) -> float:
        """Seconds during which at least one rollout of this rank was being graded."""
        return union_s(list(self._busy))
