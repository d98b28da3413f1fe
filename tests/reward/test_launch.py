"""Tests that the way in which a judge ended decides whether the response is to blame."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reward.sandbox import launch
from reward.sandbox.cell import Level
from reward.sandbox.launch import Judge


def test_a_path_through_symbolic_links_can_be_read_under_both_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sys.path has the links, which lead nowhere in a cell that has only what they point to."""
    (tmp_path / "environment").mkdir()
    (tmp_path / "link").symlink_to("environment")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "link"))
    assert {str(tmp_path / "link"), str(tmp_path / "environment")} <= set(launch.read_paths("graders"))


@pytest.mark.parametrize(
    ("body", "ended_by"),
    [
        ("sock.close(); time.sleep(0.3); sys.exit(1)", 0),
        ("sock.close(); time.sleep(0.3); os.kill(os.getpid(), 11)", signal.SIGSEGV),
        ("sock.close(); time.sleep(1000)", signal.SIGKILL),
        ("time.sleep(1000)", signal.SIGKILL),
    ],
    ids=["an exception", "a crash", "hangs behind a closed socket", "is busy"],
)
@pytest.mark.parametrize("is_ours_closed", [False, True])
def test_a_judge_that_dies_by_itself_is_not_taken_for_a_killed_one(
    body: str, ended_by: int, is_ours_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket closes before its process has ended, which was once mistaken for a kill from outside."""

    def isolated(python: list[str], theirs: socket.socket, *_: Any) -> subprocess.Popen[bytes]:
        source = f"import os, socket, sys, time; sock = socket.socket(fileno={theirs.fileno()}); {body}"
        return subprocess.Popen([*python, "-c", source], pass_fds=[theirs.fileno()])

    monkeypatch.setattr(launch, "_start_isolated", isolated)
    judge = Judge(Level.none)
    if "sock.close" in body:
        judge.socket.settimeout(20)
        assert judge.socket.recv(1) == b""
    if is_ours_closed:  # as the event loop does when it sees the end of the stream
        judge.socket.close()
    assert judge.end() == ended_by
