"""Tests of the sandbox's level on other machines: old kernels, containers with false users or only one, mounts below
mounts."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from reward.sandbox import launch
from reward.sandbox.cell import Level
from reward.sandbox.execution import Sandbox
from reward.sandbox.probe import failure_of
from tests.reward.serving import ROOT
from tests.reward.test_sandbox import OTHER_KERNEL

NO_LANDLOCK = "the kernel has no Landlock (Linux 5.13 or later with lsm=landlock)"
SUBMOUNT = "/usr/local/src"
ALONE = ["unshare", "--map-root-user", "--mount"]
"""A command prefix that makes the process root of a user namespace without other users, as pyxis and enroot start a
container with ENROOT_REMAP_ROOT."""


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if failure_of(Level.namespaces_only):
        pytest.skip("this machine has no namespaces")


def answer(source: str, *prefix: str) -> Any:
    """Returns the JSON that a program prints when it is started with `prefix`."""
    command = [*prefix, sys.executable, "-c", f"import json; {source}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def strongest(*prefix: str) -> tuple[str | None, list[str]]:
    level, reasons = answer(
        "from reward.sandbox.probe import strongest; print(json.dumps(strongest()))", *prefix
    )
    return level, reasons


def test_a_kernel_without_landlock_has_the_namespaces_alone() -> None:
    level, reasons = strongest(sys.executable, OTHER_KERNEL, "linux-4.18")
    assert level == Level.namespaces_only
    assert len(reasons) == 2
    assert all(NO_LANDLOCK in reason for reason in reasons)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its ids")
def test_a_change_of_ids_that_changes_nothing_is_noticed() -> None:
    """Without that, programs would run as root."""
    level, reasons = strongest(sys.executable, OTHER_KERNEL, "enroot")
    assert level is None
    assert sum("pretends to change user and group ids" in reason for reason in reasons) == 3


def test_a_root_who_is_the_only_user_of_a_container_needs_no_other() -> None:
    assert strongest(*ALONE)[0] in (Level.namespaces, Level.namespaces_only)


def mounted(mode: str, then: str = "") -> list[str]:
    """Returns a command prefix that mounts a file system at SUBMOUNT."""
    mounting = f"mount -t tmpfs -o mode={mode} tmpfs {SUBMOUNT}{then}"
    return ["bash", "-c", f'set -e; {mounting}; exec "$@"', "bash"]


@pytest.fixture(params=[["unshare", "--mount"], ALONE], ids=["as root", "as a user"])
def prefix(request: pytest.FixtureRequest) -> list[str]:
    """A command prefix under which a file system can be mounted at SUBMOUNT."""
    if request.param != ALONE and os.geteuid() != 0:
        pytest.skip("only root can mount")
    if not os.path.isdir(SUBMOUNT):
        pytest.skip(f"this machine has no {SUBMOUNT}")
    prefix: list[str] = request.param
    return prefix


@pytest.fixture(params=[Level.namespaces, Level.namespaces_only])
def level(request: pytest.FixtureRequest) -> Level:
    level: Level = request.param
    if failure := failure_of(level):
        pytest.skip(f"this machine has no level {level.value}: {failure}")
    return level


def test_what_is_mounted_for_writing_is_noticed_by_its_mount(level: Level, prefix: list[str]) -> None:
    """An attempt to write would prove nothing, because it also fails if the files belong to somebody else."""
    probing = f"from reward.sandbox.probe import *; print(json.dumps(failure_of(Level({level.value!r}))))"
    assert answer(probing, *prefix, *mounted("755")) is None
    failure = answer(probing, *prefix, *mounted("755"), sys.executable, OTHER_KERNEL, "no-remount")
    for place in ("/", "/usr", SUBMOUNT, os.path.realpath(sys.base_prefix)):
        assert f"finds {place} mounted for writing" in failure


def test_a_file_system_mounted_below_another_cannot_be_written_to_either(prefix: list[str]) -> None:
    """The flags of the upper mount do not hold for it; in this test everybody may write to it."""
    program = f"""
import os
print(os.listdir({SUBMOUNT!r}))
try: open({SUBMOUNT + "/x"!r}, "w")
except OSError as error: print(error.errno)
"""
    source = f"""
from reward.sandbox.cell import Level
from reward.sandbox.execution import Sandbox
sandbox = Sandbox(Level.namespaces_only)
execution = sandbox.run({program!r}, [""])
sandbox.close()
print(json.dumps(execution.outputs[0].decode().split("\\n")))
"""
    said = answer(source.strip(), *prefix, *mounted("1777", f"; touch {SUBMOUNT}/seen"))
    assert said == ["['seen']", str(errno.EROFS), ""]


def test_what_can_be_read_below_tmp_is_not_hidden_by_the_cell_s_own(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment there would lose what it has not imported yet."""
    program = """
import sys
sys.path.append({folder!r})
import late
print(late.WORD)
for place in ({folder!r}, "/tmp"):
    try: open(place + "/new", "w")
    except OSError: print("refused")
    else: print("written")
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:  # which only its owner may enter
        folder = Path(parent) / "environment"
        folder.mkdir()
        (folder / "late.py").write_text("WORD = 'found'")
        paths = (*launch.read_paths("code"), str(folder))
        monkeypatch.setattr(launch, "read_paths", lambda _role: paths)
        sandbox = Sandbox(level)
        execution = sandbox.run(program.format(folder=str(folder)), [""])
        sandbox.close()
        assert not (folder / "new").exists()
    assert execution.outputs[0].decode().split() == ["found", "refused", "written"]
