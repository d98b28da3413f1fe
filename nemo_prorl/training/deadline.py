"""When to pause at the next step boundary: a signal came, or the time that is left is too short for another step.

Standard library only: signals are caught before anything heavy is imported, since Slurm may send one at any moment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import FrameType

from nemo_prorl.config import ExpManagerConfig
from nemo_prorl.layout import rank_from_environment

STARTED = time.time()
"""When this process began to count: on the first import of this module, before any other work of `train`."""
MARGIN = 1.5
"""A step, a validation and a save may take this many times what the longest recent ones took (our choice)."""
SPARE_S = 10.0
"""For whatever is neither: taking down engines, flushing files (our choice)."""
NUM_RECENT = 20
"""Steps that count as recent."""

_received: list[str] = []


def catch_signals() -> None:
    """From now on SIGUSR1 and SIGTERM ask for a pause. Nothing is saved in the handler: the loop does it in order."""
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, _remember)


@contextmanager
def pausing_on_interrupt(*, speaks: bool) -> Iterator[None]:
    """In the body Ctrl-C asks for a pause, too, and says so if this rank `speaks`; pressed again, it ends the process
    as usual. A process that ignores Ctrl-C, as shells make those in the background, still does."""
    before = signal.getsignal(signal.SIGINT)

    def remember(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        _remember(number, frame)
        if speaks:  # print must not be called from a handler
            os.write(2, b"\nCtrl-C: the run saves itself after this step and ends; again: it ends at once.\n")

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _remember(number: int, _frame: FrameType | None) -> None:
    """Also says at once what a signal from outside leads to, since the step may take long yet."""
    name = signal.Signals(number).name
    if number != signal.SIGINT and name not in _received and rank_from_environment() == 0:
        os.write(2, f"{name} came: the run saves itself after this step and pauses.\n".encode())
    _received.append(name)


class Deadline:
    """Knows when the time is up, and how long a step, a validation and a save take."""

    def __init__(self, ends: Mapping[str, float]) -> None:
        """`ends`: what sets a limit -> when it ends, in seconds since the epoch."""
        self._ends = dict(ends)
        self._recent: dict[str, list[float]] = {}

    def note(self, what: str, seconds: float) -> None:
        """`what` took so long: a step, a validation or a save."""
        self._recent[what] = [*self._recent.get(what, []), seconds][-NUM_RECENT:]

    def reason(self, now: float | None = None) -> str:
        """Why to pause now; empty when there is no reason. Before the first step was timed only a signal counts: a
        limit that has no room for one step would else be waited for for ever."""
        if _received:
            return f"{_received[0]} came"
        if not self._recent or not self._ends:
            return ""
        needed_s = MARGIN * sum(max(seconds) for seconds in self._recent.values()) + SPARE_S
        name, end = min(self._ends.items(), key=lambda item: item[1])
        left_s = end - (time.time() if now is None else now)
        if left_s >= needed_s:
            return ""
        return (
            f"{name} leaves {max(left_s, 0):.0f} s, and the next step with its save may take {needed_s:.0f} s"
        )


def find_ends(config: ExpManagerConfig, environment: Mapping[str, str] = os.environ) -> dict[str, float]:
    """For `Deadline`: exp_manager.max_time_per_run, counted from the start of the process, and the end of the Slurm job
    that this process runs in."""
    ends = {}
    if config.max_time_per_run_s:
        ends["exp_manager.max_time_per_run"] = STARTED + config.max_time_per_run_s
    slurm_end = _slurm_end(environment)
    if slurm_end is not None:
        ends["the Slurm job's time limit"] = slurm_end
    return ends


def _slurm_end(environment: Mapping[str, str]) -> float | None:
    """Seconds since the epoch; None outside of Slurm, or for a job without a limit."""
    if environment.get("SLURM_JOB_END_TIME", "").isdigit():  # Slurm 23.02 and later
        return float(environment["SLURM_JOB_END_TIME"])
    job = environment.get("SLURM_JOB_ID")
    if not job:
        return None
    command = ["squeue", "--noheader", f"--job={job}", "--format=%e"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        return datetime.fromisoformat(answer.strip()).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError):  # N/A for a job without a limit
        return None
