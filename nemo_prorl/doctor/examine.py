"""Runs the checks of one node. The slow ones, torch and the sandbox, run concurrently in child processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.cluster.plan.fit import model_of
from nemo_prorl.cluster.scale.memory import checkpoint_bytes
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.data.own import prompt_file
from nemo_prorl.data.rows import domains_of
from nemo_prorl.doctor import folders, gpu_health, gpus, infiniband, limits, packages, sandbox
from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, refused
from nemo_prorl.doctor.waiting import facts_of_child, start_child
from nemo_prorl.engines.environment import num_allocated_gpus

GROUPS = ("gpus", "infiniband", "limits", "sandbox", "folders", "packages", "start", "network")
"""Values of --only, in the order of the table."""
GPU_TIMEOUT_S = 120.0
_NOT_READ = {
    True: "no model was named, and the one of conf/train.yaml does not exist here: write model.path=FOLDER",
    False: "only the first node reads model and data",
}
"""Why the check of the start was skipped, on the first node and on the others."""
REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The position of this process among those of `doctor`, of which every node has one."""

    node: str
    index: int = 0
    num_nodes: int = 1
    num_ranks: int = 1
    """Number of ranks of the job that is to be started."""
    num_allocated: int = 0
    """GPUs of this node that Slurm has allocated to the job."""


def place_of_this_process() -> Place:
    """Reads the position from the variables of Slurm's step and of the launcher (WORLD_SIZE)."""
    has_step = "SLURM_STEP_NUM_TASKS" in os.environ
    return Place(
        node=os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        index=int(os.environ["SLURM_PROCID"]) if has_step else 0,
        num_nodes=int(os.environ["SLURM_STEP_NUM_TASKS"]) if has_step else 1,
        num_ranks=int(os.environ.get("WORLD_SIZE", "1")),
        num_allocated=num_allocated_gpus(),
    )


def names_of_nodes(place: Place) -> list[str]:
    """Returns the nodes of this step in the order of its tasks; none if there are several and Slurm's tools are
    missing, as in a container."""
    if place.num_nodes == 1:
        return [place.node]
    if shutil.which("scontrol") is None:
        return []
    command = ["scontrol", "show", "hostnames", os.environ.get("SLURM_STEP_NODELIST", "")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.split() if done.returncode == 0 else []


def examine_node(
    config: RunConfig,
    place: Place,
    *,
    groups: Collection[str],
    check_start: Callable[[], list[str]],
    domains: Callable[[], set[str]],
    reward_report: Path | None,
) -> list[Finding]:
    """Returns the findings of all checks in `groups` except the network's.

    check_start: describes configuration, model and data in lines, or raises ConfigError. domains: returns the domains
    of the data. reward_report: the file to which the launcher writes the output of `python -m reward check --json`;
    None to run it here.
    """
    findings: list[Finding] = []
    reward, python = config.reward, str(config.reward.interpreter)
    gpu_probe = None
    if "gpus" in groups:
        gpu_probe = start_child("nemo_prorl.doctor.gpus", config.trainer.device.name)
    has_own_servers = not reward.urls and (reward_report is not None or not reward.discovery_dir)
    asks_service = "sandbox" in groups and reward.asks_service and has_own_servers
    reward_check = sandbox.start_reward_check(python) if asks_service and not reward_report else None
    fabric = infiniband.read_infiniband()
    if "infiniband" in groups:
        findings += [infiniband.judge_infiniband(fabric)]
    if "limits" in groups:
        findings += limits.judge_limits(
            limits.read_limits(),
            num_ranks=place.num_ranks,
            num_gpus=place.num_allocated,
            has_infiniband=bool(fabric.ports),
        )
    if "folders" in groups:
        findings += _folders(config)
    if "packages" in groups:
        findings += [_packages("packages", packages.lock_of_trainer(), packages.installed_versions())]
    if "start" in groups:
        findings += [_start(check_start, is_first=place.index == 0)]
    if asks_service:
        if reward_report is not None:
            facts = sandbox.wait_for_reward_report(reward_report)
        else:
            facts = sandbox.finish_reward_check(python, reward_check)
        findings += [sandbox.judge_sandbox(facts, domains=domains(), has_functions=bool(reward.function))]
        if "packages" in groups and facts.packages:
            findings += [_packages("reward packages", "reward.txt", packages.by_name(facts.packages))]
    elif "sandbox" in groups:
        findings += [not_applicable("sandbox", "this run starts no reward service on its nodes")]
    if gpu_probe is not None:
        gpu_facts = facts_of_child(
            gpu_probe,
            gpus.GpuFacts,
            limit_s=GPU_TIMEOUT_S,
            hung=f"torch did not find the GPUs within {GPU_TIMEOUT_S:g} s: look at the output of nvidia-smi.",
            failed="the search for GPUs with torch failed ({last}): repair this environment.",
        )
        about_gpus = gpus.judge_gpus(gpu_facts, num_allocated=place.num_allocated)
        if gpu_facts.gpus or place.num_allocated:
            about_gpus.append(gpu_health.judge_gpu_health(gpu_health.read_gpu_health()))
        findings = [*about_gpus, *findings]
    return findings


def known_domains(config: RunConfig) -> set[str]:
    """Returns the domains of the data, without files that cannot be read, which the check of the start reports."""
    domains, run_dir = set[str](), Path(config.exp_manager.explicit_log_dir)
    needs_answer = config.reward.asks_service
    with tempfile.TemporaryDirectory(prefix="nemo_prorl-") as aside:
        for split, names in (("train", config.data.train), ("validation", config.data.validation)):
            for name in names:
                with suppress(ConfigError):
                    file, _ = prompt_file(
                        name, run_dir, split=split, needs_answer=needs_answer, into=Path(aside)
                    )
                    domains |= domains_of([str(file)])
    return domains


def _start(check_start: Callable[[], list[str]], *, is_first: bool) -> Finding:
    """Checks whether a run could start. A refusal on the first node is the user's mistake; on another node something is
    missing there, such as a mount."""
    name = "start"
    try:
        lines = check_start()
    except ConfigError as error:
        return refused(name, error, is_mistake=is_first)
    except OSError as error:
        advice = "check that this node has the file system mounted"
        return failure(name, f"a file cannot be read ({error})", advice)
    return ok(name, " ".join(lines)) if lines else not_applicable(name, _NOT_READ[is_first])


def _packages(name: str, lock: str, installed: dict[str, str]) -> Finding:
    locked = packages.locked_versions(REQUIREMENTS / lock)
    return packages.judge_packages(name, f"requirements/{lock}", locked, installed)


def _folders(config: RunConfig) -> list[Finding]:
    run, params = config.exp_manager, config.exp_manager.checkpoint_callback_params
    size = 0.0
    if run.create_checkpoint_callback:
        try:
            model = model_of(config)
        except ConfigError:
            model = None  # the check of the start reports it
        size = checkpoint_bytes(model, config) if model else 0.0
    caches = [folders.probe_folder(path, 1 << 20) for path in folders.cache_folders(os.environ)]
    folder = folders.probe_folder(Path(run.explicit_log_dir))
    num_kept = params.save_last_k + params.save_top_k + 1
    return [
        folders.judge_caches(caches),
        folders.judge_run_folder(folder, checkpoint_bytes=size, num_kept=num_kept),
    ]
