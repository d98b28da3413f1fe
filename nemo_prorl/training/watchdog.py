"""RUN/heartbeat.json shows what a run is doing right now, and a watchdog ends ranks that hang.

A rank that hangs blocks all others, and their GPUs. So each rank watches itself: without progress for
trainer.hang_timeout_s it writes the stacks of its threads and its unfinished collectives to RUN/stacks/ and exits with
an error, and the launcher restarts the job from the last checkpoint.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.run_folder import terminal
from nemo_prorl.run_folder.storage import replace_text

if TYPE_CHECKING:
    from nemo_prorl.run_folder.starts import Recorder
    from nemo_prorl.types import RunState

ROLLOUT_PHASES = ("sampling", "grading", "validation")
"""Phases in which every rollout that is sampled or graded is a beat."""
PHASES_BETWEEN = ("validation", "checkpoint", "going_back")
"""Phases after a step that is already counted."""
LAST_WORDS_S = 5.0
"""Delay before a rank exits. Launchers kill all ranks as soon as one exits; until then the others can write their
stacks, too."""


class Watchdog:
    """A context that ends this process when it makes no progress. Progress means that `enter` or `beat` is called."""

    def __init__(
        self, run_dir: Path, *, rank: int, timeout_s: float, recorder: Recorder | None = None
    ) -> None:
        """timeout_s: 0 writes heartbeats, but never ends the process. recorder: gets progress, and a hang if there is
        one."""
        self._run_dir, self._rank, self._timeout_s, self._recorder = run_dir, rank, timeout_s, recorder
        self._state: RunState | None = None
        self._phase, self._last = "start", time.monotonic()
        self._trusts_main = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        if self._rank == 0:
            heartbeat(self._run_dir).unlink(missing_ok=True)  # of an earlier process
        if self._timeout_s:
            self._arm()
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        if self._timeout_s:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def follow(self, state: RunState) -> None:
        """Makes the main rank write heartbeats from now on, with the step and stage of `state`."""
        self._state = state

    def enter(self, phase: str) -> None:
        """Notes that a phase of the step begins, and writes the heartbeat."""
        self._phase = phase
        self.beat()
        if self._rank == 0 and self._state is not None:
            unit = "rollouts sampled or graded" if phase in ROLLOUT_PHASES else ""
            step = self._state.step
            place = f"after step {step}" if phase in PHASES_BETWEEN else f"step {step + 1}"
            terminal.wait_for(f"{place}: {phase.replace('_', ' ')}", unit)
            record = {
                "step": self._state.step,
                "stage": self._state.stage,
                "phase": phase,
                "time": time.time(),
            }
            replace_text(heartbeat(self._run_dir), json.dumps(record))

    def beat(self) -> None:
        """Notes progress within a phase, such as a finished rollout."""
        self._last = time.monotonic()
        terminal.progress()
        if self._recorder is not None:
            self._recorder.note()

    @contextmanager
    def trusting_main(self) -> Iterator[None]:
        """Suspends the watch of the other ranks while the main rank works and they wait for it. If it hangs, its own
        watchdog ends the job."""
        self._trusts_main = self._rank != 0
        try:
            yield
        finally:
            self.beat()
            self._trusts_main = False

    def _watch(self) -> None:
        while not self._closed.wait(min(5.0, self._timeout_s / 4)):
            self._arm()
            idle_s = time.monotonic() - self._last
            if idle_s > self._timeout_s and not self._trusts_main:
                self._end(idle_s)

    def _arm(self) -> None:
        """Restarts a timer that ends the process even if native code holds the GIL and so stops the watching thread."""
        faulthandler.dump_traceback_later(self._timeout_s, exit=True)

    def _end(self, idle_s: float) -> None:
        """Writes the stacks and ends the process, even if writing fails, for example on a full disk."""
        where = stacks(self._run_dir, self._rank)
        what = f"rank {self._rank} made no progress for {idle_s:.0f} s in phase {self._phase!r}"
        hint = f"its stacks are in {where}"
        try:
            if self._recorder is not None:
                self._recorder.end(what)
            where.parent.mkdir(exist_ok=True)
            with where.open("w", encoding="utf-8") as file:
                print(f"{what}. Its threads, most recent call first:\n", file=file, flush=True)
                faulthandler.dump_traceback(file)
                if "torch" in sys.modules:  # a process without torch has no collectives
                    from nemo_prorl.distributed import traces_of_collectives, unfinished_collectives

                    for backend, trace in traces_of_collectives().items():
                        where.with_name(f"{backend}_{self._rank}").write_bytes(trace)
                        for line in unfinished_collectives(trace):
                            print(f"waiting in {line}", file=file, flush=True)
        except Exception as error:
            hint = f"{where} is not complete ({error})"
        try:
            print(f"error: {what} (trainer.hang_timeout_s): {hint}.", file=sys.stderr, flush=True)
            time.sleep(LAST_WORDS_S)
        finally:
            os._exit(1)


def heartbeat(run_dir: Path) -> Path:
    """Returns the path of a JSON object with step (finished steps), stage, phase of the main rank, and time when the
    phase began (seconds since 1970)."""
    return run_dir / "heartbeat.json"


def stacks(run_dir: Path, rank: int) -> Path:
    """Returns the path of the stacks of a rank that hung."""
    return run_dir / "stacks" / f"rank-{rank:05d}.txt"
