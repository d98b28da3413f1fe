"""Stands in for `python -m nemo_prorl` and `python -m reward` in the launchers, quickly and without engines.

FATE=A,B,... in the environment says what happens in each start of a job: first A, after the first restart B, and so on.
After a SIGTERM the first rank has a step to finish, for which it needs a reward server: the same signal ends that.
Every rank writes RUN/ranks/LIFE-RANK.json with what it was given.

FAULTY=one plants a fault on the second node of the first start, FAULTY=all one on every node, which the real `doctor`
then finds: a run folder that cannot be made. DOCTOR_WAITS lets the first start's `doctor` wait for SIGUSR1. With
SERVICE=missing no reward service can be started.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

FATES = ("done", "paused", "crash", "crash_after_progress", "stopped", "waiting", "unwritable")


def serve(arguments: list[str]) -> int:
    if os.environ.get("SERVICE") == "missing":
        print("reward: fastapi cannot be imported", flush=True)
        return 2
    ready = Path(arguments[arguments.index("--ready-file") + 1])
    signal.signal(signal.SIGTERM, lambda *_: None)
    print("service", json.dumps(arguments), flush=True)
    ready.write_text(json.dumps({"url": f"http://nowhere:{os.getpid()}"}))
    signal.pause()
    return 0


def doctor(arguments: list[str]) -> int:
    """Runs the real `doctor` for folders only, or reports that everything works."""
    folder, node = Path(arguments[arguments.index("--folder") + 1]), os.environ["SLURMD_NODENAME"]
    if os.environ["FATE"] == "mistake":
        said = {"verdict": "mistake", "sentence": "start: no model", "is_complete": True}
        (folder / f"{node}.json").write_text(json.dumps(said))
        return 2
    if "DOCTOR_WAITS" in os.environ and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        (folder / f"{node}.waits").touch()
        deadline = time.monotonic() + 180
        while not (folder / "usr1").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    if "FAULTY" not in os.environ:
        (folder / f"{node}.json").write_text('{\n "verdict": "ok",\n "is_complete": true\n}')
        return 0
    place = folder.parents[1] / "faults" / node
    place.parent.mkdir(exist_ok=True)
    is_first_life = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
    if os.environ["FAULTY"] == "all" or (is_first_life and os.environ["SLURM_PROCID"] == "1"):
        place.write_text("not a folder")
        own = f"exp_manager.explicit_log_dir={place}/run"
        arguments = [own if text.startswith("exp_manager.explicit_log_dir=") else text for text in arguments]
    command = [sys.executable, "-m", "nemo_prorl", "doctor", "--only=folders", *arguments]
    os.execv(sys.executable, command)


def check(arguments: list[str]) -> int:
    """Prints the report of the sandbox, which only the real `doctor` reads."""
    print("{}")
    return 0


def train(arguments: list[str]) -> int:
    given = dict(text.partition("=")[::2] for text in arguments if "=" in text)
    came: list[int] = []  # from before the test may see this rank
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: came.append(number))
    run_dir, stage, rank = (
        Path(given["exp_manager.explicit_log_dir"]),
        given["stage"],
        int(os.environ["RANK"]),
    )
    life = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    wanted = {"arguments": arguments, "environment": dict(os.environ)}
    (run_dir / "ranks").mkdir(exist_ok=True)
    (run_dir / "ranks" / f"{life}-{rank}.json").write_text(json.dumps(wanted))
    server = run_dir / "reward" / os.environ["SLURM_JOB_ID"] / f"{os.environ['SLURMD_NODENAME']}.json"
    before = server.read_text() if server.exists() else ""
    fates = os.environ["FATE"].split(",")
    fate = fates[min(life, len(fates) - 1)]
    assert fate in FATES, fate
    if rank:
        return _follow(fate, came)
    if fate in ("waiting", "paused"):
        _until(came, seconds=0.5 if fate == "paused" else 600)
    deadline = time.monotonic() + 60
    while signal.SIGTERM in came and not (server.exists() and server.read_text() not in ("", before)):
        assert time.monotonic() < deadline, "no server grades what is left of this step"
        time.sleep(0.05)
    if fate in ("done", "waiting", "crash_after_progress"):
        (run_dir / "checkpoints" / f"step-{life + 1:08d}-{stage}").mkdir(parents=True)
    if fate == "done":
        (run_dir / "stages" / f"{stage}.done").write_text("{}")
    if fate == "unwritable":  # as on a full disk, which only root can make
        shutil.rmtree(run_dir / "stages")
        (run_dir / "stages").touch()
        return 1
    if fate == "stopped":
        (run_dir / "stages" / f"{stage}.failed").write_text('{"reason": "the controller stops"}')
    return int(fate in ("crash", "crash_after_progress", "stopped"))


def _follow(fate: str, came: list[int]) -> int:
    """Acts as a rank other than the first: hangs when that crashes, as in a collective."""
    if fate == "waiting" or "crash" in fate:
        _until(came, seconds=600)
    return 0


def _until(came: list[int], seconds: float) -> None:
    """Waits until the signal has come or the time is over."""
    deadline = time.monotonic() + seconds
    while not came and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    command, *rest = sys.argv[3:]  # python -m MODULE COMMAND ...
    sys.exit({"serve": serve, "check": check, "doctor": doctor, "train": train}[command](rest))
