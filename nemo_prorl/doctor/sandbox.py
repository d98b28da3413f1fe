"""Checks whether the reward service on this node can grade the domains of the data."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_prorl.doctor.finding import Finding, failure, ok, warning
from nemo_prorl.doctor.waiting import wait_until
from nemo_prorl.reward_sources.service import environment

CODE = "code"
"""The domain that needs a sandbox."""
WEAKNESSES = {
    "landlock": ", in which programs see that other processes and files exist",
    "namespaces-only": ", in which read-only mounts alone protect files",
}
"""The weaknesses of the sandbox's lower levels (reward/sandbox/__init__.py)."""
TIMEOUT_S = 60.0
ELSEWHERE_S = 180.0
"""Time limit of a check in a container, which may have to be unpacked first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFacts:
    """The result of `python -m reward check --json`."""

    refusal: str = ""
    """Why there is no result; empty if there is one."""
    level: str = ""
    """Level of the sandbox; "none" means that code cannot be graded."""
    reasons: list[str] = field(default_factory=list)
    """Why each stronger level cannot be used, with the attack that succeeded."""
    domains: list[str] = field(default_factory=list)
    """Domains that the service can grade."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Installed packages of the service's environment: name -> version."""


def judge_sandbox(facts: RewardFacts, *, domains: Collection[str], has_functions: bool) -> Finding:
    """Returns whether all of the data can be graded. domains: those of the data. has_functions: whether the run has
    reward functions, which may grade domains that the service does not know."""
    name = "sandbox"
    if facts.refusal:
        advice = "name the interpreter of the service's environment (REWARD_PYTHON, reward.python), or run `make setup`"
        return failure(name, facts.refusal, advice)
    why = "; ".join(facts.reasons)
    if facts.level == "none" and CODE in domains:
        advice = "use a kernel with user namespaces or Landlock (docs/cluster.md), or data without code"
        return failure(name, f"the data has code, which cannot be graded here: {why}", advice)
    if (unknown := sorted({*domains} - {*facts.domains})) and not has_functions:
        advice = "install graders for them (docs/custom_rewards.md), or remove their rows"
        return failure(name, f"the data has domains that no grader knows: {', '.join(unknown)}", advice)
    if facts.level == "none":
        return warning(name, f"none, so code cannot be graded here: {why}", "needed only for data with code")
    weakness = WEAKNESSES.get(facts.level, "")
    return ok(name, f"level {facts.level}{weakness}: no attack succeeded" + (f" ({why})" if why else ""))


def parse_reward_report(text: str) -> RewardFacts:
    """Parses the JSON that `python -m reward check --json` prints. Other text becomes the refusal."""
    try:
        report: dict[str, Any] = json.loads(text)
        return RewardFacts(
            level=report["sandbox"],
            reasons=report["reasons"],
            domains=report["domains"],
            packages=report["packages"],
        )
    except (ValueError, KeyError, TypeError):
        return RewardFacts(
            refusal=f"`python -m reward check --json` printed {text.strip()[-200:] or 'nothing'}"
        )


def start_reward_check(python: str) -> subprocess.Popen[str] | None:
    """Starts `reward check` with the interpreter of the service's environment; None if that does not exist."""
    if not Path(python).exists():
        return None
    command, pipe = [python, "-m", "reward", "check", "--json"], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())


def finish_reward_check(python: str, process: subprocess.Popen[str] | None) -> RewardFacts:
    """Waits for the process of `start_reward_check` and returns its result."""
    if process is None:
        return RewardFacts(refusal=f"the interpreter {python} does not exist")
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return RewardFacts(refusal=f"`{python} -m reward check --json` did not end within {TIMEOUT_S:g} s")
    return parse_reward_report(output if process.returncode == 0 else errors)


def wait_for_reward_report(file: Path) -> RewardFacts:
    """Waits for the result of a check that the launcher runs in another container, and that it writes to `file`."""
    if not wait_until(file.exists, ELSEWHERE_S):
        return RewardFacts(
            refusal=f"`python -m reward check --json` has not written {file} within {ELSEWHERE_S:g} s"
        )
    return parse_reward_report(file.read_text(encoding="utf-8", errors="replace"))
