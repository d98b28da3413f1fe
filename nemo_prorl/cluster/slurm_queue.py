"""Queries Slurm's queue for a job, for example the one that holds the lock of a run's folder."""

from __future__ import annotations

import subprocess

from nemo_prorl.run_folder.lock import LockHolder, this_process

ANSWER_S = 30.0
"""Timeout of squeue."""


def job_state(job_id: str) -> str:
    """Returns squeue's name for the state of a job that waits or runs; empty for any other."""
    answer = _ask(job_id)
    return answer.stdout.strip() if answer is not None and answer.returncode == 0 else ""


def has_ended(job_id: str) -> bool:
    """Returns whether squeue says that the job has ended and left its nodes; False if squeue does not answer. Only for
    jobs of this user on this cluster, because Slurm may hide others."""
    answer = _ask(job_id)
    if answer is None:
        return False
    if answer.returncode:  # Slurm forgets old jobs
        return "Invalid job id" in answer.stderr
    return not answer.stdout.strip()


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
    return has_ended(holder.job)


def _ask(job_id: str) -> subprocess.CompletedProcess[str] | None:
    command = ["squeue", "--noheader", f"--job={job_id}", "--format=%T"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
