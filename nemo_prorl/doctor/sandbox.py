"""What the reward service of this node can grade, against what the data needs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_prorl.doctor.finding import Finding, failure, ok, warning

CODE = "code"
"""The domain that needs a sandbox."""
WEAKNESSES = {
    "landlock": ", in which programs see that other processes and files exist",
    "namespaces-only": ", in which read-only mounts alone protect files",
}
"""What the weaker levels of the sandbox lack (reward/sandbox/__init__.py)."""
TIMEOUT_S = 60.0
ELSEWHERE_S = 180.0
"""For a check in a container, which may have to be unpacked first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFacts:
    """What `python -m reward check` says."""

    refusal: str = ""
    """Why it said nothing; empty otherwise."""
    level: str = ""
    """Of the sandbox; "none": code cannot be graded."""
    reasons: list[str] = field(default_factory=list)
    """A sentence on every stronger level that does not hold, with the attack that came through."""
    domains: list[str] = field(default_factory=list)
    packages: Mapping[str, str] = field(default_factory=dict)


def judge_sandbox(facts: RewardFacts, *, domains: Collection[str], others_grade: bool) -> Finding:
    """`domains`: of the data; `others_grade`: functions grade, too, and the domains that the service does not know."""
    name = "sandbox"
    if facts.refusal:
        advice = "name the interpreter of the service's environment (REWARD_PYTHON, reward.python), or run `make setup`"
        return failure(name, facts.refusal, advice)
    why = "; ".join(facts.reasons)
    if facts.level == "none" and CODE in domains:
        advice = "use a kernel with user namespaces or Landlock (docs/cluster.md), or data without code"
        return failure(name, f"the data has code, which cannot be graded here: {why}", advice)
    if (unknown := sorted({*domains} - {*facts.domains})) and not others_grade:
        advice = "install the graders that know them (docs/custom_rewards.md), or take such rows out"
        return failure(name, f"the data has domains that nobody grades: {', '.join(unknown)}", advice)
    if facts.level == "none":
        return warning(name, f"none, so code cannot be graded here: {why}", "needed only for data with code")
    weakness = WEAKNESSES.get(facts.level, "")
    return ok(name, f"level {facts.level}{weakness}: no attack came through" + (f" ({why})" if why else ""))


def parse_reward_report(text: str) -> RewardFacts:
    """Of the JSON that `python -m reward check` prints."""
    try:
        report: dict[str, Any] = json.loads(text)
        return RewardFacts(
            level=report["sandbox"],
            reasons=report["reasons"],
            domains=report["domains"],
            packages=report["packages"],
        )
    except (ValueError, KeyError, TypeError):
        return RewardFacts(refusal=f"`python -m reward check` said {text.strip()[-200:] or 'nothing'}")


def start_reward_check(python: str) -> subprocess.Popen[str] | None:
    """In the service's environment; None where there is no such interpreter."""
    if not Path(python).exists():
        return None
    dropped = {"LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH"}  # of the trainer's environment
    environment = {key: value for key, value in os.environ.items() if key not in dropped}
    command = [python, "-m", "reward", "check"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish_reward_check(python: str, process: subprocess.Popen[str] | None) -> RewardFacts:
    """Waits for what `start_reward_check` has started."""
    if process is None:
        return RewardFacts(refusal=f"the interpreter {python} does not exist")
    try:
        said, complaint = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return RewardFacts(refusal=f"`{python} -m reward check` did not end within {TIMEOUT_S:g} s")
    return parse_reward_report(said) if process.returncode == 0 else parse_reward_report(complaint)


def wait_for_reward_report(file: Path, timeout_s: float = ELSEWHERE_S) -> RewardFacts:
    """Of a check that somebody else has started, in a container of its own, and that writes to `file`."""
    deadline = time.monotonic() + timeout_s
    while not file.exists():
        if time.monotonic() > deadline:
            return RewardFacts(
                refusal=f"`python -m reward check` has not written {file} within {timeout_s:g} s"
            )
        time.sleep(0.1)
    return parse_reward_report(file.read_text(encoding="utf-8", errors="replace"))
