"""Tells when to pause after a step: a signal came, or the remaining time is too short for another step.

Imports the standard library only, because signals must be caught before the slow imports: Slurm may send one any time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from nemo_prorl.config import ExpManagerConfig
from nemo_prorl.config.layout import rank_from_environment

STARTED = time.time()
"""When this module was first imported, which the command line does at once; in seconds since 1970."""
MARGIN = 1.5
"""The next step, validation and save may take this many times as long as the longest recent ones."""
SPARE_S = 10.0
"""Seconds to shut down engines, close loggers and flush files."""
NUM_RECENT = 20
"""Number of steps, validations and saves that count as recent."""

_received: list[str] = []


def catch_signals() -> None:
    """Makes SIGUSR1 and SIGTERM requests for a pause. The handler only notes them; the loop saves after the step."""
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, _remember)


def has_come(number: signal.Signals) -> bool:
    """Returns whether this process has received the signal since `catch_signals`."""
    return number.name in _received


@contextmanager
def pausing_on_interrupt(*, speaks: bool) -> Iterator[None]:
    """Within the context, the first Ctrl-C requests a pause, and says so if this rank `speaks`; the second ends the
    process as usual. Background processes, which ignore Ctrl-C, still do."""
    before = signal.getsignal(signal.SIGINT)

    def remember(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        _remember(number, frame)
        if speaks:  # handlers must not call print
            os.write(2, b"\nCtrl-C: the run saves itself after this step and ends; again: it ends at once.\n")

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _remember(number: int, _frame: FrameType | None) -> None:
    """Notes the signal and, because the step may take long, says at once what it leads to. A job that is shorter than
    the lead time of Slurm's SIGUSR1 gets it at its start: the launcher then says from when on it is heeded."""
    if number == signal.SIGUSR1 and time.time() < float(os.environ.get("PRORL_HEED_USR1_FROM", "0")):
        return
    name = signal.Signals(number).name
    if number != signal.SIGINT and name not in _received and rank_from_environment() == 0:
        os.write(2, f"{name} came: the run saves itself after this step and pauses.\n".encode())
    _received.append(name)


class Deadline:
    """Measures how long steps, validations and saves take, and compares that with the time limits."""

    def __init__(self, ends: Mapping[str, float], *, spare_s: float = SPARE_S) -> None:
        """`ends` maps the name of each limit to its end, in seconds since 1970. `spare_s`: what the end of the process
        may take after the last save."""
        self._ends, self._spare_s = dict(ends), spare_s
        self._recent: dict[str, list[float]] = {}

    def note(self, what: str, seconds: float) -> None:
        """Notes that `what` (a step, a validation or a save) took so long."""
        self._recent[what] = [*self._recent.get(what, []), seconds][-NUM_RECENT:]

    def reason(self, now: float | None = None) -> str:
        """Returns why to pause now; empty if there is no reason. Before the first step only a signal counts, so that a
        limit that is too short for any step still lets each process try one."""
        if _received:
            return f"{_received[0]} came"
        if "step" not in self._recent or not self._ends:
            return ""
        needed_s = MARGIN * sum(max(seconds) for seconds in self._recent.values()) + self._spare_s
        name, end = min(self._ends.items(), key=lambda item: item[1])
        left_s = end - (time.time() if now is None else now)
        if left_s >= needed_s:
            return ""
        return (
            f"{name} leaves {max(left_s, 0):.0f} s, and the next step with its save may take {needed_s:.0f} s"
        )


def find_ends(config: ExpManagerConfig, environment: Mapping[str, str] = os.environ) -> dict[str, float]:
    """Returns the limits for `Deadline`: exp_manager.max_time_per_run since the start of the process, and the end of
    the Slurm job that this process is part of."""
    ends = {}
    if config.max_time_per_run_s:
        ends["exp_manager.max_time_per_run"] = STARTED + config.max_time_per_run_s
    if environment.get("SLURM_JOB_END_TIME", "").isdigit():  # set by Slurm since 23.02, and by the launchers
        ends["the Slurm job's time limit"] = float(environment["SLURM_JOB_END_TIME"])
    return ends
