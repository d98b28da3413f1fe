"""Submits a chain of stages as Slurm jobs, each waiting for its parent's. Runs only sbatch and squeue.

A stage's job is its launcher, launchers/STAGE_*.sh, with the user's overrides as arguments. Nodes and time are set in
the launcher, account and partition in slurm/site.env.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.cluster.plan.chain import OF_LAST_STAGE, Chain
from nemo_prorl.cluster.slurm_queue import ENDED, NOT_KNOWN, Queue
from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.lock import is_held, lock_holder
from nemo_prorl.run_folder.markers import is_done
from nemo_prorl.run_folder.slurm_jobs import (
    Submission,
    note_submission,
    read_folder_job,
    read_submissions,
    submissions_file,
)

RUN_DIR_KEY = "exp_manager.explicit_log_dir"
LOOK_S = 1.0
"""How long Slurm takes to look at a new job and to find a reason why it cannot start."""
USUAL_REASONS = (
    "None", "Priority", "Resources", "Dependency", "BeginTime", "JobHeldUser", "Reservation", "Licenses",
)  # fmt: skip
"""squeue's words for a wait that ends by itself, or by the user's own command."""


class NotNow(RuntimeError):
    """Nothing can be submitted at this moment; the same command may work in a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The Slurm job of one stage."""

    stage: str
    parent: str
    """Stage whose job has to succeed first; empty if there is none to wait for."""
    launcher: Path
    log: str
    options: tuple[str, ...]
    """The user's options for sbatch."""
    overrides: tuple[str, ...]
    """Arguments of the launcher."""

    def after(self, parent_id: str) -> list[str]:
        """Returns the command of sbatch. If the parent's job fails, Slurm cancels this one instead of keeping it
        waiting."""
        waiting = [f"--dependency=afterok:{parent_id}", "--kill-on-invalid-dep=yes"] if parent_id else []
        own = ["--parsable", f"--output={self.log}"]
        return ["sbatch", *waiting, *own, *self.options, str(self.launcher), *self.overrides]


def find_launcher(stage: str, root: Path) -> Path:
    """Returns the stage's launcher, relative to the root of the repository. Raises ConfigError if there is none."""
    found = sorted([*root.glob(f"launchers/{stage}_*.sh"), *root.glob(f"launchers/{stage}.sh")])
    if not found:
        raise ConfigError(
            f"stage {stage} has no launcher: copy launchers/run1_8k.sh to launchers/{stage}.sh, and name the stage in "
            "its last line."
        )
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise ConfigError(f"stage {stage} has several launchers, {names}: leave one of them.")
    return found[0].relative_to(root)


def plan_jobs(
    chain: Chain, *, run_dir: str, arguments: Sequence[str], sbatch_options: Sequence[str], root: Path
) -> list[Job]:
    """Returns the jobs of the stages that are not done. `arguments` go to the launchers, `sbatch_options` to sbatch."""
    jobs: list[Job] = []
    common = [text for text in arguments if not text.startswith(OF_LAST_STAGE)]
    for config in chain:
        stage = config.stage.name
        if is_done(Path(run_dir), stage):
            continue
        job = Job(
            stage=stage,
            parent=config.stage.parent if jobs else "",
            launcher=find_launcher(stage, root),
            log=f"{run_dir.replace('%', '%%')}/slurm/%x-%j.out",
            options=tuple(sbatch_options),
            overrides=tuple(arguments if config is chain[-1] else common),
        )
        jobs.append(job)
    return jobs


def dry_run_text(
    jobs: Sequence[Job], run_dir: Path, missing: Mapping[str, str], found: Mapping[str, str], doubt: str = ""
) -> str:
    """Returns a shell script that would submit the same jobs. Comments before it name the files that are `missing`
    (path -> what makes it) and the `doubt` about the queue. found: stage -> its job in the queue."""
    lines = []
    if missing:
        lines += ["# Missing, and what makes each; the first job that needs one of them would fail:"]
        lines += [f"#   {path}\n#       {maker}" for path, maker in missing.items()] + [""]
    lines += [f"# {doubt}", ""] if doubt else []
    if any(job.stage not in found for job in jobs):
        folder = shlex.quote(str(submissions_file(run_dir).parent))
        lines += [f"mkdir -p {folder}  # sbatch does not make the folder of a log"]
    for job in jobs:
        if job.stage in found:
            lines.append(f"{_variable(job.stage)}={found[job.stage]}  # in the queue already")
            continue
        command = shlex.join(job.after(f"@{_variable(job.parent)}" if job.parent else ""))
        command = command.replace("afterok:@", "afterok:$")  # shlex would quote a $
        for word in (job.launcher, *(["--parsable"] if job.parent else [])):
            command = command.replace(f" {word}", f" \\\n    {word}")
        lines.append(f"{_variable(job.stage)}=$({command})")
    return "\n".join(lines)


def _variable(stage: str) -> str:
    return "job_" + stage.replace("-", "_")


def check_slurm() -> None:
    """Raises ConfigError on a machine that cannot submit."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "sbatch is not on this machine's path: submit from a login node of the cluster, or add --dry-run to see "
            "what would be submitted."
        )


def find_in_queue(jobs: Sequence[Job], queue: Queue, run_dir: Path) -> dict[str, str]:
    """Returns stage -> its job that waits or runs since an earlier submission, of the first stages in a row that have
    one.

    Raises ConfigError if such a job has other overrides, or if a new job would meet another one in the folder; NotNow
    if squeue cannot tell, or while a job is ending.
    """
    if queue.problem:
        raise NotNow(
            f"squeue does not answer ({queue.problem}), so whether a job trains in {run_dir} is not known: repeat the "
            "command when squeue works."
        )
    active = {
        stage: entry
        for stage, entry in read_submissions(run_dir).items()
        if queue.is_active(entry.job) and not is_done(run_dir, stage)
    }
    others = _others(queue, run_dir, [entry.job for entry in active.values()])
    found = dict[str, str]()
    for job in jobs:
        if job.stage not in active:
            break
        entry = active.pop(job.stage)
        if queue.state(entry.job) == "COMPLETING":
            raise NotNow(
                f"job {entry.job} ({job.stage}) is leaving its nodes: repeat the command in a minute."
            )
        if different := difference(entry.overrides or (), job.overrides):
            raise ConfigError(
                f"stage {job.stage} is in the queue as job {entry.job} with other overrides: {different}. Cancel it "
                f"(`scancel {entry.job}`) and submit again, or repeat its overrides."
            )
        found[job.stage] = entry.job
    others += [f"job {entry.job} ({stage})" for stage, entry in active.items()]
    if len(found) < len(jobs) and others:
        first = jobs[len(found)].stage
        raise ConfigError(
            f"{' and '.join(others)} trains in {run_dir} or waits to, and a job of stage {first} would meet it there: "
            f"wait for its end, cancel it with scancel, or write another {RUN_DIR_KEY}."
        )
    return found


def _others(queue: Queue, run_dir: Path, own: Collection[str]) -> list[str]:
    """Returns the job and the process that train in the folder and are not in `own`, for messages. Raises NotNow for
    the job of another user or cluster, which squeue does not list."""
    others = dict[str, str]()
    holder = read_folder_job(run_dir)
    if holder and holder.state != "ended" and not is_done(run_dir, holder.stage):
        state = queue.state(holder.job, cluster=holder.cluster, user=holder.user)
        if state == NOT_KNOWN:
            raise NotNow(
                f"job {holder.job} of {holder.user} on the cluster {holder.cluster} holds {run_dir}, and squeue says "
                f"nothing of it here: write another {RUN_DIR_KEY}, or remove {run_dir}/slurm/job.json if it is gone."
            )
        if state not in ENDED:
            others[holder.job] = f"job {holder.job} ({holder.stage})"
    process = lock_holder(run_dir) if is_held(run_dir) else None
    # The node of a job that has ended is dead, and keeps its lock on NFS until it is up again.
    if process and not (process.job and queue.state(process.job) in ENDED):
        others.setdefault(process.job, str(process))
    return [name for job, name in others.items() if job not in own]


def difference(old: Sequence[str], new: Sequence[str]) -> str:
    """Returns which overrides two jobs do not share, for people, without that of the run's folder; empty if they share
    all."""
    has, wanted = (
        Counter(text for text in overrides if not text.startswith(f"{RUN_DIR_KEY}="))
        for overrides in (old, new)
    )
    if has == wanted:
        return ""
    theirs, mine = (" ".join(words.elements()) or "nothing" for words in (has - wanted, wanted - has))
    return f"it has {theirs} where this command has {mine}"


def queue_note(job: Job, submitted: Submission) -> str:
    """Returns what to say of a job that has been submitted earlier and is in the queue."""
    if submitted.options is None or tuple(submitted.options) == job.options:
        return " (in the queue already)"
    return f" (in the queue already, with other options of sbatch: {shlex.join(submitted.options) or 'none'})"


def submit(
    jobs: Sequence[Job], run_dir: Path, environment: Mapping[str, str], in_queue: Mapping[str, str]
) -> Iterable[tuple[Job, str]]:
    """Submits the jobs that are not in the queue (stage -> id) and yields (job, id) of all. Raises ConfigError with
    sbatch's message if it refuses one."""
    parent_id = ""
    for job in jobs:
        job_id = in_queue.get(job.stage, "")
        if not job_id:
            command = job.after(parent_id)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ConfigError(f"sbatch refuses {job.launcher}: {' '.join(done.stderr.split())}")
            if not (given := re.search(r"^(\d+)(;.*)?$", done.stdout, re.MULTILINE)):  # a site may print more
                raise ConfigError(
                    f"sbatch gives no number for {job.launcher}: {' '.join(done.stdout.split())}"
                )
            job_id = given[1]
            note_submission(
                run_dir, job.stage, Submission(job=job_id, options=job.options, overrides=job.overrides)
            )
        yield job, job_id
        parent_id = job_id


def blocked_jobs(queue: Queue, ids: Iterable[str]) -> dict[str, str]:
    """Returns job -> squeue's word for why it waits, of those that may wait for ever."""
    waiting = (queue.jobs[job_id] for job_id in ids if job_id in queue.jobs)
    return {
        job.job: job.reason for job in waiting if job.state == "PENDING" and job.reason not in USUAL_REASONS
    }


def site_environment(root: Path) -> dict[str, str]:
    """Returns this process's environment with the variables of slurm/site.env, or of $SITE_ENV, which bash reads as for
    the launchers, and shows what that writes on stderr. Raises ConfigError for a file that no job could read."""
    command = ["bash", "-c", "source slurm/site.sh >&2 && env --null"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    said, _, problem = done.stderr.rpartition("error: ") if done.returncode else (done.stderr, "", "")
    sys.stderr.write(said)
    if done.returncode:
        raise ConfigError(" ".join(problem.split()))
    pairs = (pair.partition("=") for pair in done.stdout.split("\0") if pair)
    return {name: value for name, _, value in pairs}
