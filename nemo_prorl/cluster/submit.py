"""Submits a chain of stages as Slurm jobs, each waiting for its parent's. Runs only sbatch and squeue.

A stage's job is its launcher, launchers/STAGE_*.sh, with the user's overrides as arguments. Nodes and time are set in
the launcher, account and partition in slurm/site.env.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.cluster.plan.chain import OF_LAST_STAGE, Chain
from nemo_prorl.cluster.slurm_queue import job_state
from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.markers import is_done
from nemo_prorl.run_folder.storage import replace_text

SHARED_SCRIPTS = ("slurm/common.sh", "slurm/rank.sh", "slurm/check_reward.sh", "slurm/reward.sh")
"""Scripts that every launcher uses, beside the Python of slurm/job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The Slurm job of one stage."""

    stage: str
    parent: str
    """Stage whose job has to succeed first; empty if there is none to wait for."""
    launcher: Path
    command: tuple[str, ...]
    """sbatch and its arguments, without the dependency on the parent's job."""

    def after(self, parent_id: str) -> list[str]:
        """Returns the whole command. If the parent's job fails, Slurm cancels this one instead of keeping it
        waiting."""
        sbatch, *arguments = self.command
        waiting = [f"--dependency=afterok:{parent_id}", "--kill-on-invalid-dep=yes"] if parent_id else []
        return [sbatch, *waiting, *arguments]


class Submissions:
    """The ids of a run's jobs by stage, in RUN/slurm/jobs.json, so that a repeated `submit` skips queued stages."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / "slurm"
        self._path = self.folder / "jobs.json"
        self._ids: dict[str, str] = {}
        if self._path.is_file():
            self._ids = json.loads(self._path.read_text(encoding="utf-8"))

    def note(self, stage: str, job_id: str) -> None:
        """Records a submission at once, so that it is known even if the next stage's sbatch fails."""
        self._ids[stage] = job_id
        replace_text(self._path, json.dumps(self._ids, indent=1) + "\n")

    def living(self, stage: str) -> str:
        """Returns the id of the stage's job if it waits or runs, else an empty string."""
        job_id = self._ids.get(stage, "")
        return job_id if job_id and job_state(job_id) else ""


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


def cluster_size(launcher: Path, sbatch_options: Sequence[str]) -> tuple[int, int]:
    """Returns the nodes, and GPUs per node, that a launcher requests, unless `sbatch_options` replace them."""
    headers = re.findall(r"^#SBATCH\s+(--\S+)", launcher.read_text(encoding="utf-8"), re.MULTILINE)
    options = "\n".join([*headers, *sbatch_options])
    asked = dict(re.findall(r"--(nodes|gpus-per-node)=(?:\w+:)?(\d+)", options))
    return int(asked.get("nodes", 1)), int(asked.get("gpus-per-node", 1))


def plan_jobs(
    chain: Chain,
    *,
    run_dir: str,
    arguments: Sequence[str],
    sbatch_options: Sequence[str],
    root: Path,
) -> list[Job]:
    """Returns the jobs of the stages that are not done. `arguments` go to the launchers, `sbatch_options` to sbatch."""
    jobs: list[Job] = []
    common = [text for text in arguments if not text.startswith(OF_LAST_STAGE)]
    for config in chain:
        stage = config.stage.name
        if is_done(Path(run_dir), stage):
            continue
        launcher = find_launcher(stage, root)
        log = f"--output={run_dir}/slurm/%x-%j.out"
        command = ("sbatch", "--parsable", log, *sbatch_options, str(launcher))
        command += tuple(arguments if config is chain[-1] else common)
        parent = config.stage.parent if jobs else ""
        jobs.append(Job(stage=stage, parent=parent, launcher=launcher, command=command))
    return jobs


def dry_run_text(jobs: Sequence[Job], submissions: Submissions, missing: Mapping[str, str]) -> str:
    """Returns a shell script that would submit the same jobs. Comments before it name the files that are `missing`
    (path -> what makes it)."""
    lines = []
    if missing:
        lines += ["# Missing, and what makes each; the first job that needs one of them would fail:"]
        lines += [f"#   {path}\n#       {maker}" for path, maker in missing.items()] + [""]
    lines += [f"mkdir -p {shlex.quote(str(submissions.folder))}  # sbatch does not make the folder of a log"]
    for job in jobs:
        command = shlex.join(job.after(f"@{_variable(job.parent)}" if job.parent else ""))
        command = command.replace("afterok:@", "afterok:$")  # shlex would quote a $
        for word in (job.launcher, *(["--parsable"] if job.parent else [])):
            command = command.replace(f" {word}", f" \\\n    {word}")
        lines.append(f"{_variable(job.stage)}=$({command})")
    return "\n".join(lines)


def scripts_text(jobs: Sequence[Job], root: Path) -> str:
    """Returns every script that the jobs run, one after the other, each below a line with its name."""
    lines: list[str] = []
    for script in dict.fromkeys([*(str(job.launcher) for job in jobs), *SHARED_SCRIPTS]):
        text = (root / script).read_text(encoding="utf-8").rstrip()
        lines += ["", f"# ---- {script} ".ljust(110, "-"), text]
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


def submit(jobs: Sequence[Job], submissions: Submissions, root: Path) -> Iterable[tuple[Job, str, bool]]:
    """Submits the jobs and yields (job, id, whether it was in the queue already). Raises ConfigError with sbatch's
    message if it refuses one."""
    submissions.folder.mkdir(parents=True, exist_ok=True)  # sbatch does not make the folder of a log
    environment = site_environment(root)
    parent_id = ""
    for job in jobs:
        job_id = submissions.living(job.stage)
        is_old = bool(job_id)
        if not is_old:
            command = job.after(parent_id)
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ConfigError(f"sbatch refuses {job.launcher}: {' '.join(done.stderr.split())}")
            job_id = done.stdout.strip().partition(";")[0]
            submissions.note(job.stage, job_id)
        yield job, job_id, is_old
        parent_id = job_id


def site_environment(root: Path) -> dict[str, str]:
    """Returns this process's environment with the variables of slurm/site.env, or of $SITE_ENV, which bash reads as in
    the launchers. Raises ConfigError if SITE_ENV does not exist or bash cannot read the file."""
    named = os.environ.get("SITE_ENV", "")
    site = Path(named or root / "slurm" / "site.env")
    if named and not site.exists():
        raise ConfigError(
            f"SITE_ENV={named} does not exist: write the path of a file such as slurm/site.env."
        )
    if not site.exists():
        return dict(os.environ)
    script = 'set -o allexport && source "$1" >&2 && env --null'
    command = ["bash", "-c", script, "bash", str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{site} cannot be read: {' '.join(done.stderr.split())}")
    pairs = (pair.partition("=") for pair in done.stdout.split("\0") if pair)
    return {name: value for name, _, value in pairs}
