"""The result of one check."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class Status(StrEnum):
    """In the order of a reader's interest, the least first."""

    not_applicable = "n/a"
    ok = "ok"
    warning = "warning"
    failure = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Example: Finding(name="open files", status=Status.failure, found="at most 256 per process", advice="raise")"""

    name: str
    status: Status
    found: str
    advice: str = ""
    """What to do about a warning or a failure."""
    is_mistake: bool = False
    """A failure that lies in what the user wrote, and not in this node."""


def ok(name: str, found: str) -> Finding:
    """All is as a run needs it."""
    return Finding(name=name, status=Status.ok, found=found)


def not_applicable(name: str, found: str) -> Finding:
    """There is nothing to check here; `found` says why."""
    return Finding(name=name, status=Status.not_applicable, found=found)


def warning(name: str, found: str, advice: str) -> Finding:
    """A run would work, but slowly or with a risk."""
    return Finding(name=name, status=Status.warning, found=found, advice=advice)


def failure(name: str, found: str, advice: str) -> Finding:
    """A run would stop here, or waste its GPUs."""
    return Finding(name=name, status=Status.failure, found=found, advice=advice)


def refused(name: str, error: Exception, *, is_mistake: bool = False) -> Finding:
    """A failure from an error whose sentence has the form "what is wrong: what to do"."""
    found, _, advice = str(error).partition(": ")
    return Finding(name=name, status=Status.failure, found=found, advice=advice, is_mistake=is_mistake)


def with_allowed(findings: Iterable[Finding], allowed: Collection[str]) -> list[Finding]:
    """The failures of the checks in `allowed`, such as open-files, become warnings; mistakes stay failures."""
    return [
        replace(item, status=Status.warning)
        if item.name.replace(" ", "-") in allowed and item.status is Status.failure and not item.is_mistake
        else item
        for item in findings
    ]
