"""Submits a chain of stages to Slurm, each waiting for the one before; continues an earlier submission."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_prorl.cluster import submit
from nemo_prorl.cluster.allocation import cluster_of
from nemo_prorl.cluster.plan.chain import Chain, asked_chain, missing_files
from nemo_prorl.cluster.plan.fit import check_handovers, check_stage, model_of
from nemo_prorl.cluster.slurm_queue import ask_queue
from nemo_prorl.cluster.submit import RUN_DIR_KEY, Job, NotNow
from nemo_prorl.commands.ending import say, show
from nemo_prorl.commands.parsing import CONF_DIR, Parser, parse_overrides
from nemo_prorl.config import ConfigError
from nemo_prorl.config.compose import quoted
from nemo_prorl.run_folder.lock import alone_at
from nemo_prorl.run_folder.slurm_jobs import read_submissions, submissions_file
from nemo_prorl.run_folder.storage import check_writable

DESCRIPTION = """\
stage=NAME  submits the chain up to this stage (default: the papers' eight runs)
KEY=VALUE   any option of `train --help`, for every stage

Stages that are done or already in the queue are skipped, so the command can be repeated at any time."""


def main(arguments: Sequence[str]) -> int:
    """Submits the jobs, or prints them with --dry-run, and returns exit code 0."""
    parser = Parser("submit", __doc__, DESCRIPTION)
    parser.flag("--dry-run", "prints what is missing and the commands of sbatch instead; needs no Slurm")
    parser.option(
        "--sbatch",
        "OPTIONS",
        "options for sbatch that replace the launchers', such as --sbatch='--nodes=2 --time=8:00:00'",
        default="",
    )
    given = parse_overrides(parser, arguments)
    root = CONF_DIR.parent
    if not (root / "launchers").is_dir():
        raise ConfigError(
            "submit needs the launchers of a checkout: clone the repository, and submit from there."
        )
    if Path.cwd() != root:
        raise ConfigError(
            f"the launchers use paths relative to the root of the repository: cd {root}, and submit from there."
        )
    try:
        options = shlex.split(given.sbatch)
    except ValueError as error:
        what = f"--sbatch {given.sbatch!r} cannot be read ({error})"
        raise ConfigError(f"{what}: close its quotation marks.") from None
    environment = submit.site_environment(root)
    site_dir = environment.get("RUN_DIR", "")
    chain = _checked_chain(given.config_name, given.overrides, site_dir, options, environment)
    folder = chain[0].exp_manager.explicit_log_dir
    run_dir = Path(folder)
    arguments = [] if given.config_name == "train" else ["--config-name", given.config_name]
    arguments += [text for text in given.overrides if not text.startswith("stage=") and not _is_run_dir(text)]
    arguments += [f"{RUN_DIR_KEY}={folder}"]
    jobs = submit.plan_jobs(chain, run_dir=folder, arguments=arguments, sbatch_options=options, root=root)
    if not jobs:
        show([f"every stage is done in {run_dir}: nothing to submit."])
        return 0
    if given.dry_run:
        text = _dry_run(jobs, run_dir, missing_files(_of_jobs(chain, jobs)))
        show([text], exact=True)
        return 0
    submit.check_slurm()
    # The first job needs its model and data now; those of later stages may be missing.
    if missing := missing_files(_of_jobs(chain, jobs[:1])):
        raise ConfigError(
            f"stage {jobs[0].stage} needs {next(iter(missing))}, which does not exist yet ({len(missing)} missing "
            "in all): `python -m nemo_prorl plan` prints the command that makes each."
        )
    try:
        _submit(jobs, run_dir, environment)
    except NotNow as error:
        return say(f"{error} Nothing was submitted.", 1)
    return 0


def _dry_run(jobs: Sequence[Job], run_dir: Path, missing: Mapping[str, str]) -> str:
    """Returns a script that submits what the command would submit."""
    doubt, in_queue = "", dict[str, str]()
    try:
        in_queue = submit.find_in_queue(jobs, ask_queue(), run_dir)
    except NotNow as error:  # on a laptop nothing has been submitted, and there is no doubt
        doubt = str(error) if run_dir.exists() else ""
    return submit.dry_run_text(jobs, run_dir, missing, in_queue, doubt)


def _submit(jobs: Sequence[Job], run_dir: Path, environment: Mapping[str, str]) -> None:
    """Submits what is not in the queue and prints every job. Raises as `submit.find_in_queue` and `submit.submit`."""
    logs = submissions_file(run_dir).parent
    check_writable(f"{RUN_DIR_KEY}={run_dir}", logs)
    ids = []
    lock = logs / "submitting"
    refusal = f"another submit is at work in {logs}: wait for its end, or remove {lock} if it is gone."
    with alone_at(lock, refusal, wait_s=60.0):
        in_queue = submit.find_in_queue(jobs, ask_queue(tries=3), run_dir)
        before = read_submissions(run_dir)
        for job, job_id in submit.submit(jobs, run_dir, environment, in_queue):
            note = submit.queue_note(job, before[job.stage]) if job.stage in in_queue else ""
            print(f"{job.stage:<8} job {job_id}{note}", flush=True)
            ids.append(job_id)
    print(f"logs: {logs}/    queue: squeue --me    stop: scancel JOB")
    time.sleep(submit.LOOK_S)
    for job_id, reason in submit.blocked_jobs(ask_queue(timeout_s=5.0), ids).items():
        advice = f"`scontrol show job {job_id}` says what it asks for. If the reason stays, cancel the job and change"
        advice += " --time, --nodes, partition or account."
        if "held" in reason.lower():  # JobHeldAdmin, "job requeued in held state"
            advice = f"`scontrol release {job_id}` lets it start; if refused, ask the administrator."
        show([f"job {job_id} does not start: {reason}. {advice}"])


def _checked_chain(
    config_name: str,
    overrides: Sequence[str],
    site_dir: str,
    options: Sequence[str],
    environment: Mapping[str, str],
) -> Chain:
    """Returns the chain, checked as by `plan` on the nodes that each launcher gets. site_dir: the run's folder unless
    the overrides name one. Raises ConfigError."""
    root = CONF_DIR.parent
    if site_dir and not any(map(_is_run_dir, overrides)):
        overrides = [*overrides, f"{RUN_DIR_KEY}={quoted(site_dir)}"]
    chain, _ = asked_chain(config_name, overrides, CONF_DIR)
    folder = chain[0].exp_manager.explicit_log_dir
    # Launchers refuse such a folder, or sbatch reads it otherwise.
    if folder != folder.strip() or re.search(r"[\"'$\\\n]", folder):
        raise ConfigError(
            f"{RUN_DIR_KEY}={folder} cannot be the folder of a job: write one without quotes, $ and backslashes, and "
            "without spaces at its ends."
        )
    model = model_of(chain[0])
    for config in chain:
        launcher = root / submit.find_launcher(config.stage.name, root)
        check_stage(config, cluster_of(launcher.read_text(encoding="utf-8"), environment, options), model)
    check_handovers(chain)
    return chain


def _is_run_dir(override: str) -> bool:
    return override.lstrip("+").startswith(f"{RUN_DIR_KEY}=")


def _of_jobs(chain: Chain, jobs: Sequence[Job]) -> Chain:
    names = {job.stage for job in jobs}
    return tuple(config for config in chain if config.stage.name in names)
