"""What a run is doing, as a word and a sentence, from signs in its folder and from Slurm's queue.

The queue decides where it can be asked. Elsewhere the files do, and the sentence says that this is a guess.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_prorl.cluster.slurm_queue import ENDED, GONE, NOT_KNOWN, Queue
from nemo_prorl.report.health import duration
from nemo_prorl.report.runs import RUNNING_S
from nemo_prorl.run_folder.slurm_jobs import FolderJob, read_folder_job, read_submissions
from nemo_prorl.run_folder.starts import Start

CLOCK_S = 30.0
"""A trainer that began this much before its job began to train is that of an earlier start."""
GUESS = " (a guess: squeue says nothing of it here)"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A Slurm job of the run."""

    job: str
    stage: str
    state: str
    """squeue's word, GONE or NOT_KNOWN."""
    reason: str = ""
    """Why it waits, in squeue's word."""

    @property
    def is_active(self) -> bool:
        """Returns whether it has nodes."""
        return self.state not in (*ENDED, NOT_KNOWN, "PENDING")

    @property
    def waiting(self) -> str:
        reason = "" if self.reason in ("", "None") else f" ({self.reason})"
        return f"job {self.job} of {self.stage} waits in the queue{reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The Slurm jobs of a run; none outside of Slurm."""

    last: JobState | None = None
    """The one that trains or has trained last."""
    submitted: tuple[JobState, ...] = ()
    """Others that `submit` knows, in the order of the stages."""
    held: FolderJob | None = None
    """What the launcher of the last one has written."""

    @property
    def every(self) -> tuple[JobState, ...]:
        return (self.last, *self.submitted) if self.last else self.submitted

    @property
    def next(self) -> JobState | None:
        """Returns the first that waits."""
        return next((job for job in self.every if job.state == "PENDING"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What a run's folder says of its newest process."""

    stage: str
    where: str
    """Such as "after step 3 of 40 of run1"."""
    start: Start | None = None
    seen_s: float | None = None
    """Age of the last sign of life."""
    patience_s: float = RUNNING_S
    """Age of the last sign of life from which on the run is called silent."""
    step: int | None = None
    """Steps of the run; None before the first."""
    beat: Mapping[str, Any] = field(default_factory=dict)
    """The heartbeat: `phase` and `time`."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Failed stage -> reason."""
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """Finished stage -> why it ended."""
    is_unlocked: bool = False
    """Whether its process ran on this machine and holds the folder's lock no more."""

    @property
    def end(self) -> str:
        return self.start.end.rstrip(".") if self.start else ""

    @property
    def ago(self) -> str:
        return f"{duration(self.seen_s)} ago" if self.seen_s is not None else "some time ago"

    @property
    def has_begun(self) -> bool:
        """Returns whether any process has trained here."""
        return self.start is not None or self.step is not None

    @property
    def pause(self) -> str:
        """Returns how the newest process ended, if there was one."""
        if not self.has_begun:
            return f"{self.stage} has not begun"
        if self.end == "paused":
            return f"paused {self.where}, {self.ago}"
        return f"stopped {self.where}, {self.ago}" + (f": {self.end}" if self.end else "")


def jobs_of(folder: Path, starts: Sequence[Start], queue: Queue | None) -> Jobs:
    """Returns the run's jobs with their states, NOT_KNOWN without a queue."""
    queue = queue or Queue(problem="not asked")
    held, newest = read_folder_job(folder), starts[-1] if starts else None
    if held and newest and newest.job != held.job and newest.began > held.updated:
        held = None  # another process has trained here since

    def state(job: str, stage: str, **owner: str) -> JobState:
        reason = queue.jobs[job].reason if job in queue.jobs else ""
        return JobState(job=job, stage=stage, state=queue.state(job, **owner), reason=reason)

    last = None
    if held:
        last = state(held.job, held.stage, cluster=held.cluster, user=held.user)
    elif newest and newest.job:
        last = state(newest.job, newest.stage)
    entries = read_submissions(folder).items()
    others = (state(one.job, stage) for stage, one in entries if not last or one.job != last.job)
    return Jobs(last=last, submitted=tuple(others), held=held)


def describe(signs: Signs, jobs: Jobs) -> tuple[str, str]:
    """Returns the state and its sentence: of jobs on their nodes first, then how the stage ended, then of jobs that
    wait, then what the newest process left."""
    last, stage = jobs.last, signs.stage
    if last and last.is_active and last.stage not in {**signs.outcomes, **signs.failures}:
        return _of_active(signs, last, jobs.held)
    if stage in signs.failures:
        again = f" But {jobs.next.waiting}." if jobs.next and jobs.next.stage == stage else ""
        return "failed", f"failed {signs.where}: {signs.failures[stage]}{again}"
    if active := next((job for job in jobs.submitted if job.is_active), None):
        before = f"; {signs.pause}" if signs.has_begun else ", and has not trained yet"
        return "starting", f"job {active.job} of {active.stage} is on its nodes{before}."
    if stage in signs.outcomes:
        left = (job for job in jobs.submitted if job.stage not in signs.outcomes and job.state not in ENDED)
        if job := next(left, None):
            waiting = _unless_cancelled(job) if job.state == NOT_KNOWN else job.waiting
            return "waiting", f"{signs.stage} is done; {waiting}."
        return "done", f"done: {signs.stage} ended after step {signs.step} ({signs.outcomes[signs.stage]})."
    if jobs.next:
        return "waiting", f"{signs.pause}; {jobs.next.waiting}."
    if last and last.state != NOT_KNOWN:
        return _of_gone(signs, last, jobs.held)
    if last and jobs.held and not _is_of_start(signs, jobs.held):
        return _of_held(signs, jobs.held)
    if not signs.has_begun and jobs.submitted:
        first = jobs.submitted[0]
        if first.state == NOT_KNOWN:
            return "waiting", f"{_unless_cancelled(first)}."
        on = f"its job {first.job} is not in the queue any more: submit again"
        return "stopped", f"{first.stage} has not begun, and {on}."
    if signs.end == "paused":
        on = "the same command goes on with it"
        if last:  # a launcher goes back to the queue; a shell in an allocation does not
            on += f", unless job {last.job} is in the queue again{GUESS}"
        return "paused", f"{signs.pause}; {on}."
    if signs.end:
        return "stopped", f"{signs.pause}."
    on = "; the same command goes on" + (", unless a job of it is in the queue" if last else "")
    if signs.is_unlocked:
        return "stopped", f"killed {signs.where}, last sign of life {signs.ago}{on}."
    state, said = _of_living(signs)
    return state, f"{said}{on if state == 'silent' else ''}{GUESS if last else ''}."


def _of_active(signs: Signs, job: JobState, held: FolderJob | None) -> tuple[str, str]:
    """Describes a job that has its nodes."""
    if job.state == "SUSPENDED":
        return "waiting", f"Slurm has suspended job {job.job} {signs.where}."
    if job.state == "COMPLETING" or (held and held.state in ("requeued", "ended")):
        state = "paused" if signs.end == "paused" else "stopped"
        return state, f"{signs.pause}; job {job.job} is leaving its nodes."
    if held and not _is_of_start(signs, held):
        state, said = _of_launcher(held)
        return state, f"{said}; {signs.pause}." if signs.has_begun else f"{said}."
    if signs.end or (signs.start and signs.start.job != job.job):
        return "starting", f"job {job.job} is on its nodes; {signs.pause}."
    state, said = _of_living(signs)
    return state, f"{said}; job {job.job} still has its nodes." if state == "silent" else f"{said}."


def _is_of_start(signs: Signs, held: FolderJob) -> bool:
    """Returns whether the newest process is the trainer of the job's present start."""
    start = signs.start
    if start is None or held.state != "training":
        return False
    return start.job == held.job and start.began > held.updated - CLOCK_S


def _of_launcher(held: FolderJob) -> tuple[str, str]:
    """Describes a job whose trainer has not begun. No full stop at the end."""
    name = f"job {held.job} of {held.stage}" + (f", start {held.start}," if held.start > 1 else "")
    since = duration(max(0.0, time.time() - held.updated))
    if held.state == "checking":
        return "checking", f"{name} has been checking its nodes for {since}"
    return "starting", f"{name} has been starting its trainer for {since}"


def _of_held(signs: Signs, held: FolderJob) -> tuple[str, str]:
    """Describes a job of which squeue says nothing, by what its launcher has written."""
    if held.state in ("checking", "training"):
        state, said = _of_launcher(held)
        return state, f"{said}{GUESS}; {signs.pause}." if signs.has_begun else f"{said}{GUESS}."
    since = duration(max(0.0, time.time() - held.updated))
    if held.state == "requeued":
        said = f"job {held.job} went back to the queue {since} ago, unless it was cancelled{GUESS}"
        return "waiting", f"{signs.pause}; {said}."
    reason = f": {held.reason.rstrip('.')}" if held.reason else ""
    return "stopped", f"{signs.pause}; job {held.job} ended {since} ago{reason}. The same submission goes on."


def _of_gone(signs: Signs, job: JobState, held: FolderJob | None) -> tuple[str, str]:
    """Describes a job that has left the queue before its stage was done."""
    how = {"CANCELLED": "was cancelled", GONE: "is not in the queue any more"}
    said = f"job {job.job} {how.get(job.state, f'ended as {job.state}')}"
    if held and held.state == "ended" and held.reason and job.state != "CANCELLED":
        said += f" ({held.reason.rstrip('.')})"
    if not signs.end and signs.step is not None:
        said += f", last sign of life {signs.ago} {signs.where}"
    else:
        said = f"{signs.pause}; {said}"
    state = "cancelled" if job.state == "CANCELLED" else "stopped"
    on = "begins again" if signs.step is None else "goes on from the last checkpoint"
    return state, f"{said}. The same submission {on}."


def _unless_cancelled(job: JobState) -> str:
    return f"{job.stage} waits in the queue as job {job.job}, unless it was cancelled{GUESS}"


def _of_living(signs: Signs) -> tuple[str, str]:
    """Describes a process that has not said how it ended, by the age of its last sign of life. No full stop."""
    seen_s = signs.seen_s or 0.0
    if signs.step is None:
        began = duration(max(0.0, time.time() - signs.start.began)) if signs.start else "?"
        if seen_s < signs.patience_s:
            return "starting", f"{signs.stage} starts, since {began}"
        return "silent", f"{signs.stage} has not come to its first step, and was last seen {signs.ago}"
    if seen_s > signs.patience_s:
        return "silent", f"no sign of life for {duration(seen_s)} {signs.where}: killed, or hanging"
    if signs.start and not signs.beat:  # none yet: the start removes that of the process before
        return "starting", f"{signs.stage} starts again {signs.where}, last sign of life {signs.ago}"
    doing = f"step {signs.step} of the run"
    if signs.beat:
        phase_s = max(0.0, time.time() - float(signs.beat["time"]))
        doing += f"; {str(signs.beat['phase']).replace('_', ' ')} for {duration(phase_s)}"
    return "training", f"training {signs.where} ({doing}), seen {signs.ago}"
