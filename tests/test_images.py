"""The Dockerfile installs the locks and nothing else. scripts/build_images.sh builds and checks the images by hand."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.conftest import ROOT

STAGES = ("python", "train", "reward")
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def stage(name: str) -> str:
    (found,) = re.findall(rf"^FROM \S+ AS {name}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    return re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", found, flags=re.MULTILINE))


def test_the_images_have_the_locks_of_every_machine_and_the_code() -> None:
    found = r"(?:pip install|scripts/setup\.sh|conda|uv|git clone|curl|wget) [^&\n]*[^&\n ]"
    steps = {name: "\n".join(re.findall(r"^RUN (.*)$", stage(name), re.MULTILINE)) for name in STAGES}
    assert {name: re.findall(found, step) for name, step in steps.items()} == {
        "python": [],
        "train": ['scripts/setup.sh "${ENVIRONMENT}"'],
        "reward": ["pip install --no-deps -r /tmp/reward.txt", "pip install --no-deps /tmp/reward"],
    }
    assert "COPY requirements/reward.txt /tmp/reward.txt\n" in stage("reward")


BUILDER = """#!/usr/bin/env bash
echo "$@" >>{log}
[[ $1 != run || "$*" != *"{failing}"* ]]
"""


def build(folder: Path, *arguments: str, failing: str = "nothing", **variables: str) -> tuple[int, list[str]]:
    """The exit status of the script and the calls of a builder that only takes notes."""
    builder, log = folder / "docker", folder / "log"
    builder.write_text(BUILDER.format(log=log, failing=failing))
    builder.chmod(0o755)
    environ = {**os.environ, "BUILDER": str(builder), "TAG": "t", **variables}
    command = [ROOT / "scripts/build_images.sh", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    return done.returncode, log.read_text().splitlines() if log.exists() else []


def test_each_image_is_checked_before_it_is_pushed(tmp_path: Path) -> None:
    status, calls = build(tmp_path, "--", "--build-arg", "BASE=debian", NAME="r/n", PUSH="yes")
    assert status == 0
    assert [call.split()[0] for call in calls] == ["build", "run", "push", "build", "run", "push"]
    assert calls[0] == "build --target train --tag r/n:t --build-arg BASE=debian ."
    assert calls[2::3] == ["push r/n:t", "push r/n-reward:t"]
    assert all("--read-only" in call and "--user 1000:1000" in call for call in calls[1::3])


def test_an_image_that_does_not_work_is_not_pushed(tmp_path: Path) -> None:
    """The demo can run in the image for CPUs only."""
    status, calls = build(tmp_path, "--", "--build-arg", "ENVIRONMENT=cpu", failing="demo", PUSH="yes")
    assert (status, calls[-1].split()[0], "demo" in calls[-1]) == (1, "run", True)
    assert not any(call.startswith("push") for call in calls)


def test_a_target_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert build(tmp_path, "trainer") == (1, [])
