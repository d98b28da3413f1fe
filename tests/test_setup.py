"""scripts/setup.sh: what becomes of an environment that is replaced, in which order the one for GPUs is made, with
interpreters that only pretend to install; and a set-up without a network, with a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
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


def write_interpreter(
    file: Path, version: str, *, pip_status: int = 0, import_status: int = 0, include: Path | None = None
) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        INTERPRETER.format(
            version=version,
            dotted=version.replace(" ", "."),
            pip_status=pip_status,
            import_status=import_status,
            include=include,
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


def setup(
    checkout: Path, *arguments: str, python: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts/setup.sh", *arguments],
        env={**os.environ, "PYTHON": str(python), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


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


class TestCuda:
    def test_torch_comes_first_transformer_engine_after_all_others_and_then_the_imports(
        self, checkout: Path
    ) -> None:
        python = write_interpreter(checkout / "python3.12", "3 12", include=checkout / "include")
        done = setup(checkout, "cuda", python=python, TOOLS="no")
        assert done.returncode == 0, done.stderr
        assert "can be imported, with the driver's libcuda.so.1." in done.stdout
        lines = (checkout / "log").read_text().splitlines()
        locked = [line for line in (ROOT / "requirements/cuda.txt").read_text().splitlines() if "==" in line]
        extension = next(line for line in locked if line.startswith("transformer_engine_torch"))
        torch = next(line for line in locked if line.startswith("torch=="))
        end = lines.index("imports")
        assert lines[0] == f"{torch},!={torch.removeprefix('torch==')}+cpu"
        assert set(locked) - set(lines[1 : end - 1]) == {extension}
        assert lines[end - 1] == f"--no-build-isolation {extension}"
        assert "pytest" not in (checkout / "log").read_text()
        assert setup(checkout, "cuda", python=python, TOOLS="no").stdout == ""  # nothing is left to do
        assert (checkout / "log").read_text().splitlines() == lines

    def test_an_environment_that_does_not_import_is_not_done(self, checkout: Path) -> None:
        python = write_interpreter(
            checkout / "python3.12", "3 12", import_status=1, include=checkout / "include"
        )
        done = setup(checkout, "cuda", python=python)
        assert done.returncode == 1
        assert "undefined symbol\nerror: .venv-cuda does not import" in done.stderr
        assert not (checkout / ".venv-cuda/setup-stamp").exists()

    def test_what_is_missing_is_said_before_anything_is_installed(self, checkout: Path) -> None:
        python = write_interpreter(checkout / "python3.11", "3 11", include=checkout / "include")
        assert "no Python 3.12 with the venv module" in setup(checkout, "cuda", python=python).stderr
        python = write_interpreter(checkout / "python3.12", "3 12", include=checkout / "elsewhere")
        done = setup(checkout, "cuda", python=python)
        assert (done.returncode, "no C++ compiler that finds Python's headers" in done.stderr) == (1, True)
        assert not (checkout / "log").exists()


def test_an_unknown_environment_is_refused(checkout: Path) -> None:
    done = setup(checkout, "gpu", python=Path(sys.executable))
    assert (done.returncode, done.stderr.partition(":")[2].strip()[:25]) == (1, "'gpu' is no environment: ")


@pytest.mark.slow
def test_a_folder_of_wheels_is_enough(checkout: Path) -> None:
    wheels = checkout / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "graders-1.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr("graders.py", "answer = 4\n")
        wheel.writestr(
            "graders-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: graders\nVersion: 1.5\n"
        )
        wheel.writestr("graders-1.5.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("graders-1.5.dist-info/RECORD", "")
    (checkout / "requirements/reward.txt").write_text("graders==1.5\n")
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "TOOLS": "no",
    }
    done = setup(checkout, "reward", python=Path(sys.executable), **offline)
    assert done.returncode == 0, done.stderr
    command = [checkout / ".venv-reward/bin/python", "-c", "import graders; print(graders.answer)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "4\n"
    (checkout / "requirements/reward.txt").write_text("graders==1.6\n")
    assert "pip could not install" in setup(checkout, "reward", python=Path(sys.executable), **offline).stderr
