"""Findings as a file for programs, and as a table for people."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap

from nemo_prorl.doctor.finding import Finding, Status
from nemo_prorl.storage import replace_text

WIDTH = 100
MARGIN = 32
"""Columns before what was found: name and status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What doctor found on one node."""

    node: str
    findings: Sequence[Finding]
    is_complete: bool = True
    """False while the test of the network is still to come."""

    @property
    def verdict(self) -> str:
        """ "ok", "failure" (of the node), or "mistake" (of the user)."""
        if any(item.is_mistake for item in self.findings):
            return "mistake"
        return "failure" if any(item.status is Status.failure for item in self.findings) else "ok"

    @property
    def sentence(self) -> str:
        """The first failure, on one line; empty without one."""
        failures = [item for item in self.findings if item.status is Status.failure]
        first = next((item for item in failures if item.is_mistake), failures[0] if failures else None)
        return "" if first is None else f"{first.name}: {first.found}: {first.advice}"


def file_of(folder: Path, node: str) -> Path:
    """Where a node's report lies."""
    return folder / f"{node}.json"


def write_report(file: Path, report: NodeReport) -> None:
    """Written aside and renamed. Launchers read `verdict` and `sentence`, each on a line of its own."""
    record = {
        "node": report.node,
        "verdict": report.verdict,
        "sentence": report.sentence,
        "is_complete": report.is_complete,
        "findings": [asdict(item) for item in report.findings],
    }
    replace_text(file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def read_report(file: Path) -> NodeReport | None:
    """None where there is none yet."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    findings = [Finding(**{**item, "status": Status(item["status"])}) for item in record["findings"]]
    return NodeReport(node=record["node"], findings=findings, is_complete=record["is_complete"])


def wait_for_reports(
    folder: Path, nodes: Sequence[str], *, timeout_s: float, complete: bool
) -> dict[str, NodeReport | None]:
    """By node; None for one that has not answered in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = {node: read_report(file_of(folder, node)) for node in nodes}
        if all(report and (report.is_complete or not complete) for report in found.values()):
            return found
        if time.monotonic() > deadline:
            return {
                node: report if report and (report.is_complete or not complete) else None
                for node, report in found.items()
            }
        time.sleep(0.2)


def table(findings: Sequence[Finding]) -> list[str]:
    """One node's. Lines of at most WIDTH characters, where words allow it."""
    lines = []
    for item in findings:
        lines += _row(item.name, item.status, item.found)
        if item.advice and item.status in (Status.warning, Status.failure):
            lines += _wrapped(" " * MARGIN + "-> ", item.advice, indent=MARGIN + 3)
    return lines


def nodes_table(reports: dict[str, NodeReport | None]) -> list[str]:
    """Of several nodes: what the first node found in full, and of the others every warning and failure that the first
    one does not have in the same words."""
    first = next((report for report in reports.values() if report is not None), None)
    if first is None:
        return [f"{node}: did not answer" for node in reports]
    lines = [f"{first.node}:", *table(first.findings)]
    for node, report in reports.items():
        if report is None:
            lines += [f"{node}: did not answer"]
        elif report is not first:
            notable = (Status.warning, Status.failure)
            own = [item for item in report.findings if item.status in notable and item not in first.findings]
            lines += [f"{node}:" + ("" if own else " the same"), *table(own)]
    return lines


def summary(findings: Sequence[Finding]) -> str:
    """The last line of a table."""
    counts = [
        (sum(item.status is status for item in findings), status)
        for status in (Status.failure, Status.warning)
    ]
    said = [f"{count} {status.value}{'s' if count > 1 else ''}" for count, status in counts if count]
    return f"{' and '.join(said)}; every other check is fine." if said else "Every check is fine."


def _row(name: str, status: Status, found: str) -> list[str]:
    return _wrapped(f"{name:<20}{status.value:<{MARGIN - 20}}", found, indent=MARGIN)


def _wrapped(head: str, text: str, indent: int) -> list[str]:
    return wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * indent, break_on_hyphens=False) or [
        head
    ]
