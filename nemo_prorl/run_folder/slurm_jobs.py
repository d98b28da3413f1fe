"""RUN/slurm/: which Slurm jobs a run's folder has.

RUN/slurm/jobs.json    stage -> the newest job that `submit` has submitted
RUN/slurm/job.json     the job that holds the folder, written by its launcher

Both are only read as far as they can be: the queue itself is the authority (nemo_prorl/cluster/slurm_queue.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from nemo_prorl.config import RunConfig
from nemo_prorl.run_folder.storage import keep_unread, read_json, replace_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that `submit` has submitted."""

    job: str
    options: Sequence[str] | None = None
    """The user's options for sbatch; None if they are not known."""
    overrides: Sequence[str] | None = None
    """The launcher's arguments; None if they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingJob:
    """The job that holds a run's folder, or was the last to hold it."""

    job: str
    stage: str
    cluster: str
    """Name of the Slurm cluster; another cluster may have a job of the same number."""
    user: str
    state: str
    """checking (doctor and reward service), training, requeued, stopped (by Slurm, which may requeue it) or ended."""
    reason: str
    updated: float
    """When the state began, in seconds since 1970."""


def submissions_file(run_dir: Path) -> Path:
    """Returns the path of jobs.json."""
    return run_dir / "slurm" / "jobs.json"


def read_submissions(run_dir: Path) -> dict[str, Submission]:
    """Returns stage -> its newest submission; empty if the file does not exist or cannot be read."""
    try:
        return {stage: Submission(**entry) for stage, entry in read_json(submissions_file(run_dir)).items()}
    except TypeError:
        return {}


def note_submission(run_dir: Path, stage: str, submission: Submission) -> None:
    """Records a submission atomically. Call it at once, so that it is known even if the next stage's sbatch fails."""
    before = read_submissions(run_dir)
    if not before:
        keep_unread(submissions_file(run_dir))
    entries = {**before, stage: submission}
    text = json.dumps({name: asdict(entry) for name, entry in entries.items()}, indent=1)
    replace_text(submissions_file(run_dir), text + "\n")


def read_folder_job(run_dir: Path) -> HoldingJob | None:
    """Returns what job.json says; None if there is no such file or it names no job."""
    entry = read_json(run_dir / "slurm" / "job.json")
    try:
        return HoldingJob(
            job=entry["job_id"],
            updated=datetime.fromisoformat(entry["updated"]).timestamp(),
            **{name: entry[name] for name in ("stage", "cluster", "user", "state", "reason")},
        )
    except (KeyError, TypeError, ValueError):
        return None


def without_servers_of_its_job(config: RunConfig) -> RunConfig:
    """Returns a recorded configuration without the reward servers of the job that trained it (RUN/reward/JOB), which
    end with the job."""
    own = Path(config.exp_manager.explicit_log_dir) / "reward"

    def kept(path: str) -> str:
        return "" if path and Path(path).is_relative_to(own) else path

    there = config.reward
    reward = replace(there, discovery_dir=kept(there.discovery_dir), token_file=kept(there.token_file))
    return replace(config, reward=reward)
