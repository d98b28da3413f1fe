"""Submits a chain of stages to Slurm, each waiting for the one before; continues an earlier submission."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import CONF_DIR, Parser, parse_overrides
from nemo_prorl.config import ConfigError

if TYPE_CHECKING:
    from nemo_prorl.cluster.plan.chain import Chain
    from nemo_prorl.cluster.submit import Job

RUN_DIR_KEY = "exp_manager.explicit_log_dir"

DESCRIPTION = """\
stage=NAME  submits the chain up to this stage (default: the papers' eight runs)
KEY=VALUE   any option of `train --help`, for every stage

Stages that are done or already in the queue are skipped, so the command can be repeated at any time."""


def main(arguments: Sequence[str]) -> int:
    """Submits the jobs, or prints them with --dry-run, and returns exit code 0."""
    parser = Parser("submit", __doc__, DESCRIPTION)
    parser.flag("--dry-run", "prints what is missing and the commands of sbatch instead; needs no Slurm")
    parser.flag("--full", "with --dry-run, also prints every script that would be submitted")
    parser.add_argument(
        "--sbatch",
        default="",
        metavar="OPTIONS",
        help="options for sbatch that replace the launchers', such as --sbatch='--nodes=2 --time=8:00:00'",
    )
    given = parse_overrides(parser, arguments)
    if given.full and not given.dry_run:
        raise ConfigError("--full prints scripts: write --dry-run too.")
    root = CONF_DIR.parent
    if not (root / "launchers").is_dir():
        raise ConfigError(
            "submit needs the launchers of a checkout: clone the repository, and submit from there."
        )
    if Path.cwd() != root:
        raise ConfigError(
            f"the launchers use paths relative to the root of the repository: cd {root}, and submit from there."
        )
    from nemo_prorl.cluster import submit
    from nemo_prorl.cluster.plan.chain import missing_files

    try:
        options = shlex.split(given.sbatch)
    except ValueError as error:
        what = f"--sbatch {given.sbatch!r} cannot be read ({error})"
        raise ConfigError(f"{what}: close its quotation marks.") from None
    overrides = given.overrides
    is_placed = any(text.startswith(f"{RUN_DIR_KEY}=") for text in overrides)
    if not is_placed and (run_dir := submit.site_environment(root).get("RUN_DIR")):
        overrides.append(f"{RUN_DIR_KEY}={run_dir}")
        is_placed = True
    chain = _checked_chain(given.config_name, overrides, options)
    run_dir = chain[0].exp_manager.explicit_log_dir
    arguments = [] if given.config_name == "train" else ["--config-name", given.config_name]
    arguments += [text for text in overrides if not text.startswith("stage=")]
    arguments += [] if is_placed else [f"{RUN_DIR_KEY}={run_dir}"]
    jobs = submit.plan_jobs(chain, run_dir=run_dir, arguments=arguments, sbatch_options=options, root=root)
    submissions = submit.Submissions(Path(run_dir))
    if not jobs:
        print(f"every stage is done in {run_dir}: nothing to submit.")
    elif given.dry_run:
        text = submit.dry_run_text(jobs, submissions, missing_files(_of_jobs(chain, jobs)))
        show([text, *([submit.scripts_text(jobs, root)] if given.full else [])], exact=True)
    else:
        submit.check_slurm()
        # The first job needs its model and data now; those of later stages may be missing.
        if missing := missing_files(_of_jobs(chain, jobs[:1])):
            raise ConfigError(
                f"stage {jobs[0].stage} needs {next(iter(missing))}, which does not exist yet ({len(missing)} missing "
                "in all): `python -m nemo_prorl plan` prints the command that makes each."
            )
        for job, job_id, is_old in submit.submit(jobs, submissions, root):
            print(f"{job.stage:<8} job {job_id}{' (in the queue already)' if is_old else ''}", flush=True)
        print(f"logs: {submissions.folder}/    queue: squeue --me    stop: scancel JOB")
    return 0


def _checked_chain(config_name: str, overrides: list[str], options: list[str]) -> Chain:
    """Returns the chain, checked as by `plan` on the nodes that each launcher requests. Raises ConfigError."""
    from nemo_prorl.cluster import submit
    from nemo_prorl.cluster.plan.chain import asked_chain
    from nemo_prorl.cluster.plan.fit import Cluster, check_handovers, check_stage, model_of

    root = CONF_DIR.parent
    chain, _ = asked_chain(config_name, overrides, CONF_DIR)
    model = model_of(chain[0])
    for config in chain:
        launcher = root / submit.find_launcher(config.stage.name, root)
        num_nodes, gpus_per_node = submit.cluster_size(launcher, options)
        check_stage(config, Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node), model)
    check_handovers(chain)
    return chain


def _of_jobs(chain: Chain, jobs: Sequence[Job]) -> Chain:
    names = {job.stage for job in jobs}
    return tuple(config for config in chain if config.stage.name in names)
