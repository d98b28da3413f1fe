"""Says what works on this machine, or on every node of a job, and what to do about the rest."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.commands.output import show
from nemo_prorl.commands.parsing import Parser, choose_device, composed, parse_overrides, prepare
from nemo_prorl.config import ConfigError, RunConfig

if TYPE_CHECKING:
    from nemo_prorl.doctor.examine import Place
    from nemo_prorl.doctor.finding import Finding

DESCRIPTION = """\
KEY=VALUE   any option of `train --help`; with model.path and data.train, model and data are checked as `train --check`
            does, disk space against a checkpoint's size, and the sandbox against the domains of the data

Exit code: 0, 1 when a check fails, 2 for a mistake in the configuration. On several nodes, one task a node
(srun --nodes=4 --ntasks-per-node=1 ...): every node writes FOLDER/NODE.json, the first one shows them all, and with
MASTER_ADDR and MASTER_PORT the network between the nodes is measured. The launchers do so as their first step."""

WAIT_S = 240.0
"""How long the first node waits for the findings of the others."""
LOCAL_WAIT_S = 60.0
"""How long each node waits for the others before the network is measured."""
DOMAINS_FILE = "domains"
"""In the folder of the findings: the domains of the data, one a line; empty where no reward service is needed."""


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    from nemo_prorl.doctor.examine import GROUPS, names_of_nodes, place_of_this_process

    parser = Parser("doctor", __doc__ or "", DESCRIPTION)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also writes the findings of this node to FILE"
    )
    parser.add_argument(
        "--folder", type=Path, help="where each node writes its findings (default: RUN/doctor)"
    )
    parser.add_argument(
        "--nodes", default="", metavar="A,B,...", help="names of the nodes, in the order of the tasks"
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="CHECK",
        help="lets the job start although this check fails, such as network or open-files",
    )
    parser.add_argument("--only", action="append", choices=GROUPS, help="only these checks (default: all)")
    parser.add_argument(
        "--reward-elsewhere",
        action="store_true",
        help="`python -m reward check` runs beside this, in a container of its own, and writes FOLDER/NODE.reward",
    )
    given = parse_overrides(parser, arguments)
    place = place_of_this_process()
    if given.reward_elsewhere and not given.folder:
        raise ConfigError("--reward-elsewhere needs --folder FOLDER, where the answer is looked for.")
    try:
        config = composed(given.config_name, given.overrides)
    except ConfigError:
        if place.index:
            return 2  # the first node says it
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
    """Exit code of this node; the first node also shows what all have found."""
    from nemo_prorl.doctor.examine import GROUPS, examine_node
    from nemo_prorl.doctor.finding import Status, with_allowed
    from nemo_prorl.doctor.report import file_of, summary, table
    from nemo_prorl.storage import replace_text

    with suppress(ConfigError):  # the check of the GPUs says it
        choose_device(config)
    prepare()
    groups = given.only or GROUPS
    if given.folder is not None:
        file_of(given.folder, place.node).unlink(missing_ok=True)  # an earlier doctor's
        if place.index == 0:
            (given.folder / DOMAINS_FILE).unlink(missing_ok=True)
    network = _start_network(place) if "network" in groups and given.folder is not None else None
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
        findings = _share(config, place, findings, given, network)
    if given.json is not None:
        replace_text(given.json, json.dumps([asdict(item) for item in findings], indent=1) + "\n")
    if place.num_nodes == 1:
        show([*table(findings), "", summary(findings)])
    elif place.index == 0:
        show(_all_nodes(given))
    if any(item.is_mistake for item in findings):
        return 2
    return int(any(item.status is Status.failure for item in findings))


def _check_start(config: RunConfig, place: Place, given: argparse.Namespace) -> list[str]:
    """The first node reads model and data; the others see whether their files are there."""
    from nemo_prorl.commands.starting import check_inputs_of, check_start

    if not _names_a_run(given) and not Path(config.model.path).exists():
        return []
    if place.index == 0:
        return check_start(config)
    check_inputs_of(config)
    return []


def _names_a_run(given: argparse.Namespace) -> bool:
    """Whether the user has said what to train; else only this machine is asked for."""
    named = any(text.startswith(("model.", "data.", "stage")) for text in given.overrides)
    return named or given.config_name != "train"


def _share(
    config: RunConfig,
    place: Place,
    findings: list[Finding],
    given: argparse.Namespace,
    network: subprocess.Popen[str] | None,
) -> list[Finding]:
    """Writes what this node has found for the others and for the launcher; then, if they all have, measures the network
    between them. Returns the findings with those of the network."""
    from nemo_prorl.doctor.finding import with_allowed
    from nemo_prorl.doctor.report import NodeReport, file_of, write_report

    if place.index == 0:
        _domains(config, place, given)
    mine = file_of(given.folder, place.node)
    write_report(mine, NodeReport(node=place.node, findings=findings, is_complete=False))
    if network is not None:
        findings = [*findings, *with_allowed(_network(network, place, given), given.allow)]
    write_report(mine, NodeReport(node=place.node, findings=findings))
    return findings


def _domains(config: RunConfig, place: Place, given: argparse.Namespace) -> set[str]:
    """Of the data, for the reward service. The first node reads the data, and writes what it finds for the launcher and
    for the other nodes; these know of none if that takes too long."""
    from nemo_prorl.doctor.examine import known_domains
    from nemo_prorl.storage import replace_text

    if place.index == 0:
        found = known_domains(config) if config.reward.asks_service else set()
        if given.folder is not None:
            replace_text(given.folder / DOMAINS_FILE, "".join(f"{name}\n" for name in sorted(found)))
        return found
    file, deadline = given.folder / DOMAINS_FILE, time.monotonic() + WAIT_S
    while not file.is_file():
        if time.monotonic() > deadline:
            return set()
        time.sleep(0.2)
    return set(file.read_text(encoding="utf-8").split())


def _start_network(place: Place) -> subprocess.Popen[str] | None:
    """None where there is one node, or nobody says where several would meet."""
    if place.num_nodes == 1 or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return None
    from nemo_prorl.doctor.network import start_network_probe

    return start_network_probe(place.index, place.num_nodes)


def _network(process: subprocess.Popen[str], place: Place, given: argparse.Namespace) -> list[Finding]:
    from nemo_prorl.doctor.finding import not_applicable
    from nemo_prorl.doctor.infiniband import read_infiniband
    from nemo_prorl.doctor.network import finish_network_probe, judge_network
    from nemo_prorl.doctor.report import wait_for_reports

    reports = wait_for_reports(given.folder, given.nodes, timeout_s=LOCAL_WAIT_S, complete=False)
    if silent := [node for node, report in reports.items() if report is None]:
        process.kill()
        return [not_applicable("network", f"not measured: {', '.join(silent)} did not answer")]
    names = given.nodes or [f"node {index}" for index in range(place.num_nodes)]
    fastest = read_infiniband().fastest_gbit_s
    return judge_network(finish_network_probe(process), names=names, fastest_gbit_s=fastest)


def _all_nodes(given: argparse.Namespace) -> list[str]:
    """The table of the first node."""
    from nemo_prorl.doctor.report import nodes_table, wait_for_reports

    if not given.nodes:
        return [
            f"every node writes its findings to {given.folder}/NODE.json; --nodes A,B,... shows them here"
        ]
    return nodes_table(wait_for_reports(given.folder, given.nodes, timeout_s=WAIT_S, complete=True))
