"""What a rank is doing right now: told to people in RUN/heartbeat.json, and ended when nothing moves any more.

A rank that hangs holds all others, and a cluster's worth of accelerators, until somebody looks. So each rank watches
itself: without progress for trainer.hang_timeout_s it writes the stacks of its threads and its latest collectives to
RUN/stacks/ and ends with a failure, upon which the launcher starts the job again from the last checkpoint.
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

from nemo_prorl.storage import replace_text

if TYPE_CHECKING:
    from types import TracebackType

    from nemo_prorl.training.lives import Recorder
    from nemo_prorl.types import RunState

LAST_WORDS_S = 5.0
"""Launchers end all ranks as soon as one has ended: the others, which wait for it, get to write their stacks, too."""


class Watchdog:
    """Progress is entering a phase, or `beat`: a rollout or a verdict has come. Enter and leave it as a context."""

    def __init__(self, run_dir: Path, *, rank: int, timeout_s: float, life: Recorder | None = None) -> None:
        """`timeout_s` 0: only tells, never ends anything. `life` is told of progress, and of a hang."""
        self._run_dir, self._rank, self._timeout_s, self._life = run_dir, rank, timeout_s, life
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._timeout_s:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def follow(self, state: RunState) -> None:
        """From now on heartbeats name its step and stage."""
        self._state = state

    def enter(self, phase: str) -> None:
        self._phase = phase
        self.beat()
        if self._rank == 0 and self._state is not None:
            record = {
                "step": self._state.step,
                "stage": self._state.stage,
                "phase": phase,
                "time": time.time(),
            }
            replace_text(heartbeat(self._run_dir), json.dumps(record))

    def beat(self) -> None:
        self._last = time.monotonic()
        if self._life is not None:
            self._life.note()

    @contextmanager
    def trusting_main(self) -> Iterator[None]:
        """While the main rank works alone and beats, the others only wait for it: when it hangs, it ends the job."""
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
        """Native code that holds the interpreter stops the watching thread as well. Then this timer runs out."""
        faulthandler.dump_traceback_later(self._timeout_s, exit=True)

    def _end(self, idle_s: float) -> None:
        """Whatever goes wrong with what it writes, a full disk for example, it ends the process."""
        where = stacks(self._run_dir, self._rank)
        what = f"rank {self._rank} made no progress for {idle_s:.0f} s in phase {self._phase!r}"
        told = f"its stacks are in {where}"
        try:
            if self._life is not None:
                self._life.end(what)
            where.parent.mkdir(exist_ok=True)
            with where.open("w", encoding="utf-8") as file:
                print(f"{what}; its threads, the newest call first:\n", file=file, flush=True)
                faulthandler.dump_traceback(file)
            _write_collectives(where, self._rank)
        except Exception as error:
            told = f"{where} is not complete ({error})"
        try:
            print(f"error: {what} (trainer.hang_timeout_s): {told}.", file=sys.stderr, flush=True)
            time.sleep(LAST_WORDS_S)
        finally:
            os._exit(1)


def _write_collectives(where: Path, rank: int) -> None:
    """Adds to the stacks what this rank waits for, and puts torch's own records of the collectives beside them."""
    if "torch" not in sys.modules:  # commands that only read heartbeats stay without it
        return
    from nemo_prorl.distributed import traces_of_collectives, unfinished_collectives

    for backend, trace in traces_of_collectives().items():
        where.with_name(f"{backend}_{rank}").write_bytes(trace)
        with where.open("a", encoding="utf-8") as file:
            for line in unfinished_collectives(trace):
                print(f"waiting in {line}", file=file)


def heartbeat(run_dir: Path) -> Path:
    """{"step", "stage", "phase", "time"}: finished steps, what the main rank does since when (seconds since 1970)."""
    return run_dir / "heartbeat.json"


def stacks(run_dir: Path, rank: int) -> Path:
    """Where the threads of a rank stood when it was given up."""
    return run_dir / "stacks" / f"rank-{rank:05d}.txt"
