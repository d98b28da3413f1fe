"""scripts/setup.sh, with interpreters that only pretend to install: what becomes of an environment that is replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
INTERPRETER = """#!/usr/bin/env bash
case "$*" in
    *purelib*) dirname "$0" ;;
    *"print(*sys.version_info"*) echo {version} ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip install "*) exit {pip_status} ;;
esac
"""


def write_interpreter(file: Path, version: str, pip_status: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(INTERPRETER.format(version=version, pip_status=pip_status))
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(("pip_status", "status", "left"), [(0, 0, "3 12"), (1, 3, "3 11")])
def test_an_environment_stays_until_its_successor_is_there(
    pip_status: int, status: int, left: str, tmp_path: Path
) -> None:
    for folder in ("scripts", "requirements"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    write_interpreter(tmp_path / ".venv/bin/python", "3 11", 0)
    (tmp_path / ".venv/setup-stamp").write_text("of the old one")
    python = write_interpreter(tmp_path / "python3.12", "3 12", pip_status)
    done = subprocess.run(
        [tmp_path / "scripts/setup.sh"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    command = [tmp_path / ".venv/bin/python", "-c", "print(*sys.version_info[:2])"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == left
    assert ((tmp_path / ".venv/setup-stamp").read_text() == "of the old one") is bool(pip_status)
    assert not (tmp_path / ".venv.before").exists()
