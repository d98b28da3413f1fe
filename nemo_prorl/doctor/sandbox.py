"""Checks whether the reward service on this node can grade the domains of the data."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nemo_prorl.doctor.children import facts_of_child, parse_facts, start_child
from nemo_prorl.doctor.report import Finding, failure, ok, wait_until, warning
from nemo_prorl.reward_sources.service import environment

CHECK = "python -m reward check --json"
TIMEOUT_S = 60.0
ELSEWHERE_S = 180.0
"""Time limit of a check in a container, which may have to be unpacked first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFacts:
    """What CHECK prints, as one line of JSON."""

    refusal: str = ""
    """Why there is no result; empty if there is one."""
    sandbox: str = ""
    """Level of the sandbox; "none" means that code cannot be graded."""
    reasons: list[str] = field(default_factory=list)
    """Why each stronger level cannot be used, with the attack that succeeded."""
    domains: list[str] = field(default_factory=list)
    """Domains that the service can grade."""
    version: str = ""


def judge_sandbox(facts: RewardFacts, *, domains: Collection[str], has_functions: bool) -> Finding:
    """Returns whether all of the data can be graded. domains: those of the data. has_functions: whether the run has
    reward functions, which may grade domains that the service does not know."""
    name = "sandbox"
    if facts.refusal:
        return failure(name, facts.refusal, "install what requirements/ names for this machine (make setup)")
    why = "; ".join(facts.reasons)
    if facts.sandbox == "none" and "code" in domains:
        advice = "use a kernel with user namespaces or Landlock (docs/cluster.md), or data without code"
        return failure(name, f"the data has code, which cannot be graded here: {why}", advice)
    if (unknown := sorted({*domains} - {*facts.domains})) and not has_functions:
        advice = "install graders for them (docs/custom_rewards.md), or remove their rows"
        return failure(name, f"the data has domains that no grader knows: {', '.join(unknown)}", advice)
    if facts.sandbox == "none":
        return warning(name, f"none, so code cannot be graded here: {why}", "needed only for data with code")
    return ok(name, f"level {facts.sandbox}: no attack succeeded" + (f" ({why})" if why else ""))


def begin_reward_check(report: Path | None) -> Callable[[], RewardFacts]:
    """Starts CHECK on this machine, unless the launcher runs it in another container and writes the result to `report`.
    Returns a function that waits for the facts."""
    if report is not None:
        return partial(_wait_for_report, report)
    return partial(
        facts_of_child,
        start_child("reward", "check", "--json", environment=environment()),
        RewardFacts,
        limit_s=TIMEOUT_S,
        hung=f"`{CHECK}` did not end within {TIMEOUT_S:g} s",
        failed=f"`{CHECK}` ended with code {{code}} ({{last}})",
    )


def _wait_for_report(file: Path) -> RewardFacts:
    if not wait_until(file.exists, ELSEWHERE_S):
        return RewardFacts(refusal=f"`{CHECK}` has not written {file} within {ELSEWHERE_S:g} s")
    text = file.read_text(encoding="utf-8", errors="replace")
    printed = text.strip()[-200:] or "nothing"
    return parse_facts(text, RewardFacts, refusal=f"`{CHECK}` printed {printed}")
