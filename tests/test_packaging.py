"""Tests of both distributions as pip installs them: all files, and commands that work in an empty folder. The libraries
are those of this environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nemo_prorl import __version__
from reward.client import RewardClient
from reward.protocol import PROTOCOL_VERSION, ScoreRequest
from reward.version import version
from tests.conftest import ROOT

CLIENT_PACKAGES = {
    "aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "attrs", "cython_runtime", "frozenlist", "idna", "multidict",
    "propcache", "typing_extensions", "yarl",
}  # fmt: skip
"""aiohttp and its dependencies."""
IMPORTS = """
import sys
import reward, reward.client, reward.rows, pkgutil, reward.adapters
for module in pkgutil.iter_modules(reward.adapters.__path__, "reward.adapters."):
    __import__(module.name)
print(reward.__file__)
print(*sorted({name.partition(".")[0] for name in sys.modules if not name.startswith("_")}))
"""
AS_THE_SYSTEMS = """
import json, os, sys
sys.base_prefix = os.path.dirname(sys.argv[1])
from reward.sandbox import runner
sys.path[:] = [sys.argv[1], os.path.join(sys.base_prefix, "lib")]
runner.preload(sys.argv[1])
print(json.dumps(sys.path), file=sys.__stdout__)
"""
"""A program that does what the process does from which programs are forked, in an interpreter that has its packages
below its own prefix."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which pip has installed copies of the sources."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in ("nemo_prorl", "reward", "conf"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--no-build-isolation"]
    target = folder / "installed"
    subprocess.run([*pip, "--target", target, source, source / "reward"], check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def environ(installed: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}


def test_every_module_configuration_and_data_file_is_installed(installed: Path) -> None:
    for package, patterns in (("nemo_prorl", ("*.py", "conf/**/*.yaml")), ("reward", ("*.py", "data/*"))):
        for pattern in patterns:
            wanted, found = (
                {
                    file.relative_to(root)
                    for file in (root / package).rglob(pattern)
                    if "build" not in file.parts
                }
                for root in (ROOT, installed)
            )
            assert found == {name for name in wanted if (ROOT / name).is_file()}
    assert not (installed / "tests").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--version",), 0, f"nemo-prorl {__version__}"),
        (("plan", "--config-name", "laptop"), 0, "laptop"),
        (("submit", "--dry-run"), 2, "error: submit needs the launchers of a checkout"),
    ],
)
def test_the_command_runs_in_any_folder(
    installed: Path,
    environ: dict[str, str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    status: int,
    said: str,
) -> None:
    command = [installed / "bin/nemo-prorl", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done.stderr


@pytest.mark.slow
def test_the_service_serves_from_an_empty_folder(
    installed: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    command = [installed / "bin/prorl-reward", "serve", "--workers", "1"]
    box = ScoreRequest(request_id="box", domain="math", response="\\boxed{4}", task={"answer": "4"})
    task = {"inputs": ["1\n"], "outputs": ["2\n"]}
    program = "```python\nprint(int(input()) + 1)\n```"
    code = ScoreRequest(request_id="code", domain="code", response=program, task=task)
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        service = json.loads(process.stdout.readline())
        assert service["protocol"] == PROTOCOL_VERSION
        assert service["version"] == version(), "equal to that of the sources"
        with RewardClient(urls=[service["url"]]) as client:
            client.wait_until_ready(120)
            assert client.submit(box).result().score == 1.0
            if service["sandbox"] != "none":
                assert client.submit(code).result().score == 1.0
        process.terminate()
    assert list(tmp_path.iterdir()) == []


def test_a_program_finds_no_installed_package_where_there_is_no_virtual_environment(
    installed: Path, environ: dict[str, str]
) -> None:
    command = [sys.executable, "-S", "-c", AS_THE_SYSTEMS, installed]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [str(installed.parent / "lib")]


def test_the_client_and_the_adapters_need_aiohttp_only(
    installed: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    where, names = done.stdout.splitlines()
    assert where.startswith(str(installed))
    assert set(names.split()) - sys.stdlib_module_names - CLIENT_PACKAGES - {"reward"} == set()


def test_licence_and_citation() -> None:
    assert (ROOT / "reward/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert f"({__version__})" in (ROOT / "CHANGELOG.md").read_text()
