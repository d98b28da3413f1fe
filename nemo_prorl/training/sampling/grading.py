"""Grading in the background: hands each rollout to the graders when it ends, collects verdicts, measures the time."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial

from nemo_prorl.algorithm.shaping import Shaped
from nemo_prorl.config import ConfigError
from nemo_prorl.engines.interface import Grader, SamplingSettings
from nemo_prorl.training.timing import union_s
from nemo_prorl.types import PARTS, Prompt, Rollout, RolloutGroup, RolloutOutline, ScoredRollout
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult, id_of

_REASON = "reason"
"""Key in a verdict's details: why there is no score."""
WAITING_LINE_S = 30.0
"""Seconds between lines in the log while no verdict arrives."""


class RewardServiceFailing(RuntimeError):
    """The reward service or a reward function failed on more rollouts than reward.max_failed_share allows."""


def request_id(key: tuple[int, int], rollout: Rollout) -> str:
    """Returns the id under which a rollout is graded. key: its prompt's index in the round, and its sibling."""
    return id_of(rollout.policy_version, rollout.prompt.uid, *key)


def was_graded(verdict: ScoreResult) -> bool:
    """Whether there is a score. False means that the grader failed, not the answer."""
    return verdict.status is GradeStatus.graded and verdict.score is not None


def graded_group(
    prompt: Prompt,
    rollouts: Sequence[RolloutOutline],
    verdicts: Sequence[ScoreResult],
    shape: Callable[[RolloutOutline, float], Shaped],
) -> RolloutGroup:
    """Returns the prompt's group without the rollouts on which grading failed: a failure is not a reward of 0.

    verdicts: in the order of `rollouts`. shape: turns a rollout and its score into the reward.
    """
    members = tuple(
        ScoredRollout(rollout=rollout, verdict=verdict, **shape(rollout, verdict.score)._asdict())
        for rollout, verdict in zip(rollouts, verdicts, strict=True)
        if was_graded(verdict) and verdict.score is not None
    )
    return RolloutGroup(prompt=prompt, members=members, num_failed=len(rollouts) - len(members))


def for_all_ranks(verdict: ScoreResult) -> ScoreResult:
    """Returns the verdict without the details that only the rank that requested it uses."""
    details = {name: verdict.details[name] for name in (PARTS, _REASON) if name in verdict.details}
    return replace(verdict, request_id="", details=details)


def check_failures(verdicts: Sequence[ScoreResult], max_failed_share: float) -> None:
    """Raises RewardServiceFailing, with the most frequent reasons, if too many rollouts have no score, but ConfigError
    if that is because the graders reject their tasks."""
    failed = [verdict for verdict in verdicts if not was_graded(verdict)]
    if len(failed) <= max_failed_share * len(verdicts):
        return
    reasons = Counter(f"{v.status.value}: {v.details.get(_REASON, v.verdict)}" for v in failed).most_common(3)
    if all(verdict.status is GradeStatus.invalid_request for verdict in failed):
        raise ConfigError(
            f"the graders reject the tasks of {len(failed)} of {len(verdicts)} rollouts "
            f"({'; '.join(f'{n} x {why}' for why, n in reasons)}): correct the column task of the data (docs/data.md), "
            "or leave such rows out."
        )
    raise RewardServiceFailing(
        f"grading failed on {len(failed)} of {len(verdicts)} rollouts, more than "
        f"reward.max_failed_share={max_failed_share:g} ({'; '.join(f'{n} x {why}' for why, n in reasons)}). "
        "They got no reward. Correct what failed and run the same command: a run with a checkpoint goes on from it."
    )


class GradingInFlight:
    """Rollouts that this rank has submitted for grading, by the caller's keys."""

    def __init__(
        self,
        grader: Grader,
        *,
        say: Callable[[str], None] = lambda text: None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """say: gets a line when no verdict has arrived for long. on_progress: is called when rollouts are submitted and
        when verdicts arrive."""
        self._grader = grader
        self._say, self._on_progress = say, on_progress
        self._quiet_since = time.perf_counter()
        self._num_lines = 0
        self._pending: dict[tuple[int, int], Future[ScoreResult]] = {}
        self._arrived: deque[tuple[int, int]] = deque()
        """Keys in `_pending` whose verdict has arrived; to ask every future at every poll would be quadratic."""
        self._busy: list[tuple[float, float]] = []
        self.exposed_s = 0.0
        """Seconds spent in `wait`, which is called when there is nothing else to do."""

    def submit(self, key: tuple[int, int], rollout: Rollout) -> None:
        """Sends a rollout to the graders. Raises if they are known to be gone for good, so that sampling stops."""
        self._grader.check()
        request = ScoreRequest(
            request_id=request_id(key, rollout),
            domain=rollout.prompt.domain,
            response=rollout.text,
            in_thought=rollout.prompt.opens_thought,
            task=rollout.prompt.task,
        )
        self._note_progress()
        future = self._grader.submit(request, rollout.prompt)
        self._pending[key] = future
        future.add_done_callback(partial(self._note_end, key, time.perf_counter()))

    def _note_end(self, key: tuple[int, int], start: float, _: Future[ScoreResult]) -> None:
        self._busy.append((start, time.perf_counter()))
        self._arrived.append(key)

    def take_finished(self) -> dict[tuple[int, int], ScoreResult]:
        """Returns the verdicts that have arrived since the last call."""
        finished = {}
        while self._arrived:
            key = self._arrived.popleft()
            finished[key] = self._pending.pop(key).result()
        if finished:
            self._note_progress()
        return finished

    def wait(self, timeout_s: float) -> None:
        """Returns when all verdicts have arrived or the time is up. Raises if the graders are known to be gone for
        good."""
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
                f"waiting for verdicts: none arrived for {now - self._quiet_since:.0f} s, "
                f"{len(self._pending)} are missing"
            )

    def _note_progress(self) -> None:
        self._quiet_since, self._num_lines = time.perf_counter(), 0
        self._on_progress()

    @property
    def num_pending(self) -> int:
        """Number of verdicts that have not been taken yet."""
        return len(self._pending)

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one rollout of this rank was being graded."""
        return union_s(list(self._busy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of sampling: its prompts, its settings, and the grading of this rank's share."""

    prompts: Sequence[Prompt]
    settings: SamplingSettings
    in_flight: GradingInFlight

    def submit(self, index: int, rollout: Rollout) -> None:
        """Hands a finished rollout to the graders."""
        self.in_flight.submit((index, rollout.sibling), rollout)
