"""What Slurm's queue says of a job. Standard library only."""

from __future__ import annotations

import subprocess

ANSWER_S = 30.0
"""How long squeue may take to answer."""


def job_state(job_id: str) -> str:
    """As squeue calls it, of a job that waits or runs; else empty."""
    answer = _ask(job_id)
    return answer.stdout.strip() if answer is not None and answer.returncode == 0 else ""


def has_ended(job_id: str) -> bool:
    """Whether squeue says that the job neither waits nor runs, and that its nodes are free of it. Only for jobs of this
    user on this cluster: Slurm may hide others. False where squeue is not there, or does not answer."""
    answer = _ask(job_id)
    if answer is None:
        return False
    if answer.returncode:  # Slurm forgets jobs after a while
        return "Invalid job id" in answer.stderr
    return not answer.stdout.strip()


def _ask(job_id: str) -> subprocess.CompletedProcess[str] | None:
    command = ["squeue", "--noheader", f"--job={job_id}", "--format=%T"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
