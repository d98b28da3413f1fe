"""The results of checks: one finding, the file of a node that launchers read, and the table for people."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.storage import read_json, replace_text

CHECKS = (
    "GPUs", "Transformer Engine", "open files", "locked memory", "processes", "shared memory", "sandbox",
    "run folder", "start", "network", "clocks",
)  # fmt: skip
"""Names of all findings, in the order of the table."""
MARGIN = 32
"""Columns for name and status, which stand before the finding."""


class Severity(StrEnum):
    """The result of a check, from the least to the most important."""

    not_applicable = "n/a"
    ok = "ok"
    warning = "warning"
    failure = "failure"


NOTABLE = (Severity.failure, Severity.warning)
"""The results that need a reader's attention."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Example: Finding("open files", "at most 256 per process", "raise it", status=Severity.failure)
    """

    name: str
    found: str
    advice: str = ""
    """What to do about a warning or a failure."""
    status: Severity = field(kw_only=True)
    is_mistake: bool = field(default=False, kw_only=True)
    """Whether a failure is caused by what the user wrote, and not by this node."""


ok = partial(Finding, status=Severity.ok)
"""A finding that meets the needs of a run."""
not_applicable = partial(Finding, status=Severity.not_applicable)
"""A finding of a check that was skipped; `found` says why."""
warning = partial(Finding, status=Severity.warning)
"""A finding with which a run would work, but slowly or at a risk."""
failure = partial(Finding, status=Severity.failure)
"""A finding with which a run would stop, or waste its GPUs."""


def refused(name: str, error: Exception, *, is_mistake: bool = False) -> Finding:
    """Returns a failure made from an error with a message of the form "what is wrong: what to do"."""
    found, _, advice = str(error).partition(": ")
    return failure(name, found, advice, is_mistake=is_mistake)


def check_allowed(allowed: Iterable[str]) -> None:
    """Raises ConfigError for a name in `allowed` that no check has."""
    known = [name.replace(" ", "-") for name in CHECKS]
    for name in allowed:
        if name not in known:
            raise ConfigError(
                f"--allow (DOCTOR_ALLOW) names {name}, which is not a check: write one of {', '.join(known)}."
            )


def with_allowed(findings: Iterable[Finding], allowed: Collection[str]) -> list[Finding]:
    """Returns the findings with failures of the checks in `allowed`, such as open-files, turned into warnings. The
    user's mistakes stay failures."""
    return [
        replace(item, status=Severity.warning)
        if item.name.replace(" ", "-") in allowed and item.status is Severity.failure and not item.is_mistake
        else item
        for item in findings
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """The findings of one node."""

    node: str
    findings: Sequence[Finding]
    is_complete: bool = True
    """Whether it includes the test of the network, which comes last."""


def wait_until(is_there: Callable[[], bool], timeout_s: float) -> bool:
    """Returns True as soon as `is_there` does, and False after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not is_there():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def write_report(folder: Path, report: NodeReport) -> None:
    """Writes NODE.json atomically. Launchers read `verdict`, which is "ok", "failure" (of the node) or "mistake" (of
    the user), and `sentence`, the first failure; each from its own line."""
    verdict, sentence = "ok", ""
    if failures := [item for item in report.findings if item.status is Severity.failure]:
        first = min(failures, key=lambda item: not item.is_mistake)  # the user's mistakes before others
        verdict = "mistake" if first.is_mistake else "failure"
        sentence = f"{first.name}: {first.found}: {first.advice}"
    record = {"verdict": verdict, "sentence": sentence, **asdict(report)}
    replace_text(folder / f"{report.node}.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def read_report(folder: Path, node: str) -> NodeReport | None:
    """Returns the report of a node, or None if there is none yet."""
    if not (record := read_json(folder / f"{node}.json")):
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
            report = read_report(folder, node)
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
    """Returns the last line of a table: how much is wrong, and what was not checked."""
    counts = Counter(item.status for item in findings)
    bad = [f"{counts[kind]} {kind.value}{'s' * (counts[kind] > 1)}" for kind in NOTABLE if counts[kind]]
    if bad:
        return f"{' and '.join(bad)}; every other check is fine."
    left_out = [item.name for item in findings if item.status is Severity.not_applicable]
    return "Every check is fine" + (f"; not checked: {', '.join(left_out)}." if left_out else ".")
