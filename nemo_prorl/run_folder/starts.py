"""RUN/starts.json: the processes that have trained in a run's folder, one after the other.

A run that takes weeks is started many times. Each start adds an entry, which the main rank keeps up to date: when the
process began, when it was last seen, on how many ranks it ran, and how it ended. The GPU hours follow from that.
Commands that must start fast read the file, so this module imports only the standard library.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nemo_prorl.run_folder.storage import keep_unread, read_or_skip, replace_text

REWRITE_S = 20.0
"""The entry is rewritten at most this often."""
END_WAIT_S = 10.0
"""A process that ends waits at most this long for a thread whose write may be stuck in the file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the run: a process of the main rank and the processes of the other ranks."""

    stage: str
    began: float
    """When the process started, in seconds since 1970."""
    seen: float
    """When it was last known to be alive, in seconds since 1970."""
    num_ranks: int
    on_gpus: bool
    """Whether each rank has a GPU; otherwise it computes on the CPU."""
    host: str = ""
    job: str = ""
    """Id of the Slurm job; empty outside of Slurm."""
    end: str = ""
    """The outcome of the stage, or the message of the error that ended the process. Empty while it runs, and if it was
    killed."""
    non_finite_step: int = 0
    """Step of the run that was not trained on, because something in it was not finite; 0: none."""


def starts_file(run_dir: Path) -> Path:
    """Returns the path of the file, a JSON list of `Start`, oldest first."""
    return run_dir / "starts.json"


def read_starts(run_dir: Path) -> list[Start]:
    """Returns the entries, oldest first; none if there is no file or it cannot be read: it is only for information, so
    it must not stop a command, which says so once."""
    file = starts_file(run_dir)
    return read_or_skip(file, _starts_of) or [] if file.exists() else []


def _starts_of(file: Path) -> list[Start]:
    return [Start(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]


class Recorder:
    """Keeps the entry of this process up to date. On ranks other than the main rank it does nothing."""

    def __init__(self, run_dir: Path, start: Start, *, is_main: bool) -> None:
        self._run_dir, self._start, self._is_main = run_dir, start, is_main
        self._earlier = read_starts(run_dir) if is_main else []
        if is_main and not self._earlier:
            keep_unread(starts_file(run_dir))
        self._lock = threading.Lock()
        self._write()

    def note(self) -> None:
        """Records that the process is alive. Any thread may call it."""
        # A thread whose write is stuck must not hold up the others.
        if time.time() - self._start.seen > REWRITE_S and self._lock.acquire(blocking=False):
            try:
                with suppress(OSError):  # this file is not worth ending a run for
                    self._write()
            finally:
                self._lock.release()

    def may_repeat(self, step: int) -> bool:
        """Records that something in this step of the run was not finite. Returns whether a restart may train on it: on
        GPUs, where no two processes compute exactly the same, and not if it was so in an earlier process."""
        with self._lock:
            self._start = replace(self._start, non_finite_step=step)
        before = [(start.stage, start.non_finite_step) for start in self._earlier]
        return self._start.on_gpus and (self._start.stage, step) not in before

    def end(self, how: str) -> None:
        """Records how the process ends. Later calls do not change it."""
        if self._lock.acquire(timeout=END_WAIT_S):
            try:
                self._start = replace(self._start, end=self._start.end or how)
                with suppress(OSError):
                    self._write()
            finally:  # also upon Ctrl-C
                self._lock.release()

    def _write(self) -> None:
        self._start = replace(self._start, seen=time.time())
        if self._is_main:
            entries = [asdict(start) for start in (*self._earlier, self._start)]
            replace_text(starts_file(self._run_dir), json.dumps(entries, indent=1) + "\n")


@contextmanager
def recorded_start(
    run_dir: Path, stage: str, *, began: float, num_ranks: int, on_gpus: bool, is_main: bool
) -> Iterator[Recorder]:
    """Records this process while the body runs, and the error if one ends it."""
    start = Start(
        stage=stage,
        began=began,
        seen=began,
        num_ranks=num_ranks,
        on_gpus=on_gpus,
        host=socket.gethostname(),
        job=os.environ.get("SLURM_JOB_ID", ""),
    )
    recorder = Recorder(run_dir, start, is_main=is_main)
    try:
        yield recorder
    except BaseException as error:
        ctrl_c = "interrupted by Ctrl-C" if isinstance(error, KeyboardInterrupt) else ""
        recorder.end(str(error) or ctrl_c or type(error).__name__)
        raise
