"""What a rank tells about itself, and what becomes of one that hangs."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nemo_prorl.training.watchdog import Watchdog, heartbeat, stacks
from nemo_prorl.types import RunState
from tests.engines.conftest import free_port


def test_the_heartbeat_says_where_the_main_rank_is(tmp_path: Path) -> None:
    state = RunState(stage="run1", step=7)
    with Watchdog(tmp_path, rank=0, timeout_s=0) as watchdog:
        watchdog.enter("start")
        assert not heartbeat(tmp_path).exists(), "nobody knows the step yet"
        watchdog.follow(state)
        for phase in ("sampling", "updates"):
            before = time.time()
            watchdog.enter(phase)
            beat = json.loads(heartbeat(tmp_path).read_text())
            assert before <= beat.pop("time") <= time.time()
            assert beat == {"step": 7, "stage": "run1", "phase": phase}
        state.step = 8
        watchdog.enter("sampling")
        assert json.loads(heartbeat(tmp_path).read_text())["step"] == 8
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.json"]


def test_the_heartbeat_of_an_earlier_process_goes(tmp_path: Path) -> None:
    heartbeat(tmp_path).write_text("{}")
    with Watchdog(tmp_path, rank=0, timeout_s=0):
        assert not heartbeat(tmp_path).exists()


IDLES = """
import sys, time
from pathlib import Path
from nemo_prorl.training import watchdog
watchdog.LAST_WORDS_S = 0.1
with watchdog.Watchdog(Path(sys.argv[1]), rank=int(sys.argv[2]), timeout_s=2) as watching:
    with watching.trusting_main():
        time.sleep(3)
"""


@pytest.mark.parametrize(("rank", "code"), [(0, 1), (3, 0)])
def test_only_the_main_rank_has_to_beat_while_it_works_alone(tmp_path: Path, rank: int, code: int) -> None:
    command = [sys.executable, "-c", IDLES, str(tmp_path), str(rank)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr


def test_other_ranks_are_silent(tmp_path: Path) -> None:
    with Watchdog(tmp_path, rank=3, timeout_s=0) as watchdog:
        watchdog.follow(RunState(stage="run1"))
        watchdog.enter("sampling")
    assert list(tmp_path.iterdir()) == []


HANGS = """
import sys, threading, time
from pathlib import Path
from nemo_prorl.training import watchdog
watchdog.LAST_WORDS_S = 0.1

def wait_for_a_message_that_never_comes():
    {how}

with watchdog.Watchdog(Path(sys.argv[1]), rank=3, timeout_s=6) as watching:
    watching.enter("updates")
    for _ in range({num_beats}):
        time.sleep(1.0)
        watching.beat()
    print("moved", flush=True)
    wait_for_a_message_that_never_comes()
"""


def run_until_it_ends(folder: Path, how: str, num_beats: int = 0) -> subprocess.CompletedProcess[str]:
    """A process that hangs after it has moved for some seconds; its limit is long enough for a busy machine."""
    command = [sys.executable, "-c", HANGS.format(how=how, num_beats=num_beats), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_rank_that_hangs_says_where_and_ends(tmp_path: Path) -> None:
    """After more seconds than its limit, in all of which it moved."""
    never = "threading.Lock().acquire() and threading.Event().wait()"
    done = run_until_it_ends(tmp_path, never, num_beats=7)
    assert (done.returncode, done.stdout) == (1, "moved\n")
    text = stacks(tmp_path, 3).read_text()
    assert text.startswith("rank 3 made no progress for ")
    assert "in phase 'updates'" in text
    assert "in wait_for_a_message_that_never_comes" in text
    (line,) = done.stderr.splitlines()
    assert str(stacks(tmp_path, 3)) in line
    assert "trainer.hang_timeout_s" in line


def test_a_rank_that_cannot_write_its_stacks_ends_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "stacks").write_text("a file in the place of the folder")
    done = run_until_it_ends(tmp_path, "threading.Event().wait()")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "rank-00003.txt is not complete" in line


def test_so_does_one_whose_interpreter_is_held(tmp_path: Path) -> None:
    """Native code that never lets go of the interpreter: no Python thread runs any more."""
    done = run_until_it_ends(tmp_path, "import ctypes; ctypes.PyDLL(None).sleep(200)")
    assert (done.returncode, done.stdout) == (1, "moved\n")
    assert "in wait_for_a_message_that_never_comes" in done.stderr


def test_it_watches_no_longer_than_its_block(tmp_path: Path) -> None:
    def is_watched() -> bool:
        return "watchdog" in [thread.name for thread in threading.enumerate()]

    with Watchdog(tmp_path, rank=0, timeout_s=1000):
        assert is_watched()
    assert not is_watched()


WAITS = """
import sys, time
from pathlib import Path
from nemo_prorl.engines import environment
environment.prepare()
import torch.distributed as dist
from nemo_prorl.training import watchdog

watchdog.LAST_WORDS_S = 0.1
dist.init_process_group("gloo")
with watchdog.Watchdog(Path(sys.argv[1]), rank=dist.get_rank(), timeout_s=4) as watching:
    dist.all_gather_object([None, None], "met")
    if dist.get_rank() == 0:
        dist.all_gather_object([None, None], "the other does not come")
    time.sleep(60)
"""


def test_a_rank_that_waits_for_another_says_in_which_collective(tmp_path: Path) -> None:
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WAITS, str(tmp_path)],
            env=os.environ | given | {"RANK": str(rank)},
            cwd=Path(__file__).resolve().parents[2],
        )
        for rank in (0, 1)
    ]
    assert [process.wait(120) for process in processes] == [1, 1]
    waiting, sleeping = (stacks(tmp_path, rank).read_text() for rank in (0, 1))
    assert "waiting in gloo:all_gather number " in waiting
    assert "waiting in" not in sleeping
    assert pickle.loads((tmp_path / "stacks" / "gloo_0").read_bytes())["entries"]
