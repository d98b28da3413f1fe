"""Checks what works on this machine, or on every node of a job, and says how to correct the rest."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser, check_functions, check_model, composed, parse_overrides
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.doctor import network, report
from nemo_prorl.doctor.report import Finding, Severity, check_allowed, not_applicable, refused, with_allowed
from nemo_prorl.engines import environment
from nemo_prorl.run_folder.storage import replace_text

if TYPE_CHECKING:
    from nemo_prorl.doctor.examine import Place

DESCRIPTION = """\
KEY=VALUE   any option of `train --help`; with model.path and data.train, also checks model and data as `train \
--check` does, disk space for a checkpoint, and the sandbox for the domains of the data

Exit code: 0, 1 if a check fails, 2 for a mistake in the configuration. On several nodes start one task per node \
(srun --nodes=4 --ntasks-per-node=1 ...): every node writes FOLDER/NODE.json, the first prints all of them, and with \
MASTER_ADDR and MASTER_PORT the network between the nodes is measured. The launchers do this as their first step."""

WAIT_S = 240.0
"""How long the first node waits for the findings of the others."""
LOCAL_WAIT_S = 60.0
"""How long each node waits for the others before the network is measured."""
DOMAINS_FILE = "domains"
"""File in the folder of the findings with the domains of the data, one per line; empty if the run needs no reward
service."""


def main(arguments: Sequence[str]) -> int:
    """Runs the checks, prints the findings, and returns the exit code: 1 if a check fails, 2 for a mistake in the
    configuration."""
    from nemo_prorl.doctor.examine import GROUPS, names_of_nodes, place_of_this_process

    parser = Parser("doctor", __doc__, DESCRIPTION)
    parser.path(
        "--folder", "FOLDER", "where each node writes its findings (default: RUN/doctor if there are several)"
    )
    parser.option("--nodes", "A,B,...", "names of the nodes, in the order of the tasks", default="")
    parser.option(
        "--allow",
        "CHECK",
        "lets the job start although this check fails, such as network or open-files",
        action="append",
        default=[],
    )
    parser.add_argument(
        "--only", action="append", choices=GROUPS, help="runs only this group of checks (default: all)"
    )
    parser.flag(
        "--reward-elsewhere",
        "reads the check of the reward service from FOLDER/NODE.reward, which another step writes",
    )
    given = parse_overrides(parser, arguments)
    place = place_of_this_process()
    if given.reward_elsewhere and not given.folder:
        raise ConfigError("--reward-elsewhere reads FOLDER/NODE.reward: write --folder FOLDER too.")
    try:
        check_allowed(given.allow)
        config = composed(given.config_name, given.overrides)
    except ConfigError as error:
        if given.folder is not None:  # a launcher has to know that this is no fault of the node
            mistake = report.NodeReport(node=place.node, findings=[refused("start", error, is_mistake=True)])
            report.write_report(given.folder, mistake)
        if place.index:
            return 2  # the first node prints the error
        raise
    given.nodes = given.nodes.split(",") if given.nodes else names_of_nodes(place)
    if given.nodes and len(given.nodes) != place.num_nodes:
        raise ConfigError(
            f"--nodes names {len(given.nodes)} node(s), but this step has {place.num_nodes} task(s): write one each."
        )
    if given.folder is None and place.num_nodes > 1:
        given.folder = Path(config.exp_manager.explicit_log_dir) / "doctor"
    return _examine(config, place, given)


def _examine(config: RunConfig, place: Place, given: argparse.Namespace) -> int:
    """Runs the checks of this node and returns its exit code; the first node also prints the findings of all."""
    from nemo_prorl.doctor.examine import GROUPS, examine_node

    with suppress(ConfigError):  # the check of the GPUs reports it
        environment.choose_device(config.trainer.device)
    environment.prepare()
    groups = given.only or GROUPS
    if given.folder is not None:
        (given.folder / f"{place.node}.json").unlink(missing_ok=True)  # from an earlier `doctor`
        if place.index == 0:
            (given.folder / DOMAINS_FILE).unlink(missing_ok=True)
    can_meet = place.num_nodes > 1 and {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    found = examine_node(
        config,
        place,
        groups=groups,
        check_start=lambda: _check_start(config, place, given),
        domains=lambda: _domains(config, place, given),
        reward_report=given.folder / f"{place.node}.reward" if given.reward_elsewhere else None,
    )
    findings = with_allowed(found, given.allow)
    if given.folder is not None:
        findings = _share(config, place, findings, given, meets="network" in groups and can_meet)
    if place.num_nodes == 1:
        show([*report.table(findings), "", report.summary(findings)])
    elif place.index == 0 and given.nodes:
        reports = report.wait_for_reports(given.folder, given.nodes, timeout_s=WAIT_S, complete=True)
        show(report.nodes_table(reports))
    elif place.index == 0:
        show([f"every node writes its findings to {given.folder}/NODE.json; --nodes A,B,... shows them here"])
    if any(item.is_mistake for item in findings):
        return 2
    return int(any(item.status is Severity.failure for item in findings))


def _check_start(config: RunConfig, place: Place, given: argparse.Namespace) -> list[str]:
    """Returns sentences on model, data and starting point from the first node; the others only check that the files
    exist. Raises ConfigError."""
    from nemo_prorl.commands.starting import check_inputs, describe_start
    from nemo_prorl.config.layout import world_size_from_environment

    names_a_run = given.config_name != "train" or any(
        text.startswith(("model.", "data.", "stage")) for text in given.overrides
    )
    if not names_a_run and not Path(config.model.path).exists():
        return []  # only the machine is checked
    check_inputs(config, world_size_from_environment())
    if place.index:
        return []
    check_model(config)
    with tempfile.TemporaryDirectory(prefix="nemo_prorl-") as folder:
        check_functions(config, into=Path(folder))
        lines, _ = describe_start(config, Path(folder))
        return lines


def _share(
    config: RunConfig,
    place: Place,
    findings: list[Finding],
    given: argparse.Namespace,
    *,
    meets: bool,
) -> list[Finding]:
    """Writes the findings of this node for the others and for the launcher. Returns them with the network's, which is
    measured with `meets` once all nodes have written theirs."""
    if place.index == 0:
        _domains(config, place, given)
    report.write_report(
        given.folder, report.NodeReport(node=place.node, findings=findings, is_complete=False)
    )
    if meets:
        reports = report.wait_for_reports(given.folder, given.nodes, timeout_s=LOCAL_WAIT_S, complete=False)
        if silent := [node for node, answer in reports.items() if answer is None]:
            found = [not_applicable("network", f"not measured: {', '.join(silent)} did not answer")]
        else:
            names = given.nodes or [f"node {index}" for index in range(place.num_nodes)]
            facts = network.measure_network(place.index, place.num_nodes)
            found = network.judge_network(facts, names=names, infiniband=network.infiniband_gbit_s())
        findings = [*findings, *with_allowed(found, given.allow)]
    report.write_report(given.folder, report.NodeReport(node=place.node, findings=findings))
    return findings


def _domains(config: RunConfig, place: Place, given: argparse.Namespace) -> set[str]:
    """Returns the domains of the data that the reward service has to grade. The first node reads the data and writes
    them for the launcher and the other nodes, which return an empty set if that takes too long."""
    from nemo_prorl.doctor.examine import known_domains

    if place.index == 0:
        found = known_domains(config) if config.reward.asks_service else set()
        if given.folder is not None:
            replace_text(given.folder / DOMAINS_FILE, "".join(f"{name}\n" for name in sorted(found)))
        return found
    file = given.folder / DOMAINS_FILE
    if not report.wait_until(file.is_file, WAIT_S):
        return set()
    return set(file.read_text(encoding="utf-8").split())
