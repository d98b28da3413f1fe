"""Runs the checks of one node. What takes long runs at one time: torch and the sandbox in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.data.own import prompt_file
from nemo_prorl.data.rows import domains_of
from nemo_prorl.doctor import folders, gpu_health, gpus, infiniband, limits, packages, sandbox
from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, refused
from nemo_prorl.planning.fit import model_of
from nemo_prorl.planning.memory import checkpoint_bytes

GROUPS = ("gpus", "infiniband", "limits", "sandbox", "folders", "packages", "start", "network")
"""What --only can choose from, in the order of the table."""
GPU_TIMEOUT_S = 120.0
_NOT_READ = {
    True: "no model was named, and that of conf/train.yaml is not here: write model.path=FOLDER",
    False: "the first node reads model and data",
}
REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process among those of `doctor`, one a node."""

    node: str
    index: int = 0
    num_nodes: int = 1
    num_ranks: int = 1
    """Of the job that is to be started."""
    num_allocated: int = 0
    """GPUs of this node that Slurm has given to the job."""


def place_of_this_process() -> Place:
    """From the variables of Slurm's step, and of the launcher (WORLD_SIZE)."""
    has_step = "SLURM_STEP_NUM_TASKS" in os.environ
    return Place(
        node=os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        index=int(os.environ["SLURM_PROCID"]) if has_step else 0,
        num_nodes=int(os.environ["SLURM_STEP_NUM_TASKS"]) if has_step else 1,
        num_ranks=int(os.environ.get("WORLD_SIZE", "1")),
        num_allocated=int(os.environ.get("SLURM_GPUS_ON_NODE") or 0) if "SLURM_JOB_ID" in os.environ else 0,
    )


def names_of_nodes(place: Place) -> list[str]:
    """Of this step, in the order of its tasks; empty where there are several and Slurm's tools are not here to name
    them."""
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
    """All checks of `groups` but the network. `check_start` returns what can be said of configuration, model and data,
    or raises ConfigError; `domains` returns those of the data; `reward_report`: where somebody else writes what
    `python -m reward check` says."""
    findings: list[Finding] = []
    gpu_probe = _start_gpu_probe(config) if "gpus" in groups else None
    asks_service = "sandbox" in groups and _asks_own_service(config, reward_report)
    reward_check = (
        sandbox.start_reward_check(str(config.reward.interpreter))
        if asks_service and not reward_report
        else None
    )
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
        findings += [_packages("packages", "train.txt", packages.installed_versions())]
    if "start" in groups:
        findings += [_start(check_start, is_first=place.index == 0)]
    if asks_service:
        if reward_report is not None:
            facts = sandbox.wait_for_reward_report(reward_report)
        else:
            facts = sandbox.finish_reward_check(str(config.reward.interpreter), reward_check)
        others = bool(config.reward.function)
        findings += [sandbox.judge_sandbox(facts, domains=domains(), others_grade=others)]
        if "packages" in groups and facts.packages:
            findings += [_packages("reward packages", "reward.txt", packages.by_name(facts.packages))]
    elif "sandbox" in groups:
        findings += [not_applicable("sandbox", "this run asks no reward service that would run on its nodes")]
    if gpu_probe is not None:
        gpu_facts = _finish_gpu_probe(gpu_probe)
        about_gpus = gpus.judge_gpus(gpu_facts, num_allocated=place.num_allocated)
        if gpu_facts.gpus or place.num_allocated:
            about_gpus.append(gpu_health.judge_gpu_health(gpu_health.read_gpu_health()))
        findings = [*about_gpus, *findings]
    return findings


def known_domains(config: RunConfig) -> set[str]:
    """Of the data; of files that cannot be read, nothing: the check of the start speaks of them."""
    domains, folder = set[str](), Path(config.exp_manager.explicit_log_dir)
    for split, names in (("train", config.data.train), ("validation", config.data.validation)):
        for name in names:
            with suppress(ConfigError):
                file, _ = prompt_file(name, folder, split=split, needs_answer=config.reward.asks_service)
                domains |= domains_of([str(file)])
    return domains


def _asks_own_service(config: RunConfig, reward_report: Path | None) -> bool:
    reward = config.reward
    return reward.asks_service and not reward.urls and (reward_report is not None or not reward.discovery_dir)


def _start(check_start: Callable[[], list[str]], *, is_first: bool) -> Finding:
    """A refusal by the first node is a mistake of the user; another node then lacks something of its own (a mount)."""
    name = "start"
    try:
        lines = check_start()
    except ConfigError as error:
        return refused(name, error, is_mistake=is_first)
    except OSError as error:
        return failure(
            name, f"a file cannot be read ({error})", "look whether this node sees the file system"
        )
    return ok(name, " ".join(lines)) if lines else not_applicable(name, _NOT_READ[is_first])


def _folders(config: RunConfig) -> list[Finding]:
    run, params = config.exp_manager, config.exp_manager.checkpoint_callback_params
    size = 0.0
    if run.create_checkpoint_callback:
        try:
            model = model_of(config)
        except ConfigError:
            model = None  # the check of the start speaks of it
        size = checkpoint_bytes(model, config) if model else 0.0
    return [
        folders.judge_caches(
            [folders.probe_folder(path, 1 << 20) for path in folders.cache_folders(os.environ)]
        ),
        folders.judge_run_folder(
            folders.probe_folder(Path(run.explicit_log_dir)),
            checkpoint_bytes=size,
            num_kept=params.save_last_k + params.save_top_k + 1,
        ),
    ]


def _packages(name: str, lock: str, installed: dict[str, str]) -> Finding:
    locked = packages.locked_versions(REQUIREMENTS / lock)
    return packages.judge_packages(name, f"requirements/{lock}", locked, installed)


def _start_gpu_probe(config: RunConfig) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nemo_prorl.doctor.gpus", config.trainer.device.name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish_gpu_probe(process: subprocess.Popen[str]) -> gpus.GpuFacts:
    try:
        said, complaint = process.communicate(timeout=GPU_TIMEOUT_S)
        return gpus.GpuFacts(**json.loads(said.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        process.kill()
        return gpus.GpuFacts(
            refusal=f"torch did not find the GPUs within {GPU_TIMEOUT_S:g} s: look at nvidia-smi."
        )
    except (IndexError, ValueError, TypeError):
        last = " ".join(complaint.split())[-200:]
        return gpus.GpuFacts(
            refusal=f"torch could not be asked for the GPUs ({last}): mend this environment."
        )
