"""The processes that have trained in a run's folder, one after the other: RUN/lives.json.

A run that takes weeks is started many times. Each start adds an entry, which the main rank keeps up to date: when the
process began, when it was last seen, on how many ranks it ran, and how it ended. GPU hours add up from that.
Read by commands that answer at once: standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from nemo_prorl.storage import replace_text

REWRITE_S = 20.0
"""An entry is brought up to date at most this often, however many signs of life there are."""
END_WAIT_S = 10.0
"""A process that ends waits at most so long for a thread whose write may be stuck in the file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process (of the main rank, and with it of all ranks)."""

    stage: str
    began: float
    """In seconds since 1970, as is `seen`."""
    seen: float
    """When the process showed its last sign of life."""
    num_ranks: int
    on_gpus: bool
    """Each rank has a GPU; otherwise it computes on the CPU."""
    host: str = ""
    job: str = ""
    """Id of the Slurm job; empty outside of Slurm."""
    end: str = ""
    """An outcome of the stage, or the sentence with which the process ended. Empty while it runs; it stays empty when
    the process is killed."""

    @property
    def rank_hours(self) -> float:
        """Hours of wall time times ranks: GPU hours where the ranks have GPUs."""
        return (self.seen - self.began) / 3600 * self.num_ranks


def lives_file(run_dir: Path) -> Path:
    """A list of `Life`, the oldest first."""
    return run_dir / "lives.json"


def read_lives(run_dir: Path) -> list[Life]:
    """Empty for a run without such a file, and for one whose file cannot be read: it holds only what is told of a run,
    nothing that a run needs."""
    try:
        return _read(lives_file(run_dir))
    except (OSError, ValueError, TypeError):
        return []


def _read(file: Path) -> list[Life]:
    """Leaves out fields that a later version of this module may have added. Raises OSError, ValueError or TypeError."""
    known = {field.name for field in fields(Life)}
    entries = json.loads(file.read_text(encoding="utf-8"))
    return [
        Life(**{name: value for name, value in dict(entry).items() if name in known}) for entry in entries
    ]


def _take_over(file: Path) -> list[Life]:
    """The entries that the new file begins with. A file that cannot be read is renamed instead of overwritten."""
    try:
        return _read(file)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        file.rename(file.with_name(f"lives.unreadable-{time.time_ns()}.json"))
        return []


def hours_by_stage(lives: Sequence[Life]) -> dict[str, float]:
    """Rank hours of each stage, in the order in which the stages were begun."""
    hours: dict[str, float] = {}
    for life in lives:
        hours[life.stage] = hours.get(life.stage, 0.0) + life.rank_hours
    return hours


class Recorder:
    """Keeps the entry of this process on the main rank; on the others it does nothing."""

    def __init__(self, run_dir: Path, life: Life, *, is_main: bool) -> None:
        self._run_dir, self._life, self._is_main = run_dir, life, is_main
        self._earlier = _take_over(lives_file(run_dir)) if is_main else []
        self._lock = threading.Lock()
        self._write()

    def note(self) -> None:
        """The process is alive. Any thread may say so."""
        if self._is_main and time.time() - self._life.seen > REWRITE_S and self._lock.acquire(blocking=False):
            try:
                with suppress(OSError):  # a full disk ends the run where it needs the disk
                    self._write()
            finally:  # Ctrl-C may come here, too
                self._lock.release()

    def end(self, how: str) -> None:
        """The process is about to end in this way; the first way that is told counts."""
        if self._is_main and self._lock.acquire(timeout=END_WAIT_S):
            try:
                self._life = replace(self._life, end=self._life.end or how)
                with suppress(OSError):
                    self._write()
            finally:
                self._lock.release()

    def _write(self) -> None:
        if self._is_main:
            self._life = replace(self._life, seen=time.time())
            entries = [asdict(life) for life in (*self._earlier, self._life)]
            replace_text(lives_file(self._run_dir), json.dumps(entries, indent=1) + "\n")


@contextmanager
def recorded_life(
    run_dir: Path, stage: str, *, began: float, num_ranks: int, on_gpus: bool, is_main: bool
) -> Iterator[Recorder]:
    """Records this process for as long as the body runs, and the error that ends it, if one does."""
    life = Life(
        stage=stage,
        began=began,
        seen=began,
        num_ranks=num_ranks,
        on_gpus=on_gpus,
        host=socket.gethostname(),
        job=os.environ.get("SLURM_JOB_ID", ""),
    )
    recorder = Recorder(run_dir, life, is_main=is_main)
    try:
        yield recorder
    except BaseException as error:
        ctrl_c = "interrupted by Ctrl-C" if isinstance(error, KeyboardInterrupt) else ""
        recorder.end(str(error) or ctrl_c or type(error).__name__)
        raise
