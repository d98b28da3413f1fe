"""The result of one check."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from nemo_prorl.config import ConfigError

CHECKS = (
    "GPUs", "GPU health", "Transformer Engine", "InfiniBand", "open files", "locked memory", "processes",
    "shared memory", "sandbox", "caches", "run folder", "packages", "reward packages", "start", "network", "clocks",
)  # fmt: skip
"""Names of all findings, in the order of the table."""


class Severity(StrEnum):
    """The result of a check, from the least to the most important."""

    not_applicable = "n/a"
    ok = "ok"
    warning = "warning"
    failure = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Example: Finding(name="open files", status=Severity.failure, found="at most 256 per process", advice="raise it")
    """

    name: str
    status: Severity
    found: str
    advice: str = ""
    """What to do about a warning or a failure."""
    is_mistake: bool = False
    """Whether a failure is caused by what the user wrote, and not by this node."""


def ok(name: str, found: str) -> Finding:
    """Returns a finding that meets the needs of a run."""
    return Finding(name=name, status=Severity.ok, found=found)


def not_applicable(name: str, found: str) -> Finding:
    """Returns a finding of a check that was skipped; `found` says why."""
    return Finding(name=name, status=Severity.not_applicable, found=found)


def warning(name: str, found: str, advice: str) -> Finding:
    """Returns a finding with which a run would work, but slowly or at a risk."""
    return Finding(name=name, status=Severity.warning, found=found, advice=advice)


def failure(name: str, found: str, advice: str) -> Finding:
    """Returns a finding with which a run would stop, or waste its GPUs."""
    return Finding(name=name, status=Severity.failure, found=found, advice=advice)


def refused(name: str, error: Exception, *, is_mistake: bool = False) -> Finding:
    """Returns a failure made from an error with a message of the form "what is wrong: what to do"."""
    found, _, advice = str(error).partition(": ")
    return Finding(name=name, status=Severity.failure, found=found, advice=advice, is_mistake=is_mistake)


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
