"""Writes findings as JSON for launchers, and formats them as a table for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_prorl.doctor.finding import Finding, Severity
from nemo_prorl.doctor.waiting import wait_until
from nemo_prorl.run_folder.storage import read_json, replace_text

MARGIN = 32
"""Columns for name and status, which stand before the finding."""
GPUS = "GPUs"
"""Name of the check that finds them; without any, a run trains on the CPU."""
NOTABLE = (Severity.failure, Severity.warning)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """The findings of one node."""

    node: str
    findings: Sequence[Finding]
    is_complete: bool = True
    """Whether it includes the test of the network, which comes last."""

    @property
    def verdict(self) -> str:
        """The result of all checks: "ok", "failure" (of the node), or "mistake" (of the user)."""
        if any(item.is_mistake for item in self.findings):
            return "mistake"
        return "failure" if any(item.status is Severity.failure for item in self.findings) else "ok"

    @property
    def sentence(self) -> str:
        """The first failure as one line, the user's mistakes before others; empty if there is none."""
        failures = [item for item in self.findings if item.status is Severity.failure]
        first = next((item for item in failures if item.is_mistake), failures[0] if failures else None)
        return "" if first is None else f"{first.name}: {first.found}: {first.advice}"


def file_of(folder: Path, node: str) -> Path:
    """Returns the file of a node's report."""
    return folder / f"{node}.json"


def write_report(file: Path, report: NodeReport) -> None:
    """Writes the report atomically. Launchers read `verdict` and `sentence`, each from its own line."""
    record = {"verdict": report.verdict, "sentence": report.sentence, **asdict(report)}
    replace_text(file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def read_report(file: Path) -> NodeReport | None:
    """Returns the report in a file, or None if there is none yet."""
    if not (record := read_json(file)):
        return None
    findings = [Finding(**{**item, "status": Severity(item["status"])}) for item in record["findings"]]
    return NodeReport(node=record["node"], findings=findings, is_complete=record["is_complete"])


def wait_for_reports(
    folder: Path, nodes: Sequence[str], *, timeout_s: float, complete: bool
) -> dict[str, NodeReport | None]:
    """Returns node -> report, with None for a node that has not written one in time. complete: wait until the reports
    include the test of the network."""
    found: dict[str, NodeReport | None] = dict.fromkeys(nodes)

    def are_there() -> bool:
        for node in nodes:
            report = read_report(file_of(folder, node))
            found[node] = report if report and (report.is_complete or not complete) else None
        return all(found.values())

    wait_until(are_there, timeout_s)
    return found


def table(findings: Sequence[Finding]) -> list[str]:
    """Returns the lines of a node's table, to be folded where they are printed."""
    lines = []
    for item in findings:
        lines.append(f"{item.name:<20}{item.status.value:<{MARGIN - 20}}{item.found}")
        if item.advice and item.status in NOTABLE:
            lines.append(f"{'':<{MARGIN}}-> {item.advice}")
    return lines


def nodes_table(reports: dict[str, NodeReport | None]) -> list[str]:
    """Returns the lines of a table of several nodes: all findings of the first node that answered, then the warnings
    and failures of the others that are not literally the same."""
    first = next((report for report in reports.values() if report is not None), None)
    if first is None:
        return [f"{node}: did not answer" for node in reports]
    lines = [f"{first.node}:", *table(first.findings)]
    for node, report in reports.items():
        if report is None:
            lines += [f"{node}: did not answer"]
        elif report is not first:
            own = [item for item in report.findings if item.status in NOTABLE and item not in first.findings]
            lines += [f"{node}:" + ("" if own else " the same"), *table(own)]
    return lines


def summary(findings: Sequence[Finding]) -> str:
    """Returns the last line of a table: what is wrong, or for which device everything is fine, and what was not
    checked."""
    counts = Counter(item.status for item in findings)
    present = [(status.value, counts[status]) for status in NOTABLE if counts[status]]
    if present:
        bad = [f"{count} {name}{'s' * (count > 1)}" for name, count in present]
        return f"{' and '.join(bad)}; every other check is fine."
    devices = [
        "the CPU" if item.status is Severity.not_applicable else "GPUs"
        for item in findings
        if item.name == GPUS
    ]
    left_out = [item.name for item in findings if item.status is Severity.not_applicable]
    what = f" for training on {devices[0]}" if devices else ""
    return f"Every check is fine{what}" + (f"; not checked: {', '.join(left_out)}." if left_out else ".")
