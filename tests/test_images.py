"""The Dockerfile installs the locks and nothing else. scripts/build_images.sh builds and checks the images by hand."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def stage(name: str) -> str:
    (found,) = re.findall(rf"^FROM \S+ AS {name}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    return re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", found, flags=re.MULTILINE))


def installs(text: str) -> list[str]:
    """The commands that bring packages of Python."""
    steps = "\n".join(re.findall(r"^RUN (.*)$", text, re.MULTILINE))
    return re.findall(r"\S*(?:pip|setup\.sh|conda|uv|git clone|curl|wget) [^&\n]*", steps)


def test_the_trainers_image_is_made_by_the_set_up_of_every_machine() -> None:
    assert installs(stage("train")) == ['scripts/setup.sh "${ENVIRONMENT}"']
    assert installs(stage("python")) == []


def test_the_services_image_has_its_lock_and_itself() -> None:
    assert [line.strip() for line in installs(stage("reward"))] == [
        "pip install --no-deps -r /tmp/reward.txt",
        "pip install --no-deps /tmp/reward",
    ]
    assert "COPY requirements/reward.txt /tmp/reward.txt\n" in stage("reward")
    assert "COPY reward /tmp/reward\n" in stage("reward")


def test_what_a_user_can_set_is_known_where_it_is_used() -> None:
    pip = {name for name in re.findall(r"PIP_\w+", stage("train")) if "CACHE" not in name}
    assert pip == set(re.findall(r"PIP_\w+", stage("reward")))
    for name in ("python", "train", "reward"):
        used = set(re.findall(r"\$\{(\w+)\}", stage(name))) - {"PATH"}
        declared = re.findall(r"^ARG (.*)$", stage(name), re.MULTILINE)
        assert used <= {word.partition("=")[0] for line in declared for word in line.split()}, name


BUILDER = """#!/usr/bin/env bash
echo "$@" >>{log}
[[ $1 != run || "$*" != *"{failing}"* ]]
"""


def build(folder: Path, *arguments: str, failing: str = "nothing", **variables: str) -> tuple[int, list[str]]:
    """The exit status of the script and the calls of a builder that only takes notes."""
    builder, log = folder / "docker", folder / "log"
    builder.write_text(BUILDER.format(log=log, failing=failing))
    builder.chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts/build_images.sh", *arguments],
        env={**os.environ, "BUILDER": str(builder), "TAG": "t", **variables},
        capture_output=True,
        check=False,
    )
    return done.returncode, log.read_text().splitlines() if log.exists() else []


def test_each_image_is_checked_before_it_is_pushed(tmp_path: Path) -> None:
    status, calls = build(tmp_path, "--", "--build-arg", "BASE=debian", NAME="r/n", PUSH="yes")
    assert status == 0
    assert [call.split()[0] for call in calls] == ["build", "run", "push", "build", "run", "push"]
    assert calls[0] == "build --target train --tag r/n:t --build-arg BASE=debian ."
    assert calls[2] == "push r/n:t"
    assert calls[-1] == "push r/n-reward:t"
    assert all(
        "--read-only" in call and "--user 1000:1000" in call for call in calls if call.startswith("run")
    )


@pytest.mark.parametrize("failing", ["doctor", "demo"])
def test_an_image_that_does_not_work_is_not_pushed(failing: str, tmp_path: Path) -> None:
    """The demo can run in the image for CPUs only."""
    status, calls = build(tmp_path, "--", "--build-arg", "ENVIRONMENT=cpu", failing=failing, PUSH="yes")
    assert status == 1
    assert calls[-1].startswith("run")
    assert failing in calls[-1]


def test_a_target_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert build(tmp_path, "trainer") == (1, [])
