"""What a client knows of one server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class KnownServer:
    """By its own reports, and by what has become of requests."""

    url: str
    version: str = ""
    sandbox: str = ""
    num_workers: int = 1
    outstanding: int = 0
    up: bool = False
    reason: str = "was not reached yet"
    """Why it is not up."""
    is_hopeless: bool = False
    """It lacks a domain that the client needs for as long as it lives: a grader that it does not have, or a sandbox."""


def never_grades(domain: str, state: Mapping[str, Any] | None, sandbox: str) -> str:
    """Why a server will never grade a domain, by the state of the domain and the sandbox in its report; empty if it
    may."""
    if state is None:
        return f"does not know the domain {domain}"
    if not state["ready"] and sandbox == "none" and "age_s" not in state:
        return f"refuses {domain} ({state.get('reason', 'no sandbox')})"
    return ""
