"""What a run is doing: what it wrote last, what Slurm's queue says of its jobs, and from both a word and what to do.

Where the queue cannot be asked, the word is a guess from the files, and the queue's line says so.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_prorl.cluster.slurm_queue import ENDED, GONE, NOT_KNOWN, Queue
from nemo_prorl.run_folder.lock import is_held
from nemo_prorl.run_folder.run import RUNNING_S, RunFolder
from nemo_prorl.run_folder.slurm_jobs import HoldingJob
from nemo_prorl.training.control.health import RECENT

CLOCK_S = 30.0
"""A trainer that began this much before its job began to train is that of an earlier start."""
SILENT_STEPS = 2.0
"""A run is called silent after this many times the duration of its steps without a sign of life, and not before
RUNNING_S."""
UNDER_WAY = ("waiting", "checking", "starting", "training")
"""States of a run that goes on by itself."""
LAUNCHER = {
    "checking": ("checking", "checks its nodes since"),
    "training": ("starting", "starts its trainer since"),
    "requeued": ("waiting", "goes back to the queue since"),
    "ended": ("stopped", "has ended since"),
}
"""State that a job's launcher has noted -> the run's state until the job's trainer has begun, and the same in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """A Slurm job of the run."""

    job: str
    stage: str
    state: str
    """squeue's word, GONE or NOT_KNOWN."""
    reason: str = ""
    """Why it waits, in squeue's word."""

    @property
    def has_nodes(self) -> bool:
        return self.state not in (*ENDED, NOT_KNOWN, "PENDING")

    def __str__(self) -> str:
        reason = "" if self.reason in ("", "None") else f" ({self.reason})"
        said = {GONE: "not in the queue any more", NOT_KNOWN: "not known to squeue here, so this is a guess"}
        return f"job {self.job} of {self.stage}: {said.get(self.state, self.state + reason)}"


def stage_of(run: RunFolder) -> str:
    """Returns the stage that began last; of a run that has not begun, the first that has a job or has failed."""
    begun = [start.stage for start in run.starts[-1:]] + run.stages[-1:]
    held = [run.folder_job.stage] if run.folder_job else []
    return next(iter([*begun, *run.submissions, *held, *run.failures]), "")


def seen_s(run: RunFolder) -> float:
    """Returns the age of the last sign of life in seconds, infinite without any. A process that has ended gives none
    after its end."""
    if not run.starts:
        return run.sign_of_life_s
    by_start = max(0.0, time.time() - run.starts[-1].seen)
    return by_start if run.starts[-1].end else min(by_start, run.sign_of_life_s)


def wrote_last(run: RunFolder) -> tuple[str, str]:
    """Returns the state by the files of the run's processes alone, "" if none has begun, and a sentence."""
    stage, start, age_s = stage_of(run), run.starts[-1] if run.starts else None, seen_s(run)
    ago = f"{duration(age_s)} ago"
    if stage in run.failures:
        return "failed", f"failed: {run.failures[stage]}"
    if stage in run.outcomes:
        return "done", f"ended ({run.outcomes[stage]})"
    if start is None and not run.records:
        return "", "has not begun"
    if start and start.end == "paused":
        return "paused", f"paused {ago}"
    if start and start.end:
        return "stopped", f"stopped {ago}: {start.end}"
    # Locks of other machines may be unseen here.
    if start and start.host == socket.gethostname() and is_held(run.folder) is False:
        return "stopped", f"killed; last sign of life {ago}"
    if age_s > max(RUNNING_S, SILENT_STEPS * run.recent_step_s(RECENT)):
        return "silent", f"no sign of life for {duration(age_s)}: killed, or hanging"
    beat = run.heartbeat
    if start and not (beat and run.records):  # a start removes the heartbeat of the process before
        return "starting", f"starts since {_since(start.began)}, last sign of life {ago}"
    phase = f"{str(beat['phase']).replace('_', ' ')} for {_since(beat['time'])}, " if beat else ""
    return "training", f"{phase}last sign of life {ago}"


def _since(then_s: float) -> str:
    return duration(max(0.0, time.time() - then_s))


def facts_of(run: RunFolder, queue: Queue | None = None) -> dict[str, Any]:
    """Returns `state`, the facts `wrote` and `queue`, `advice`, `job` and `job_state` (see status.RunStatus) of a run
    that has begun, was submitted or has failed. queue: squeue's answer; without it the states of jobs are guesses."""
    word, wrote = wrote_last(run)
    held = _holder(run)
    last, others = _jobs(run, held, queue or Queue(problem="not asked"))
    over = {**run.outcomes, **run.failures}
    jobs = [one for one in [*([last] if last else []), *others] if one.stage not in over or one.has_nodes]
    by_launcher = ""
    if held and not _has_its_trainer(run, held) and held.stage not in over:
        by_launcher, doing = LAUNCHER[held.state]
        reason = f": {held.reason.rstrip('.')}" if held.reason else ""
        wrote += f"; job {held.job} of {held.stage} {doing} {_since(held.updated)}{reason}"
    if word != "failed":
        word = _word(run, word, by_launcher, last, jobs)
    return {
        "state": word,
        "wrote": wrote,
        "queue": "; ".join(map(str, jobs)),
        "advice": _advice(run, word, jobs),
        "job": last.job if last else "",
        "job_state": last.state if last else "",
    }


def _word(run: RunFolder, word: str, by_launcher: str, last: RunJob | None, jobs: Sequence[RunJob]) -> str:
    """Returns the run's state: by its job on its nodes, or by one that waits, or by how the last one left the queue, or
    by the files alone. word: of the run's processes. by_launcher: of their job's launcher, if that wrote later. jobs:
    those of stages that are not over, and those on their nodes."""
    active = next((one for one in jobs if one.has_nodes and one.stage not in run.outcomes), None)
    if active and active.state == "SUSPENDED":
        return "waiting"
    if active and (active.state == "COMPLETING" or by_launcher in ("waiting", "stopped")):
        return "paused" if word == "paused" else "stopped"
    if active:
        is_its_process = bool(run.starts) and run.starts[-1].job == active.job and not run.starts[-1].end
        return (by_launcher if active is last else "") or (word if is_its_process else "starting")
    if any(one.state == "PENDING" for one in jobs):
        return "waiting"
    if last and last.state != NOT_KNOWN and word != "done":
        return "cancelled" if last.state == "CANCELLED" else "stopped"
    if word in ("", "done") and not by_launcher:
        return "waiting" if any(one.state == NOT_KNOWN for one in jobs) else word or "stopped"
    return by_launcher or word


def _holder(run: RunFolder) -> HoldingJob | None:
    """Returns the job that holds the folder, unless another process has trained here since."""
    held, newest = run.folder_job, run.starts[-1] if run.starts else None
    is_older = held and newest and newest.job != held.job and newest.began > held.updated
    return None if is_older or (held and held.state not in LAUNCHER) else held


def _has_its_trainer(run: RunFolder, held: HoldingJob) -> bool:
    """Returns whether the newest process is the trainer of the job's present start, and the launcher waits for it."""
    newest = run.starts[-1] if run.starts else None
    is_its_own = newest is not None and newest.job == held.job and newest.began > held.updated - CLOCK_S
    return held.state == "training" and is_its_own


def _jobs(run: RunFolder, held: HoldingJob | None, queue: Queue) -> tuple[RunJob | None, list[RunJob]]:
    """Returns (the job that trains or trained last, the others that `submit` knows)."""

    def job(number: str, stage: str, **owner: str) -> RunJob:
        reason = queue.jobs[number].reason if number in queue.jobs else ""
        return RunJob(job=number, stage=stage, state=queue.state(number, **owner), reason=reason)

    last = None
    if held:
        last = job(held.job, held.stage, cluster=held.cluster, user=held.user)
    elif run.starts and run.starts[-1].job:
        last = job(run.starts[-1].job, run.starts[-1].stage)
    entries = run.submissions.items()
    return last, [job(one.job, stage) for stage, one in entries if not last or one.job != last.job]


def _advice(run: RunFolder, word: str, jobs: Sequence[RunJob]) -> str:
    """Returns what a user has to do so that the run goes on."""
    with_nodes = next((one for one in jobs if one.has_nodes), None)
    if word == "silent" and with_nodes:
        return f"look at its log; if it hangs, cancel job {with_nodes.job}"
    if word in (*UNDER_WAY, "done") or with_nodes:
        return ""
    again = "submit again: it" if jobs else "the same command"
    on = f"{again} {'goes on from the newest checkpoint' if run.newest_checkpoint else 'begins again'}"
    if any(one.state == NOT_KNOWN for one in jobs):
        on += ", unless a job of it is in the queue"
    return f"mend that; then {on}" if word == "failed" else on


def short_duration(seconds: float) -> str:
    """Formats seconds for tables, in at most four characters: "40s", "12m", "35h", "19d"."""
    for unit, size_s, most in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if seconds < most:
            return f"{seconds / size_s:.0f}{unit}"
    return f"{min(seconds / 86400, 999):.0f}d"


def duration(seconds: float) -> str:
    """Formats seconds for people: "40 s", "12 min", "3.5 h", "19.7 days"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
