"""Turns a chain of stages into Slurm jobs that wait for their parents'. Starts only sbatch and squeue.

A stage's job is its launcher, launchers/STAGE_*.sh, with the user's overrides as arguments. What stands in the launcher
(nodes, time) or in slurm/site.env (account, partition) is not repeated here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.slurm_queue import job_state
from nemo_prorl.storage import replace_text
from nemo_prorl.training.markers import is_done

SHARED_SCRIPTS = ("slurm/common.sh", "slurm/reward.sh")
"""Scripts that every launcher uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One stage as it will be submitted."""

    stage: str
    parent: str
    """Stage whose job has to succeed first; empty if there is none to wait for."""
    launcher: Path
    command: tuple[str, ...]
    """sbatch and its arguments, without the dependency on the parent's job."""

    def after(self, parent_id: str) -> list[str]:
        """The whole command. A job whose parent failed is cancelled instead of waiting for ever."""
        sbatch, *arguments = self.command
        waiting = [f"--dependency=afterok:{parent_id}", "--kill-on-invalid-dep=yes"] if parent_id else []
        return [sbatch, *waiting, *arguments]


class Submissions:
    """Which job trains which stage of a run: RUN/slurm/jobs.json. Makes a second `submit` go on with the first."""

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
        raise ConfigError(
            f"stage {stage} has several launchers, {', '.join(map(str, found))}: leave one of them."
        )
    return found[0].relative_to(root)


def cluster_size(launcher: Path, sbatch_options: Sequence[str]) -> tuple[int, int]:
    """Returns the nodes, and GPUs per node, that a launcher requests, unless `sbatch_options` replace them."""
    headers = re.findall(r"^#SBATCH\s+(--\S+)", launcher.read_text(encoding="utf-8"), re.MULTILINE)
    asked = dict(
        re.findall(r"--(nodes|gpus-per-node)=(?:\w+:)?(\d+)", "\n".join([*headers, *sbatch_options]))
    )
    return int(asked.get("nodes", 1)), int(asked.get("gpus-per-node", 1))


def plan_jobs(
    chain: Iterable[RunConfig],
    *,
    run_dir: str,
    arguments: Sequence[str],
    sbatch_options: Sequence[str],
    root: Path,
) -> list[Job]:
    """Returns the jobs of the stages that are not done. `arguments` go to the launchers, `sbatch_options` to sbatch."""
    jobs: list[Job] = []
    for config in chain:
        stage = config.stage.name
        if is_done(Path(run_dir), stage):
            continue
        launcher = find_launcher(stage, root)
        log = f"--output={run_dir}/slurm/%x-%j.out"
        command = ("sbatch", "--parsable", log, *sbatch_options, str(launcher), *arguments)
        parent = config.stage.parent if jobs else ""
        jobs.append(Job(stage=stage, parent=parent, launcher=launcher, command=command))
    return jobs


def dry_run_text(jobs: Sequence[Job], submissions: Submissions, root: Path) -> str:
    """Returns a shell script that would submit the same jobs, followed by every script that it submits."""
    lines = [f"mkdir -p {shlex.quote(str(submissions.folder))}  # sbatch does not make the folder of a log"]
    for job in jobs:
        command = shlex.join(job.after(f"@{_variable(job.parent)}" if job.parent else ""))
        command = command.replace("afterok:@", "afterok:$").replace(
            f" {job.launcher}", f" \\\n    {job.launcher}"
        )
        lines.append(f"{_variable(job.stage)}=$({command})")
    for script in dict.fromkeys([*(str(job.launcher) for job in jobs), *SHARED_SCRIPTS]):
        lines += [
            "",
            f"# ---- {script} ".ljust(110, "-"),
            (root / script).read_text(encoding="utf-8").rstrip(),
        ]
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
    """Each job with its id, and whether it was in the queue already. Raises ConfigError with what sbatch says."""
    submissions.folder.mkdir(parents=True, exist_ok=True)  # sbatch does not make the folder of a log
    environment = site_environment(root)
    parent_id = ""
    for job in jobs:
        job_id = submissions.living(job.stage)
        is_old = bool(job_id)
        if not is_old:
            done = subprocess.run(
                job.after(parent_id), cwd=root, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ConfigError(f"sbatch refuses {job.launcher}: {' '.join(done.stderr.split())}")
            job_id = done.stdout.strip().partition(";")[0]
            submissions.note(job.stage, job_id)
        yield job, job_id, is_old
        parent_id = job_id


def site_environment(root: Path) -> dict[str, str]:
    """Ours, with slurm/site.env on top, read as the launchers read it. Raises ConfigError for a SITE_ENV that is not
    there, and for one that bash cannot read."""
    named = os.environ.get("SITE_ENV", "")
    site = Path(named or root / "slurm" / "site.env")
    if not site.exists():
        if named:
            raise ConfigError(
                f"SITE_ENV={named} does not exist: write the path of a file such as slurm/site.env."
            )
        return dict(os.environ)
    script = 'set -o allexport && source "$1" >&2 && env --null'
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(site)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(f"{site} cannot be read: {' '.join(done.stderr.split())}")
    pairs = (pair.partition("=") for pair in done.stdout.split("\0") if pair)
    return {name: value for name, _, value in pairs}
