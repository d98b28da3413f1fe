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
from nemo_prorl.run_folder.formats import duration
from nemo_prorl.run_folder.lock import is_held
from nemo_prorl.run_folder.metrics_file import METRICS_FILE
from nemo_prorl.run_folder.run import HEARTBEAT_FILE, RUNNING_S, RunFolder
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
    "stopped": ("stopped", "is stopped by Slurm since"),
    "ended": ("stopped", "has ended since"),
}
"""State that a job's launcher has noted -> the run's state until the job's trainer has begun, and the same in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """A Slurm job of a stage that is not over."""

    job: str
    stage: str
    state: str
    """squeue's word, GONE or NOT_KNOWN."""
    reason: str = ""
    """Why it waits, in squeue's word."""

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "SUSPENDED")

    @property
    def has_nodes(self) -> bool:
        return not self.waits and self.state not in (*ENDED, "COMPLETING", NOT_KNOWN)

    def __str__(self) -> str:
        reason = "" if self.reason in ("", "None") else f" ({self.reason})"
        said = {GONE: "not in the queue any more", NOT_KNOWN: "not known to squeue here, so this is a guess"}
        return f"job {self.job} of {self.stage}: {said.get(self.state, self.state + reason)}"


def facts_of(run: RunFolder, queue: Queue | None = None) -> dict[str, Any]:
    """Returns `state`, the facts `wrote` and `queue`, and `advice` (see status.RunStatus) of a run that has begun, was
    submitted or has failed. queue: squeue's answer; without it the states of jobs are guesses."""
    word, wrote = wrote_last(run)
    jobs = _jobs(run, queue or Queue(problem="not asked"))
    word = word if word == "failed" else _word(word, jobs)
    return {
        "state": word,
        "wrote": wrote,
        "queue": "; ".join(map(str, jobs)),
        "advice": _advice(run, word, jobs),
    }


def stage_of(run: RunFolder) -> str:
    """Returns the stage that began last; of a run that has not begun, the first that has a job or has failed."""
    begun = [start.stage for start in run.starts[-1:]] + run.stages[-1:]
    held = [run.folder_job.stage] if run.folder_job else []
    return next(iter([*begun, *run.submissions, *held, *run.failures]), "")


def seen_s(run: RunFolder) -> float:
    """Returns the age of the last sign of life in seconds, infinite without any. A process that has ended gives none
    after its end."""
    files = (run.folder / METRICS_FILE, run.folder / HEARTBEAT_FILE)
    times = [path.stat().st_mtime for path in files if path.exists()]
    if run.starts:
        times = [run.starts[-1].seen, *([] if run.starts[-1].end else times)]
    return max(0.0, time.time() - max(times, default=float("-inf")))


def wrote_last(run: RunFolder) -> tuple[str, str]:
    """Returns (the state by the files alone, "" if nothing has begun; a sentence): what the newest process has written,
    and what the launcher of its job, if that wrote later."""
    word, wrote = _process(run)
    held = _launcher(run)
    if held is None or held.stage in run.outcomes or held.stage in run.failures:
        return word, wrote
    word, doing = LAUNCHER[held.state]
    reason = f": {held.reason.rstrip('.')}" if held.reason else ""
    return word, f"{wrote}; job {held.job} of {held.stage} {doing} {_since(held.updated)}{reason}"


def _process(run: RunFolder) -> tuple[str, str]:
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


def _launcher(run: RunFolder) -> HoldingJob | None:
    """Returns the job that holds the folder, if its launcher has written since the newest process began."""
    held = run.folder_job
    if held is None or held.state not in LAUNCHER:
        return None
    # A job's trainer begins right after its launcher has noted that it trains, by the clock of another machine.
    updated = held.updated - CLOCK_S if held.state == "training" else held.updated
    return None if run.starts and run.starts[-1].began > updated else held


def _jobs(run: RunFolder, queue: Queue) -> list[RunJob]:
    """Returns the job that trains or trained last, and the others that `submit` knows, of stages that are not done."""
    start, held = run.starts[-1] if run.starts else None, run.folder_job
    stages = {one.job: stage for stage, one in run.submissions.items()}
    owner = {}
    if held and (_launcher(run) or (start and start.job == held.job)):
        stages, owner = {held.job: held.stage} | stages, {"cluster": held.cluster, "user": held.user}
    elif start and start.job:
        stages = {start.job: start.stage} | stages
    return [
        RunJob(
            job=job,
            stage=stage,
            state=queue.state(job, **(owner if held and job == held.job else {})),
            reason=queue.jobs[job].reason if job in queue.jobs else "",
        )
        for job, stage in stages.items()
        if stage not in run.outcomes
    ]


def _word(word: str, jobs: Sequence[RunJob]) -> str:
    """Returns the run's state: the word of its files, unless the queue contradicts it."""
    if any(one.has_nodes for one in jobs):
        return "starting" if word in ("", "done", "paused", "stopped") else word
    if any(one.waits for one in jobs):
        return "waiting"
    if any(one.state == NOT_KNOWN for one in jobs):
        return "waiting" if word in ("", "done") else word
    return "stopped" if jobs and word not in ("done", "paused") else word or "stopped"


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
    held = _launcher(run)
    would_end_so_again = word == "failed" or (held and held.state == "stopped" and held.reason)
    further = "; `rewind` goes further back" if word == "failed" and run.newest_checkpoint else ""
    return f"mend that; then {on}{further}" if would_end_so_again else on
