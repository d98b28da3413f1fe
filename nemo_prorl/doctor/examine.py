"""Runs the checks of one node. The slow ones, torch and the sandbox, run concurrently in child processes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.cluster.plan.fit import model_of
from nemo_prorl.cluster.scale.memory import checkpoint_bytes
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.data.own import Conversion
from nemo_prorl.data.rows import domains_of
from nemo_prorl.doctor import gpus, machine, sandbox
from nemo_prorl.doctor.children import facts_of_child, start_child
from nemo_prorl.doctor.network import infiniband_gbit_s
from nemo_prorl.doctor.report import Finding, failure, not_applicable, ok, refused
from nemo_prorl.engines.environment import num_allocated_gpus

GROUPS = ("gpus", "limits", "sandbox", "folders", "start", "network")
"""Values of --only, in the order of the table."""
GPU_TIMEOUT_S = 120.0


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
    command = ["scontrol", "show", "hostnames", os.environ.get("SLURM_STEP_NODELIST", "")]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()
    return []


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
    reward = config.reward
    has_own_servers = not reward.urls and (reward_report is not None or not reward.discovery_dir)
    asks_service = "sandbox" in groups and reward.asks_service and has_own_servers
    # Both take seconds, and run while the others do.
    reward_facts = sandbox.begin_reward_check(reward_report) if asks_service else None
    gpu_probe = (
        start_child("nemo_prorl.doctor.gpus", config.trainer.device.name) if "gpus" in groups else None
    )
    if "limits" in groups:
        findings += machine.judge_limits(
            machine.read_limits(),
            num_ranks=place.num_ranks,
            num_gpus=place.num_allocated,
            has_infiniband=bool(infiniband_gbit_s()),
        )
    if "folders" in groups:
        findings += [_run_folder(config)]
    if "start" in groups:
        findings += [_start(check_start, is_first=place.index == 0)]
    if reward_facts is not None:
        has_functions = bool(reward.function)
        findings += [sandbox.judge_sandbox(reward_facts(), domains=domains(), has_functions=has_functions)]
    elif "sandbox" in groups:
        findings += [not_applicable("sandbox", "this run starts no reward service on its nodes")]
    if gpu_probe is not None:
        facts = facts_of_child(
            gpu_probe,
            gpus.GpuFacts,
            limit_s=GPU_TIMEOUT_S,
            hung=f"torch did not find the GPUs within {GPU_TIMEOUT_S:g} s: look at the output of nvidia-smi.",
            failed="the search for GPUs with torch failed ({last}): repair this environment.",
        )
        findings = [*gpus.judge_gpus(facts, num_allocated=place.num_allocated), *findings]
    return findings


def known_domains(config: RunConfig) -> set[str]:
    """Returns the domains of the data, without files that cannot be read, which the check of the start reports."""
    domains, run_dir = set[str](), Path(config.exp_manager.explicit_log_dir)
    needs_answer = config.reward.asks_service
    with tempfile.TemporaryDirectory(prefix="nemo_prorl-") as aside:
        conversion = Conversion(folder=run_dir, needs_answer=needs_answer, into=Path(aside))
        for split, names in (("train", config.data.train), ("validation", config.data.validation)):
            for name in names:
                with suppress(ConfigError):
                    file, _ = conversion.file(name, split)
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
    no_model = (
        "no model was named, and the one of conf/train.yaml does not exist here: write model.path=FOLDER"
    )
    skipped = no_model if is_first else "only the first node reads model and data"
    return ok(name, " ".join(lines)) if lines else not_applicable(name, skipped)


def _run_folder(config: RunConfig) -> Finding:
    run, params = config.exp_manager, config.exp_manager.checkpoint_callback_params
    size = 0.0
    if run.create_checkpoint_callback:
        with suppress(ConfigError):  # the check of the start reports it
            model = model_of(config)
            size = checkpoint_bytes(model, config) if model else 0.0
    num_kept = params.save_last_k + params.save_top_k + 1
    folder = machine.probe_folder(Path(run.explicit_log_dir))
    return machine.judge_run_folder(folder, checkpoint_bytes=size, num_kept=num_kept)
