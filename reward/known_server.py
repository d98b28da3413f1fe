"""What a client knows about one server: the server's own reports, and the outcomes of earlier requests."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from reward import frames
from reward.protocol import PROTOCOL_VERSION

PERIOD_S = 10.0
"""Seconds between two checks of what works, on average; a server grades its known answers every 12 s."""
SHORTEST_PAUSE_S = 0.5
"""Seconds before the second check of what does not work. The pause doubles with every check, up to PERIOD_S."""


class OtherProtocol(ValueError):
    """A reward server that this client must not use: it speaks another version of the protocol, or is older than the
    version numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A server's answer from /readyz, checked by `report_of`."""

    ready: bool
    version: str
    """The version of the graders."""
    sandbox: str
    num_workers: int
    domains: Mapping[str, Mapping[str, Any]]
    """The state of each domain by name: {"ready": bool, ...}."""


def report_of(data: bytes) -> Report:
    """Parses the body of an answer from /readyz.

    Raises OtherProtocol for a reward server with another protocol, and ValueError for anything else that is no report:
    a message from a proxy or another program is no reason to give up on a server."""
    body = frames.decode(data)
    if not isinstance(body, dict) or not ("protocol" in body or {"version", "domains"} <= body.keys()):
        raise ValueError("the answer is not the report of a reward server")
    protocol = body.get("protocol")
    if type(protocol) is not int or protocol != PROTOCOL_VERSION:
        spoken = "no numbered version" if protocol is None else f"version {protocol}"
        raise OtherProtocol(
            f"speaks {spoken} of the protocol and this client {PROTOCOL_VERSION}: install the same release of "
            "nemo-prorl-reward on both sides"
        )
    types = {"ready": bool, "version": str, "sandbox": str, "workers": int, "domains": dict}
    if wrong := [name for name, kind in types.items() if not isinstance(body.get(name), kind)]:
        raise ValueError(f"the report of the reward server lacks {wrong[0]}, or it has another type")
    domains = body["domains"]
    if not all(
        isinstance(state, dict) and isinstance(state.get("ready"), bool) for state in domains.values()
    ):
        raise ValueError("the report of the reward server does not say which domains are ready")
    return Report(
        ready=body["ready"],
        version=body["version"],
        sandbox=body["sandbox"],
        num_workers=max(1, body["workers"]),
        domains=domains,
    )


@dataclass(slots=True)
class Schedule:
    """When to check something again. A part of each pause is random, so that clients which started together spread
    their checks. Times are seconds of the client's event loop."""

    due_s: float = 0.0
    """When the next check is due; 0 before the first one."""
    pause_s: float = SHORTEST_PAUSE_S

    def plan_next(self, now: float, *, is_well: bool) -> None:
        """Plans the next check after one at time `now`. `is_well`: what was checked works."""
        pause_s = PERIOD_S if is_well else self.pause_s
        self.due_s = now + pause_s * random.uniform(0.75, 1.25)
        self.pause_s = SHORTEST_PAUSE_S if is_well else min(2.0 * pause_s, PERIOD_S)

    def check_soon(self, now: float) -> None:
        """Brings the next check forward, because something has happened."""
        self.due_s = min(self.due_s, now + SHORTEST_PAUSE_S * random.uniform(0.75, 1.25))


@dataclass(slots=True, eq=False)
class KnownServer:
    """One server: its address, its last report, and the outcomes of earlier requests."""

    url: str
    sandbox: str = ""
    num_workers: int = 1
    outstanding: int = 0
    up: bool = False
    reason: str = "was not reached yet"
    """Why it is not up."""
    is_hopeless: bool = False
    """Whether waiting for it is in vain: it lacks the grader, the sandbox or a module for a domain."""
    schedule: Schedule = field(default_factory=Schedule)
    """When the client asks it the next time whether it is ready."""

    @property
    def is_new(self) -> bool:
        """Whether the client has not asked it yet."""
        return self.schedule.due_s == 0.0

    def put_down(self, reason: str) -> None:
        """Stops sending requests to it until it reports that it is ready."""
        self.up, self.reason = False, reason

    def is_ready(self, report: Report, wanted: Collection[str]) -> bool:
        """Records a report. Returns whether the server can grade all the `wanted` domains now; if not, puts it down
        with the reason."""
        self.sandbox, self.num_workers = report.sandbox, report.num_workers
        never = [never_grades(name, report.domains.get(name), report.sandbox) for name in wanted]
        broken, late = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        for name, state in report.domains.items():
            if not state["ready"] and not never_grades(name, state, report.sandbox):
                reason = str(state.get("reason", "its known answers are not graded yet"))
                (broken if state.get("is_broken") else late)[reason].append(name)
        never += [f"cannot grade {', '.join(names)} ({reason})" for reason, names in broken.items()]
        self.is_hopeless = any(never)
        if self.is_hopeless:
            self.put_down(", ".join(filter(None, never)))
        elif not report.ready or any(not report.domains[name]["ready"] for name in wanted):
            parts = [f"{reason} ({', '.join(names)})" for reason, names in late.items()]
            self.put_down(f"is not ready: {', '.join(parts) or 'it does not say why'}")
        else:
            return True
        return False


def never_grades(domain: str, state: Mapping[str, Any] | None, sandbox: str) -> str:
    """Returns why a server will never grade a domain, from the domain's state and the sandbox in its report; empty if
    it may."""
    if state is None:
        return f"does not know the domain {domain}"
    if not state["ready"] and sandbox == "none" and "age_s" not in state:
        return f"refuses {domain} ({state.get('reason', 'no sandbox')})"
    return ""
