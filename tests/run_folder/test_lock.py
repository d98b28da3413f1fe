"""The lock of a run's folder: whose it is, and when it is ignored. A process that holds the lock under the name of
another machine plays the part of a dead node on NFS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nemo_prorl.cluster import slurm_queue
from nemo_prorl.cluster.slurm_queue import is_gone
from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.lock import LOCK_FILE, LockHolder, alone_at, alone_in, lock_holder

HOLDER = """
import socket, sys
from pathlib import Path
socket.gethostname = lambda: sys.argv[2]
from nemo_prorl.run_folder.lock import alone_in
with alone_in(Path(sys.argv[1]), lambda holder: False):
    print("there", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(folder: Path, *, host: str = "node7", restarts: int = 0) -> Iterator[None]:
    environment = os.environ | {"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": str(restarts)}
    command = [sys.executable, "-c", HOLDER, str(folder), host]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns where to write a shell script that acts as squeue. While there is none, this machine has no squeue."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "eos")
    monkeypatch.setenv("SLURM_JOB_USER", "ada")
    return tools / "squeue"


def answers(squeue: Path, script: str) -> None:
    squeue.write_text(f"#!/bin/sh\n{script}\n")
    squeue.chmod(0o755)


HELD = LockHolder(host="node7", job="77", restarts=0, cluster="eos", user="ada")


def refused(folder: Path, message: str) -> None:
    """A process does not get in, and leaves nothing."""
    before = sorted(folder.iterdir())
    with pytest.raises(ConfigError, match=message), alone_in(folder, is_gone):
        pass
    assert sorted(folder.iterdir()) == before


def listing(state: str, job: str = "77") -> str:
    return f"echo 'job|{job}|{state}|None|/home/ada|/home/ada/launchers/run1_8k.sh a=b'"


@pytest.mark.parametrize("script", ["exit 0", listing("CANCELLED"), listing("RUNNING", "78")])
def test_the_lock_of_a_job_that_is_gone_is_put_aside(tmp_path: Path, squeue: Path, script: str) -> None:
    answers(squeue, script)
    run = tmp_path / "run"
    with held(run):
        with alone_in(run, is_gone):
            assert lock_holder(run) != HELD, "it is ours"
            refused(run, "is training in")
        assert sorted(path.name for path in run.glob("lock*")) == ["lock", "lock.77-0"]
    assert "the lock of job 77 on node7 is ignored" in (run / "run.log").read_text()


@pytest.mark.parametrize(
    "script",
    [
        listing("COMPLETING"),
        'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1',
        "",
    ],
)
def test_a_lock_is_respected_unless_its_job_has_certainly_ended(
    tmp_path: Path, squeue: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes are not free yet, Slurm does not answer, or the container has no squeue."""
    monkeypatch.setattr(slurm_queue, "PAUSE_S", 0.0)
    if script:
        answers(squeue, script)
    with held(tmp_path / "run"):
        refused(tmp_path / "run", r"^job 77 on node7 is training in .*remove .*/lock\)\.$")


def test_a_job_that_slurm_has_requeued_puts_its_own_earlier_lock_aside(
    tmp_path: Path, squeue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This needs no squeue, because Slurm itself has started the job again."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with held(tmp_path / "run", restarts=1):
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        refused(tmp_path / "run", "job 77 on node7")
        monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
        with alone_in(tmp_path / "run", is_gone):
            pass


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("SLURM_CLUSTER_NAME", "other", "mine"),
        ("SLURM_JOB_USER", "other", "mine"),
        ("SLURM_CLUSTER_NAME", "", ""),
        ("OTHER", "", ""),  # on this machine a lock ends with its process
    ],
)
def test_a_job_that_squeue_may_not_list_may_be_alive(
    tmp_path: Path, squeue: Path, monkeypatch: pytest.MonkeyPatch, name: str, theirs: str, ours: str
) -> None:
    """Of another user or cluster."""
    answers(squeue, "exit 0")
    monkeypatch.setenv(name, theirs)
    with held(tmp_path / "run", host=os.uname().nodename if name == "OTHER" else "node7"):
        monkeypatch.setenv(name, ours)
        refused(tmp_path / "run", "job 77 on")


def test_a_lock_that_another_process_takes_while_slurm_is_asked_is_respected(tmp_path: Path) -> None:
    """The new holder has written its own name into the file."""

    def is_gone(holder: LockHolder) -> bool:
        (tmp_path / LOCK_FILE).write_text(json.dumps({"host": "node8", "job": "78", "restarts": 0}))
        return True

    with held(tmp_path):
        with pytest.raises(ConfigError, match="job 78 on node8"), alone_in(tmp_path, is_gone):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_lock_that_comes_free_while_slurm_is_asked_is_simply_taken(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stack.enter_context(held(tmp_path))

        def is_gone(holder: LockHolder) -> bool:
            stack.close()
            return True

        with alone_in(tmp_path, is_gone), pytest.raises(ConfigError, match="is training in"):
            alone_in(tmp_path, lambda holder: False).__enter__()
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_of_two_that_find_the_same_dead_lock_one_gets_in(tmp_path: Path, squeue: Path) -> None:
    """The second process read the holder's name before the first one replaced the lock."""
    answers(squeue, "exit 0")
    run = tmp_path / "run"
    with held(run):
        (run / "lock.77-0").touch()
        refused(run, "job 77 on node7")
        assert lock_holder(run) == HELD


@pytest.mark.parametrize("content", ["", "x", "[]", json.dumps({"host": "a"})])
def test_a_lock_that_says_nothing_is_respected(tmp_path: Path, squeue: Path, content: str) -> None:
    answers(squeue, "exit 0")
    with held(tmp_path / "run"):
        (tmp_path / "run" / "lock").write_text(content)
        refused(tmp_path / "run", "another process is training")


def test_one_submission_is_made_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "slurm"
    for _ in range(2):
        with alone_at(folder / "submitting", "one is at work"):
            with (
                pytest.raises(ConfigError, match="one is at work"),
                alone_at(folder / "submitting", "one is at work"),
            ):
                pass
            assert folder.is_dir()
        assert list(folder.iterdir()) == []
