"""Stands in for `python -m nemo_prorl` and `python -m reward` in the launchers, quickly and without engines.

FATE=A,B,... in the environment says what happens in each start of a job: first A, after the first restart B, and so on.
After a SIGTERM the first rank has a step to finish, for which it needs a reward server: the same signal ends that.
Every rank writes RUN/ranks/LIFE-RANK.json with what it was given. With the fate "faulty" `doctor` finds fault with the
second node, and with "late" it waits for SIGUSR1; "alone" has no reward service.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

LIFE = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
FATES = os.environ["FATE"].split(",")
FATE = FATES[min(LIFE, len(FATES) - 1)]
NODE = os.environ.get("SLURMD_NODENAME", "")


def serve(arguments: list[str]) -> int:
    if FATE == "alone":
        print("reward: fastapi cannot be imported", flush=True)
        return 2
    ready = Path(arguments[arguments.index("--ready-file") + 1])
    signal.signal(signal.SIGTERM, lambda *_: None)
    print("service", json.dumps(arguments), flush=True)
    ready.write_text(json.dumps({"url": f"http://nowhere:{os.getpid()}"}))
    signal.pause()
    return 0


def doctor(arguments: list[str]) -> None:
    folder = Path(arguments[arguments.index("--folder") + 1])
    if FATE == "late":
        (folder / f"{NODE}.waits").touch()
        wait_until(lambda: (folder / "usr1").exists(), seconds=180)
    is_faulty = FATE == "faulty" and os.environ["SLURM_PROCID"] == "1"
    found = {"verdict": "failure" if is_faulty else "ok", "sentence": "caches: no room", "is_complete": True}
    (folder / f"{NODE}.json").write_text(json.dumps(found))


def check(arguments: list[str]) -> None:
    """Prints the report of the sandbox, which only the real `doctor` reads."""
    print("{}")


def train(arguments: list[str]) -> int:
    given = dict(text.partition("=")[::2] for text in arguments if "=" in text)
    came: list[int] = []  # from before the test may see this rank
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: came.append(number))
    run_dir, stage = Path(given["exp_manager.explicit_log_dir"]), given["stage"]
    rank = int(os.environ["RANK"])
    (run_dir / "ranks").mkdir(exist_ok=True)
    wanted = {"arguments": arguments, "environment": dict(os.environ)}
    (run_dir / "ranks" / f"{LIFE}-{rank}.json").write_text(json.dumps(wanted))
    server = run_dir / "reward" / os.environ["SLURM_JOB_ID"] / f"{NODE}.json"
    before = server.read_text() if server.exists() else ""
    if rank:  # hangs when the first one crashes, as in a collective
        wait_until(lambda: bool(came), seconds=600 if FATE == "waiting" or "crash" in FATE else 0)
        return 0
    wait_until(lambda: bool(came), seconds={"waiting": 600, "paused": 0.5}.get(FATE, 0))
    if signal.SIGTERM in came:
        is_back = wait_until(lambda: server.exists() and server.read_text() not in ("", before), seconds=60)
        assert is_back, "no server grades what is left of this step"
    if FATE in ("done", "waiting", "crash_after_progress"):
        (run_dir / "checkpoints" / f"step-{LIFE + 1:08d}-{stage}").mkdir(parents=True)
    if FATE == "done":
        (run_dir / "stages" / f"{stage}.done").write_text("{}")
    if FATE == "stopped":
        (run_dir / "stages" / f"{stage}.failed").write_text('{"reason": "the controller stops"}')
    return int(FATE in ("crash", "crash_after_progress", "stopped"))


def wait_until(has_come: Callable[[], bool], *, seconds: float) -> bool:
    """Returns whether it has come in this time."""
    deadline = time.monotonic() + seconds
    while not has_come() and time.monotonic() < deadline:
        time.sleep(0.05)
    return has_come()


if __name__ == "__main__":
    command, *rest = sys.argv[3:]  # python -m MODULE COMMAND ...
    sys.exit({"serve": serve, "check": check, "doctor": doctor, "train": train}[command](rest))
