"""The files of a run's folder that a job reads and writes. A full disk or a folder that is gone never stops the job
that wants to say so: what cannot be written is said in the log.

RUN/slurm/job.json      the job that holds the folder, and its state
RUN/stages/NAME.*       done, failed (nemo_prorl/run_folder/markers.py); restarts, excluded
RUN/doctor/JOB/         what each node's `doctor` found
RUN/reward/JOB/         token, addresses and logs of the job's reward servers; only the user may read it
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurm.job.decisions import ENDED, Answer, Holder

PROBE_BYTES = 1 << 16
"""Bytes that there must be room for before a node is blamed for its silence; an answer has about a tenth."""


def say(stage: str, text: str) -> None:
    """Writes a line into the job's log; not with print, which would fail again at exit if the disk is full."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {stage}: {text}\n"
    with suppress(OSError):
        os.write(1, line.encode())


class Folder:
    """The run's folder, as the job of one stage sees it."""

    def __init__(self, run_dir: str, stage: str, job: str) -> None:
        self.path, self.stage, self.job = Path(run_dir), stage, job
        self.reward, self.doctor = self.path / "reward" / job, self.path / "doctor" / job
        self.nccl = self.path / "nccl"
        self._record: dict[str, Any] = {}

    def marker(self, kind: str) -> Path:
        return self.path / "stages" / f"{self.stage}.{kind}"

    def newest_step(self) -> int:
        """Returns the step of the newest whole checkpoint, or 0 (names: nemo_prorl/run_folder/checkpoints.py)."""
        try:
            names = os.listdir(self.path / "checkpoints")
        except OSError:
            return 0
        found = [re.match(r"step-(\d+)-", name) for name in names]
        return max((int(match[1]) for match in found if match), default=0)

    # ------------------------------------------------------------------------------------------ who holds the folder
    def holders(self) -> list[Holder]:
        """Returns those who may train in the folder: the job of job.json, unless it has said that it ended, and the
        process that holds RUN/lock. Writes nothing."""
        found = []
        job = read_json(self.path / "slurm" / "job.json")
        if job and job.get("state") != ENDED:
            found.append(_holder(job, str(job.get("job_id", ""))))
        if is_locked(self.path / "lock"):
            lock = read_json(self.path / "lock")
            found.append(_holder(lock, str(lock.get("job", "")), is_alive=True))
        return found

    def hold(self, record: Mapping[str, Any]) -> None:
        """Claims the folder: makes what a job needs in it, and job.json with `record`, state and time. Raises OSError
        if that cannot be written, which no later part of the job would survive."""
        for folder in (self.path / "stages", self.path / "slurm", self.path / "reward", self.doctor.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self._record = dict(record)
        _replace(self.path / "slurm" / "job.json", json.dumps(self._dated()))
        shutil.rmtree(self.doctor, ignore_errors=True)  # of an earlier start of this job
        self.doctor.mkdir()
        self.reward.mkdir(mode=0o700, exist_ok=True)
        for file in [*self.reward.glob("*.json"), self.reward / "over", self.reward / "usr1"]:
            file.unlink(missing_ok=True)
        token = os.open(self.reward / "token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(token, "wb") as secret:
            secret.write(base64.b64encode(os.urandom(32)) + b"\n")
        # The user, who has submitted it, is trusted to have corrected what was wrong; a requeue has corrected nothing.
        if record["start"] == 1:
            for kind in ("failed", "restarts", "excluded"):
                self.marker(kind).unlink(missing_ok=True)

    def is_held(self) -> bool:
        """Returns whether job.json still names this job; False if another one wrote it at the same moment."""
        return str(read_json(self.path / "slurm" / "job.json").get("job_id", self.job)) == self.job

    def note_state(self, state: str, reason: str = "") -> None:
        """Writes a change of the job's state into job.json, if this job holds the folder."""
        if self._record and self.is_held():
            self._record.update(state=state, reason=reason)
            self.write(self.path / "slurm" / "job.json", json.dumps(self._dated()))

    def _dated(self) -> dict[str, Any]:
        return {**self._record, "updated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}

    # ------------------------------------------------------------------------------------------------------- markers
    def failure(self) -> str:
        """Returns why the stage has failed, from its marker; empty unless there is one."""
        file = self.marker("failed")
        return str(read_json(file).get("reason", f"see {file}")) if file.exists() else ""

    def mark_failed(self, reason: str) -> None:
        """Writes the marker with which a requeue does not retry the stage; a new sbatch does."""
        self.write(self.marker("failed"), json.dumps({"reason": reason}))

    def count_idle(self, step: int, first_step: int) -> int:
        """Counts the starts in a row, with this one, that ended without a new checkpoint, and returns their number."""
        file, num = self.marker("restarts"), 0
        if step <= first_step:
            text = read_text(file).strip()
            num = 1 + (int(text) if text.isdigit() else 0)
        self.write(file, f"{num}\n")
        return num

    def note_excluded(self, nodes: Sequence[str]) -> None:
        """Adds nodes to those that this job has left out."""
        file = self.marker("excluded")
        self.write(file, read_text(file) + "".join(f"{node}\n" for node in nodes))

    def write(self, file: Path, text: str) -> bool:
        """Replaces a file atomically; returns whether that was possible, and says in the log why not."""
        try:
            _replace(file, text)
            return True
        except OSError as error:
            say(self.stage, f"{file} cannot be written: {error.strerror}")
            return False

    def unwritable(self) -> str:
        """Returns why PROBE_BYTES cannot be written beside the nodes' answers, and what to do; empty if they can."""
        probe = self.doctor / ".probe"
        try:
            with open(probe, "wb") as file:
                file.write(bytes(PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())  # a shared file system may refuse only now
            return ""
        except OSError as error:
            return cannot_write(self.doctor, error)
        finally:
            with suppress(OSError):
                probe.unlink()

    # ------------------------------------------------------------------------------------------- doctor and servers
    def answers(self, nodes: Sequence[str]) -> dict[str, Answer]:
        """Returns what `doctor` says of each node that has written all of its answer."""
        found = {node: read_json(self.doctor / f"{node}.json") for node in nodes}
        return {
            node: Answer(str(record["verdict"]), str(record.get("sentence", "")))
            for node, record in found.items()
            if record.get("is_complete") and "verdict" in record
        }

    def domains(self) -> str | None:
        """Returns the domains of the data, one a line, empty if the run's own functions grade all of it; None if
        `doctor` has not written them."""
        return read_text(self.doctor / "domains", None)

    def announcements(self) -> list[dict[str, Any]]:
        """Returns what each reward server that is ready has written."""
        return [read_json(file) for file in sorted(self.reward.glob("*.json"))]

    def error_of_trainer(self, since_s: float) -> str:
        """Returns the error that the trainer of this start has recorded (nemo_prorl/run_folder/starts.py); empty if it
        has not. since_s: a time before its beginning, in seconds since 1970."""
        try:
            last = json.loads(read_text(self.path / "starts.json"))[-1]
            return " ".join(last["end"].split()) if last["began"] > since_s else ""
        except (ValueError, LookupError, TypeError):
            return ""

    def usr1_came_s(self) -> float | None:
        """Returns when a node noted SIGUSR1, in seconds since 1970; None if none has."""
        times = [read_text(file).strip() for file in (self.doctor / "usr1", self.reward / "usr1")]
        return max((float(text) for text in times if text.isdigit()), default=None)

    def prepare_nccl_log(self) -> None:
        """Makes the folder of NCCL's log, and keeps that of the job before, which may have failed."""
        before = self.path / "nccl.before"
        shutil.rmtree(before, ignore_errors=True)
        if self.nccl.is_dir():
            self.nccl.rename(before)
        self.nccl.mkdir()

    def is_there(self) -> bool:
        """Returns whether the folder of this job's reward servers exists; a file system that does not answer says
        nothing about that."""
        try:
            os.stat(self.reward)
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True

    def close_service(self) -> None:
        """Tells the servers of this job not to start again: those that end from now on are meant to."""
        if self.reward.is_dir():
            self.write(self.reward / "over", "")

    def forget_token(self) -> None:
        """Removes the token of this start's servers; the next one makes another."""
        with suppress(OSError):
            (self.reward / "token").unlink()


def cannot_write(path: Path, error: OSError) -> str:
    """Returns a sentence for the user: what cannot be written, why, and what to do."""
    what = f"{error.filename or path} cannot be written ({error.strerror})"
    return f"{what}: make room or correct its permissions, then submit the launcher again"


def _holder(record: Mapping[str, Any], job: str, is_alive: bool = False) -> Holder:
    cluster, user, host = (str(record.get(name, "")) for name in ("cluster", "user", "host"))
    return Holder(job=job, cluster=cluster, user=user, host=host, is_alive=is_alive)


def is_locked(file: Path) -> bool:
    """Returns whether a process holds the lock; False on a file system without locks."""
    try:
        with file.open() as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def read_text(file: Path, default: Any = "") -> Any:
    """Returns the text of a file; `default` if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return default


def read_json(file: Path) -> dict[str, Any]:
    """Returns the object in a file of JSON; an empty one if there is none."""
    try:
        record = json.loads(read_text(file))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _replace(file: Path, text: str) -> None:
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
