"""Asks Slurm's queue, here and nowhere else. What squeue does not answer is not known, which is not the same as gone.

A job's state is squeue's name for it, such as PENDING or CANCELLED, or GONE or NOT_KNOWN.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nemo_prorl.run_folder.lock import LockHolder, this_process

ANSWER_S, PAUSE_S = 30.0, 2.0
"""How long squeue may take, and the pause before it is asked again."""
GONE = "gone"
"""Slurm has forgotten the job, as it does some minutes after its end."""
NOT_KNOWN = "not known"
ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT", GONE,
)  # fmt: skip
"""States of jobs that have left their nodes for good; in all others but NOT_KNOWN a job waits, runs or ends."""
_FORMAT = "job|%A|%T|%r"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job of this user that Slurm lists: one that waits, runs, or ended minutes ago."""

    job: str
    state: str
    reason: str
    """Why it waits, in squeue's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One answer of squeue about the jobs of this user on this cluster."""

    jobs: Mapping[str, QueuedJob] = field(default_factory=dict)
    problem: str = ""
    """Why there is no answer; empty if there is one."""
    cluster: str = ""
    user: str = ""

    def state(self, job: str, *, cluster: str = "", user: str = "") -> str:
        """Returns a job's state. NOT_KNOWN without an answer, and for the job of another user or cluster, which squeue
        does not list although it may run."""
        is_elsewhere = any(a and b and a != b for a, b in ((cluster, self.cluster), (user, self.user)))
        if self.problem or is_elsewhere:
            return NOT_KNOWN
        return self.jobs[job].state if job in self.jobs else GONE

    def is_active(self, job: str) -> bool:
        """Returns whether a job of this user waits, runs or ends. A job whose parent has failed does not: Slurm itself
        cancels it within seconds."""
        found = self.jobs.get(job)
        if found is None or found.state in ENDED:
            return False
        return found.reason != "DependencyNeverSatisfied"


def ask_queue(*, tries: int = 1, timeout_s: float = ANSWER_S) -> Queue:
    """Returns squeue's answer, the first of `tries`, or why there is none."""
    user, problem = _user(), ""
    for number in range(tries):
        time.sleep(PAUSE_S if number else 0.0)
        output, problem = _run(
            ["squeue", "--me", "--states=all", "--noheader", f"--format={_FORMAT}"], timeout_s
        )
        rows = [line.split("|", 3)[1:] for line in output.splitlines() if line.startswith("job|")]
        if not problem and output.strip() and not rows:
            problem = f"squeue says {output.split()[0]!r}"
        if not problem:
            jobs = {job: QueuedJob(job=job, state=state, reason=reason) for job, state, reason in rows}
            return Queue(jobs=jobs, cluster=_cluster(timeout_s), user=user)
    return Queue(problem=problem, user=user)


def is_gone(holder: LockHolder) -> bool:
    """Returns whether the holder's job has ended according to Slurm: squeue does not list it any more, or it has been
    requeued as the job of this process.

    False for a holder on this machine, where a lock ends with its process, and for a job of another user or cluster,
    which squeue may not list although it runs.
    """
    here = this_process()
    if not holder.job or holder.host == here.host:
        return False
    if not (holder.cluster and holder.user) or (holder.cluster, holder.user) != (here.cluster, here.user):
        return False
    if holder.job == here.job:
        return holder.restarts < here.restarts
    return ask_queue(tries=2).state(holder.job) in ENDED


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container
        return os.environ.get("SLURM_JOB_USER", "")


def _cluster(timeout_s: float) -> str:
    """Returns the cluster's name; empty if Slurm does not say it."""
    output, _problem = _run(["scontrol", "show", "config"], timeout_s)
    pairs = (line.partition("=") for line in output.splitlines())
    return next((value.strip() for name, _, value in pairs if name.strip() == "ClusterName"), "")


def _run(command: Sequence[str], timeout_s: float) -> tuple[str, str]:
    """Returns (the output, why there is none)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except FileNotFoundError:
        return "", f"{command[0]} is not on this machine"
    except OSError as error:
        return "", f"{command[0]} cannot be run: {error}"
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} gave no answer within {timeout_s:.0f} s"
    said = " ".join(done.stderr.split())
    if done.returncode or "error:" in said:  # squeue ends with 0 after some of its errors
        return "", said or f"{command[0]} ended with code {done.returncode}"
    return done.stdout, ""
