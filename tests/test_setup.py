"""scripts/setup.sh with interpreters that only pretend to install: what becomes of an environment that is replaced, and
in which order the one for GPUs is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

INTERPRETER = """#!/usr/bin/env bash
case "$*" in
    *purelib*) dirname "$0" ;;
    *'get_path("include")'*) echo {include} ;;
    *"print(*sys.version_info"*) echo {version} ;;
    *"sys.version_info[:2] not in"*) [[ " $* " == *" {dotted} "* ]] ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip install "*)
        shift 7
        echo "$@" >>{log}
        for word; do [[ $word != /dev/fd/* ]] || cat "$word" >>{log}; done
        exit {pip_status}
        ;;
    *ctypes.CDLL*) ;;
    *"import torch, transformer_engine"*) echo "imports" >>{log}; echo "undefined symbol" && exit {import_status} ;;
esac
"""


def write_interpreter(file: Path, version: str, *, pip_status: int = 0, import_status: int = 0) -> Path:
    """Writes a `python` that lists what it is asked to install in the file `log` beside it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        INTERPRETER.format(
            version=version,
            dotted=version.replace(" ", "."),
            pip_status=pip_status,
            import_status=import_status,
            include=file.parent / "include",
            log=file.parent / "log",
        )
    )
    file.chmod(0o755)
    return file


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script, the locks and an empty Python.h."""
    for folder in ("scripts", "requirements"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "include").mkdir()
    (tmp_path / "include/Python.h").touch()
    return tmp_path


def setup(checkout: Path, *arguments: str, python: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHON": str(python), "TOOLS": "no"}
    command = [checkout / "scripts/setup.sh", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("pip_status", "status", "left"), [(0, 0, "3 12"), (1, 3, "3 11")])
def test_an_environment_stays_until_its_successor_is_there(
    pip_status: int, status: int, left: str, checkout: Path
) -> None:
    write_interpreter(checkout / ".venv/bin/python", "3 11")
    (checkout / ".venv/setup-stamp").write_text("of the old one")
    done = setup(checkout, python=write_interpreter(checkout / "python3.12", "3 12", pip_status=pip_status))
    assert done.returncode == status, done.stderr
    command = [checkout / ".venv/bin/python", "-c", "print(*sys.version_info[:2])"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == left
    assert ((checkout / ".venv/setup-stamp").read_text() == "of the old one") is bool(pip_status)
    assert not (checkout / ".venv.before").exists()


def test_for_gpus_torch_comes_first_transformer_engine_last_and_then_the_imports(checkout: Path) -> None:
    python = write_interpreter(checkout / "python3.12", "3 12")
    done = setup(checkout, "cuda", python=python)
    assert done.returncode == 0, done.stderr
    lines = (checkout / "log").read_text().splitlines()
    locked = [line for line in (ROOT / "requirements/cuda.txt").read_text().splitlines() if "==" in line]
    extension = next(line for line in locked if line.startswith("transformer_engine_torch"))
    torch = next(line for line in locked if line.startswith("torch=="))
    end = lines.index("imports")
    assert lines[0] == f"{torch},!={torch.removeprefix('torch==')}+cpu"
    assert set(locked) - set(lines[1 : end - 1]) == {extension}
    assert lines[end - 1] == f"--no-build-isolation {extension}"
    assert setup(checkout, "cuda", python=python).stdout == ""  # nothing is left to do
    assert (checkout / "log").read_text().splitlines() == lines


def test_what_does_not_import_or_cannot_be_built_is_not_done(checkout: Path) -> None:
    python = write_interpreter(checkout / "python3.12", "3 12", import_status=1)
    assert (
        "undefined symbol\nerror: .venv-cuda does not import" in setup(checkout, "cuda", python=python).stderr
    )
    assert not (checkout / ".venv-cuda/setup-stamp").exists()
    shutil.rmtree(checkout / ".venv-cuda")
    shutil.rmtree(checkout / "include")
    (checkout / "log").unlink()
    assert "no C++ compiler that finds Python's headers" in setup(checkout, "cuda", python=python).stderr
    python = write_interpreter(checkout / "python3.11", "3 11")
    assert "no Python 3.12 with the venv module" in setup(checkout, "cuda", python=python).stderr
    assert not (checkout / "log").exists(), "nothing is installed before"


def test_an_unknown_environment_is_refused(checkout: Path) -> None:
    done = setup(checkout, "reward", python=Path(sys.executable))
    assert (done.returncode, "'reward' is no environment: " in done.stderr) == (1, True)


def test_a_users_files_beside_the_project_are_not_linted(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file in (
        "my_reward.py",
        "mine/reward.py",
        "nemo_prorl/training/step.py",
        "slurm/job/once.py",
        "tests/a.py",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    ruff = [str(Path(sys.executable).parent / "ruff"), "check", "--show-files", "."]
    listed = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert sorted(Path(file).relative_to(tmp_path).parts[0] for file in listed) == [
        "nemo_prorl", "pyproject.toml", "slurm", "tests",
    ]  # fmt: skip
