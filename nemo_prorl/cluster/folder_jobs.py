"""Finds the jobs of a run's folder in Slurm's queue, whoever has submitted them, and compares them with new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.cluster.slurm_queue import ENDED, NOT_KNOWN, Queue
from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.lock import is_held, lock_holder
from nemo_prorl.run_folder.markers import is_done
from nemo_prorl.run_folder.slurm_jobs import read_folder_job, read_submissions

RUN_DIR_KEY = "exp_manager.explicit_log_dir"


class NotNow(RuntimeError):
    """Nothing can be submitted at this moment; the same command may work in a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveJob:
    """A job that works in a run's folder, or waits to."""

    job: str
    stage: str
    """Empty if its launcher is not one of the stages that are asked for."""
    name: str
    """For messages."""
    state: str
    arguments: str = ""
    """Overrides of its launcher with spaces between them, without that of the folder."""


def find_jobs(
    queue: Queue, run_dir: Path, launchers: Mapping[Path, str], *, is_default: bool
) -> list[ActiveJob]:
    """Returns the jobs of stages that are not done. launchers: absolute path -> stage. is_default: whether this is the
    folder of a launcher that is told none.

    Raises NotNow if squeue cannot tell.
    """
    if queue.problem:
        raise NotNow(
            f"squeue does not answer ({queue.problem}), so whether a job trains in {run_dir} is not known: repeat the "
            "command when squeue works."
        )
    holder = read_folder_job(run_dir)
    if holder and holder.state != "ended" and not is_done(run_dir, holder.stage):
        state = queue.state(holder.job, cluster=holder.cluster, user=holder.user)
        if state == NOT_KNOWN:
            raise NotNow(
                f"job {holder.job} of {holder.user} on the cluster {holder.cluster} holds {run_dir}, and squeue says "
                f"nothing of it here: write another {RUN_DIR_KEY}, or remove {run_dir}/slurm/job.json if it is gone."
            )
    submitted = read_submissions(run_dir)
    stage_of = {entry.job: stage for stage, entry in submitted.items()}
    if holder:
        stage_of.setdefault(holder.job, holder.stage)
    found = []
    for queued in queue.jobs.values():
        script, _, arguments = queued.command.partition(" ")
        launcher = Path(queued.work_dir, script).resolve()
        folders = list(_folders(arguments, queued.work_dir, run_dir))
        is_of_launcher = launcher in launchers and is_default and RUN_DIR_KEY not in arguments
        # Slurm itself cancels within seconds a job whose parent has failed.
        is_over = queued.state in ENDED or queued.reason == "DependencyNeverSatisfied"
        stage = stage_of.get(queued.job) or launchers.get(launcher, "")
        if is_over or is_done(run_dir, stage) or not (queued.job in stage_of or folders or is_of_launcher):
            continue
        name = f"job {queued.job} ({stage or launcher.name})"
        arguments = arguments.replace(folders[0], "") if folders else arguments
        recorded = submitted.get(stage)
        if recorded and recorded.job == queued.job and recorded.overrides is not None:
            arguments = _without_folder(recorded.overrides)
        found.append(
            ActiveJob(job=queued.job, stage=stage, name=name, state=queued.state, arguments=arguments)
        )
    process = lock_holder(run_dir) if is_held(run_dir) else None
    if process is None or process.job in [one.job for one in found]:
        return found
    if process.job and queue.state(process.job) in ENDED:
        return found  # its node is dead, and keeps its lock on NFS until it is up again
    return [*found, ActiveJob(job=process.job, stage="", name=str(process), state="RUNNING")]


def match_jobs(found: Sequence[ActiveJob], new: Mapping[str, Sequence[str]], run_dir: Path) -> dict[str, str]:
    """Returns stage -> its job in the queue, of the stages in `new`, in their order with the launcher's arguments.

    Raises ConfigError if such a job has other overrides, or if a new job would meet another one in the folder; NotNow
    while one is ending.
    """
    matched: dict[str, ActiveJob] = {}
    others = []
    for one in sorted(found, key=lambda one: [*new].index(one.stage) if one.stage in new else -1):
        if one.stage not in new or one.stage in matched:
            others.append(one)
            continue
        if one.state == "COMPLETING":
            raise NotNow(f"{one.name} is leaving its nodes: repeat the command in a minute.")
        if different := difference(one.arguments, new[one.stage]):
            raise ConfigError(
                f"stage {one.stage} is in the queue as job {one.job} with other overrides: {different}. Cancel it "
                f"(`scancel {one.job}`) and submit again, or repeat its overrides."
            )
        matched[one.stage] = one
    stages = [*new]
    missing = [stage for stage in stages if stage not in matched]
    if missing:
        others += [matched[stage] for stage in stages[stages.index(missing[0]) :] if stage in matched]
    if missing and others:
        names = " and ".join(one.name for one in others)
        raise ConfigError(
            f"{names} trains in {run_dir} or waits to, and a job of stage {missing[0]} would meet it there: wait for "
            f"its end, cancel it with scancel, or write another {RUN_DIR_KEY}."
        )
    return {stage: matched[stage].job for stage in stages if stage in matched}


def difference(old: str, new: Sequence[str]) -> str:
    """Returns which words two jobs do not share, for people; empty if they share all. The run's folder is left out of
    `new`."""
    has, wanted = Counter(old.split()), Counter(_without_folder(new).split())
    if has == wanted:
        return ""
    has, wanted = has - wanted, wanted - has
    theirs, mine = (" ".join(words.elements()) or "nothing" for words in (has, wanted))
    return f"it has {theirs} where this command has {mine}"


def _without_folder(overrides: Sequence[str]) -> str:
    return " ".join(text for text in overrides if not text.startswith(f"{RUN_DIR_KEY}="))


def _folders(arguments: str, work_dir: str, run_dir: Path) -> Iterator[str]:
    """Yields the override in a job's arguments that names this folder; both may be spelt in any way. The arguments are
    one text, so a space may belong to the folder or end it."""
    _, key, rest = f" {arguments}".rpartition(f"{RUN_DIR_KEY}=")
    for end in [index for index, letter in enumerate(rest) if letter == " "] + [len(rest)]:
        folder = rest[:end]
        if key and folder and Path(work_dir, folder.strip("\"'")).resolve() == run_dir.resolve():
            yield f"{key}{folder}"
