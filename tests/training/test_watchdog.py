"""Heartbeats, and how a rank that hangs ends. The hanging processes mostly wait, so they run at the same time."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from nemo_prorl.training.watchdog import Watchdog, heartbeat, stacks
from nemo_prorl.types import RunState
from tests.conftest import ROOT
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


@dataclass(frozen=True)
class Ended:
    folder: Path
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Returns how each of the processes ended. `hangs` does so only after a time longer than its limit, in which it
    made progress. All limits are long enough for a busy machine."""
    never = "threading.Lock().acquire() and threading.Event().wait()"
    programs = {
        "main idles": (IDLES, "0"),
        "rank 3 idles": (IDLES, "3"),
        "hangs": (HANGS.format(how=never, num_beats=7),),
        "cannot write": (HANGS.format(how="threading.Event().wait()", num_beats=0),),
        # Native code that never releases the GIL: no Python thread runs any more.
        "holds the interpreter": (HANGS.format(how="import ctypes; ctypes.PyDLL(None).sleep(200)", num_beats=0),),
        "waits for another": (WAITS,),
        "does not come": (WAITS,),
    }  # fmt: skip
    folders = {name: tmp_path_factory.mktemp(name.replace(" ", "_")) for name in programs}
    (folders["cannot write"] / "stacks").write_text("a file in the place of the folder")
    folders["does not come"] = folders["waits for another"]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = {"waits for another": job | {"RANK": "0"}, "does not come": job | {"RANK": "1"}}
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", program, str(folders[name]), *arguments],
            cwd=ROOT,
            env=os.environ | ranks.get(name, {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, (program, *arguments) in programs.items()
    }
    said = {name: process.communicate(timeout=300) for name, process in processes.items()}
    return {
        name: Ended(folders[name], process.returncode, *said[name]) for name, process in processes.items()
    }


@pytest.mark.slow
def test_only_the_main_rank_has_to_beat_while_it_works_alone(ended: dict[str, Ended]) -> None:
    assert ended["main idles"].code == 1
    assert ended["rank 3 idles"].code == 0, ended["rank 3 idles"].err


@pytest.mark.slow
def test_a_rank_that_hangs_says_where_and_ends(ended: dict[str, Ended]) -> None:
    done = ended["hangs"]
    assert (done.code, done.out) == (1, "moved\n")
    text = stacks(done.folder, 3).read_text()
    assert text.startswith("rank 3 made no progress for ")
    assert "in phase 'updates'" in text
    assert "in wait_for_a_message_that_never_comes" in text
    (line,) = done.err.splitlines()
    assert str(stacks(done.folder, 3)) in line
    assert "trainer.hang_timeout_s" in line


@pytest.mark.slow
def test_a_rank_that_cannot_write_its_stacks_ends_all_the_same(ended: dict[str, Ended]) -> None:
    done = ended["cannot write"]
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert "rank-00003.txt is not complete" in line


@pytest.mark.slow
def test_a_rank_whose_interpreter_is_held_ends_as_well(ended: dict[str, Ended]) -> None:
    done = ended["holds the interpreter"]
    assert (done.code, done.out) == (1, "moved\n")
    assert "in wait_for_a_message_that_never_comes" in done.err


@pytest.mark.slow
def test_a_rank_that_waits_for_another_says_in_which_collective(ended: dict[str, Ended]) -> None:
    waits, comes_not = ended["waits for another"], ended["does not come"]
    assert (waits.code, comes_not.code) == (1, 1)
    waiting, sleeping = (stacks(waits.folder, rank).read_text() for rank in (0, 1))
    assert "waiting in gloo:all_gather number " in waiting
    assert "waiting in" not in sleeping
    assert pickle.loads((waits.folder / "stacks" / "gloo_0").read_bytes())["entries"]


def test_the_watchdog_watches_no_longer_than_its_block(tmp_path: Path) -> None:
    def is_watched() -> bool:
        return "watchdog" in [thread.name for thread in threading.enumerate()]

    with Watchdog(tmp_path, rank=0, timeout_s=1000):
        assert is_watched()
    assert not is_watched()


def test_a_phase_is_what_the_terminal_says_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    monkeypatch.setattr("nemo_prorl.training.watchdog.terminal.wait_for", lambda *what: said.append(what))
    with Watchdog(tmp_path, rank=0, timeout_s=0) as watchdog:
        watchdog.follow(RunState(stage="main", step=11))
        for phase in ("sampling", "old_logprobs", "checkpoint"):
            watchdog.enter(phase)
    assert said == [
        ("step 12: sampling", "rollouts sampled or graded"),
        ("step 12: old logprobs", ""),
        ("after step 11: checkpoint", ""),
    ]
