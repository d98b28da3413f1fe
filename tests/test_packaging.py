"""Tests of the wheel: one version, the command, and conf/ inside the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from nemo_prorl import __version__
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the unpacked files of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in ("nemo_prorl", "conf"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", folder, source], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == f"nemo_prorl-{__version__}-py3-none-any.whl"
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def nemo_prorl(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the program of the wheel in an empty folder."""
    folder = installed.parent / "elsewhere"
    folder.mkdir(exist_ok=True)
    code = "import sys, nemo_prorl.__main__ as m; print(m.__file__, file=sys.stderr); m.command()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_has_every_configuration_and_the_command(installed: Path) -> None:
    shipped = {
        path.relative_to(installed / "nemo_prorl") for path in (installed / "nemo_prorl/conf").rglob("*.yaml")
    }
    assert shipped == {path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")}
    (entry_points,) = installed.glob("*.dist-info/entry_points.txt")
    assert "nemo-prorl = nemo_prorl.__main__:command" in entry_points.read_text()
    assert {path.name for path in installed.iterdir()} == {"nemo_prorl", entry_points.parent.name}


def test_the_command_finds_its_configurations_in_any_folder(installed: Path) -> None:
    done = nemo_prorl(installed, "plan", "--config-name", "laptop")
    assert done.returncode == 0, done.stderr
    assert str(installed) in done.stderr
    assert "run8" not in done.stdout
    assert nemo_prorl(installed, "--version").stdout == f"nemo-prorl {__version__}\n"


def test_what_needs_a_checkout_says_so(installed: Path) -> None:
    done = nemo_prorl(installed, "submit", "--dry-run")
    assert done.returncode == 2
    assert done.stderr.splitlines()[1:] == [
        "error: submit needs the launchers of a checkout: clone the repository, and submit from there."
    ]


def test_without_the_services_environment_the_sentence_says_what_to_write(installed: Path) -> None:
    folder = installed.parent / "elsewhere"
    folder.mkdir(exist_ok=True)
    (folder / "p.jsonl").write_text('{"prompt": "?", "answer": "4"}\n')
    done = nemo_prorl(
        installed, "train", "--config-name", "laptop", "data.train=p.jsonl", "data.validation=[]"
    )
    assert done.returncode == 2
    assert "reward.python=.venv-reward/bin/python does not exist" in done.stderr
    assert "write reward.python=/PATH/bin/python" in done.stderr


def test_the_citation_is_readable() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert f"({__version__})" in (ROOT / "CHANGELOG.md").read_text()
