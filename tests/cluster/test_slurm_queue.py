"""What squeue says, what it does not say, and what stands in its way; tests/slurm asks the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_prorl.cluster import slurm_queue
from nemo_prorl.cluster.slurm_queue import ENDED, GONE, NOT_KNOWN, ask_queue

LINE = "job|77|PENDING|Priority"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(slurm_queue, "PAUSE_S", 0.0)
    return tmp_path


def install(tools: Path, name: str, script: str) -> None:
    (tools / name).write_text(f"#!/bin/sh\n{script}\n")
    (tools / name).chmod(0o755)


def test_an_answer(tools: Path) -> None:
    banner = "echo 'Welcome | to eos'"
    install(tools, "squeue", f'[ "$1 $2" = "--me --states=all" ] && echo "{LINE}" && {banner}')
    install(tools, "scontrol", "echo 'ClusterName             = eos'")
    queue = ask_queue()
    assert (queue.problem, queue.cluster, list(queue.jobs)) == ("", "eos", ["77"])
    assert [queue.state(job) for job in ("77", "78")] == ["PENDING", GONE]
    assert queue.state("77", cluster="eos", user=queue.user) == "PENDING"
    assert queue.state("78", cluster="other") == queue.state("78", user="somebody") == NOT_KNOWN
    assert queue.jobs["77"].reason == "Priority"


def test_no_jobs_are_an_answer(tools: Path) -> None:
    install(tools, "squeue", "exit 0")
    queue = ask_queue()
    assert (queue.problem, queue.state("77")) == ("", GONE)
    assert GONE in ENDED
    assert not {NOT_KNOWN, "COMPLETING", "REQUEUED", "SUSPENDED"} & {*ENDED}


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("", "squeue is not on this machine"),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact slurm controller"),
        ("exit 3", "squeue ended with code 3"),
        ("echo 'squeue: error: Invalid user: 1000' >&2; exit 0", "squeue: error: Invalid user: 1000"),
        ("echo PENDING", "squeue says 'PENDING'"),
        ("exec /bin/sleep 9", "squeue gave no answer within 0 s"),
    ],
)
def test_what_is_no_answer(tools: Path, script: str, problem: str) -> None:
    if script:
        install(tools, "squeue", script)
    queue = ask_queue(timeout_s=0.2 if "sleep" in script else 20.0)
    assert (queue.problem, queue.state("77"), queue.jobs) == (problem, NOT_KNOWN, {})


@pytest.mark.parametrize(("tries", "state"), [(2, NOT_KNOWN), (3, "PENDING")])
def test_it_is_asked_again(tools: Path, tries: int, state: str) -> None:
    count = f"echo >> {tools}/asked; set -- $(/usr/bin/wc -l < {tools}/asked)"
    install(tools, "squeue", f'{count}; [ "$1" -ge 3 ] && echo "{LINE}"')
    assert ask_queue(tries=tries).state("77") == state
