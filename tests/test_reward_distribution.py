"""Tests the reward service as a distribution of its own: built as pip builds it, installed, and started from an empty
folder. The graders' libraries are those of .venv-reward; the service's own files are the installed ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward.client import RewardClient
from reward.protocol import PROTOCOL_VERSION, ScoreRequest
from tests.conftest import REWARD_PYTHON, ROOT

SOURCE = ROOT / "reward"
CLIENT_PACKAGES = {
    "aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "attrs", "cython_runtime", "frozenlist", "idna", "multidict",
    "propcache", "typing_extensions", "yarl",
}  # fmt: skip
"""aiohttp and its dependencies."""
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""
IMPORTS = """
import sys
sys.path.insert(0, sys.argv[1])
import reward, reward.client, reward.rows, pkgutil, reward.adapters
for module in pkgutil.iter_modules(reward.adapters.__path__, "reward.adapters."):
    __import__(module.name)
print(reward.__file__)
print(*sorted({name.partition(".")[0] for name in sys.modules if not name.startswith("_")}))
"""

AS_THE_SYSTEMS = """
import json, os, sys
sys.base_prefix = os.path.dirname(sys.argv[1])
sys.path.insert(0, sys.argv[1])
from reward.sandbox import runner
sys.path[1:] = [os.path.join(sys.base_prefix, "lib")]
runner.preload(sys.argv[1])
print(json.dumps(sys.path), file=sys.__stdout__)
"""
"""A program that does what the process does from which programs are forked, in an interpreter that has its packages
below its own prefix."""


def build(kind: str, source: Path, target: Path) -> Path:
    """Builds a wheel or a source distribution from a copy of the sources, with the build backend that pip calls."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{kind}", str(target)],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel from the source distribution, so that the test fails if either is incomplete."""
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(
        SOURCE, folder / "reward", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    archive = build("sdist", folder / "reward", folder)
    shutil.unpack_archive(archive, folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    return build("wheel", unpacked, folder)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which pip installed the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [
        REWARD_PYTHON,
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, "--target", str(folder), str(wheel)], check=True)
    return folder


@pytest.fixture(scope="module")
def environment(installed: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def service(
    installed: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, object]]:
    """Starts the installed command and returns its ready line."""
    folder = tmp_path_factory.mktemp("service")
    empty = folder / "empty"
    empty.mkdir()
    command = [str(installed / "bin/prorl-reward"), "serve", "--workers", "1"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, cwd=empty, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "log").read_text()
        yield json.loads(line)
        process.terminate()
    assert list(empty.iterdir()) == []


def test_the_wheel_has_every_module_and_data_file(wheel: Path) -> None:
    wanted = {
        f"reward/{path.relative_to(SOURCE).as_posix()}"
        for path in [*SOURCE.rglob("*.py"), *(SOURCE / "data").rglob("*")]
        if path.is_file() and path.relative_to(SOURCE).parts[0] != "build"
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("reward/")}
    assert names == wanted


def test_the_licence_is_the_repositorys() -> None:
    assert (SOURCE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.slow
def test_the_installed_command_serves_from_an_empty_folder(service: dict[str, object]) -> None:
    box = ScoreRequest(request_id="box", domain="math", response="\\boxed{4}", task={"answer": "4"})
    task = {"inputs": ["1\n"], "outputs": ["2\n"]}
    program = "```python\nprint(int(input()) + 1)\n```"
    code = ScoreRequest(request_id="code", domain="code", response=program, task=task)
    with RewardClient(urls=[str(service["url"])]) as client:
        client.wait_until_ready(120)
        assert client.submit(box).result().score == 1.0
        if service["sandbox"] != "none":
            assert client.submit(code).result().score == 1.0
    assert service["protocol"] == PROTOCOL_VERSION


def test_a_program_finds_no_installed_package_where_there_is_no_virtual_environment(installed: Path) -> None:
    done = subprocess.run(
        [REWARD_PYTHON, "-S", "-c", AS_THE_SYSTEMS, str(installed)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [str(installed.parent / "lib")]


def test_an_installed_service_has_the_version_of_its_sources(
    environment: dict[str, str], tmp_path: Path
) -> None:
    says = [REWARD_PYTHON, "-c", "from reward.version import version; print(version())"]
    installed, checkout = (
        subprocess.run(says, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout
        for folder, env in ((tmp_path, environment), (ROOT, dict(os.environ)))
    )
    assert installed == checkout


def test_the_client_and_the_adapters_need_aiohttp_only(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, str(installed)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    where, names = done.stdout.splitlines()
    assert where.startswith(str(installed))
    extra = set(names.split()) - sys.stdlib_module_names - CLIENT_PACKAGES - {"reward"}
    assert extra == set()


def test_without_the_graders_the_command_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reward", "serve"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert 'pip install "nemo-prorl-reward[server]"' in done.stderr
    assert done.stderr.count("\n") == 1
