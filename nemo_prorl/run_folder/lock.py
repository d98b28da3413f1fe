"""The lock RUN/lock, which lets one process at a time train in a run's folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.telemetry import RunLog

LOCK_FILE = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """The process that holds a lock, as recorded in the lock file."""

    host: str
    job: str
    """Id of its Slurm job; empty outside of Slurm."""
    restarts: int
    """How often Slurm had requeued the job."""
    cluster: str = ""
    """Name of the Slurm cluster; another cluster may have a job of the same number."""
    user: str = ""
    """Owner of the job; Slurm may hide the jobs of other users."""

    def __str__(self) -> str:
        return f"job {self.job} on {self.host}" if self.job else f"a process on {self.host}"


def this_process() -> LockHolder:
    """Returns the holder that this process writes into its lock files."""
    return LockHolder(
        host=socket.gethostname(),
        job=os.environ.get("SLURM_JOB_ID", ""),
        restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        cluster=os.environ.get("SLURM_CLUSTER_NAME", ""),
        user=os.environ.get("SLURM_JOB_USER", ""),
    )


def lock_holder(folder: Path) -> LockHolder | None:
    """Returns the last holder of the folder's lock; None if the lock file does not exist or does not name one."""
    try:
        return LockHolder(**json.loads((folder / LOCK_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_held(folder: Path) -> bool | None:
    """Returns whether a process holds the folder's lock; None on a file system without locks. A process on another
    machine may hold it unseen, if the file system does not share locks."""
    try:
        with (folder / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None


def _locked(file: IO[str], path: Path) -> bool:
    """Tries to lock the file; returns whether this process holds the lock and `path` still names this file."""
    for pause_s in (0.05, 0.2, 0.0):  # is_held, which another process may have called, locks for an instant
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(file.fileno()).st_ino == path.stat().st_ino
        except BlockingIOError:
            time.sleep(pause_s)
        except FileNotFoundError:
            return False
    return False


@contextmanager
def alone_at(path: Path, refusal: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Keeps other processes out until the body ends, with a lock file in a folder that it makes. Raises ConfigError
    with `refusal` if another process stays for so long. Lets everybody in on a file system without locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + wait_s
    with ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("a"))  # again, because who was at work removes it
            try:
                if _locked(file, path):
                    break
            except OSError:  # no locks
                break
            if time.monotonic() > end:
                raise ConfigError(refusal)
            time.sleep(0.2)
        stack.callback(path.unlink, missing_ok=True)
        yield


def _put_aside(path: Path, holder: LockHolder) -> bool:
    """Renames a lock file that is still locked; returns whether this process did it. Only one process ever renames the
    lock of a holder: a second one might rename the lock file that the first has made since."""
    try:
        os.link(path, path.with_name(f"{path.name}.{holder.job}-{holder.restarts}"))
    except FileExistsError:
        return False
    path.unlink()
    return True


@contextmanager
def alone_in(run_dir: Path, is_gone: Callable[[LockHolder], bool]) -> Iterator[None]:
    """Locks the folder until the body or this process ends, because two processes in one folder would take each other's
    steps for their own. Raises ConfigError if another process holds the lock. Does nothing on a file system without
    locks.

    A crashed node keeps its locks on NFS until it is up again. `is_gone` returns whether a holder has certainly ended;
    then its lock file is renamed to lock.JOB-RESTARTS.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path, gone = run_dir / LOCK_FILE, None
    with ExitStack() as stack:
        file = stack.enter_context(path.open("a"))
        try:
            if not _locked(file, path):
                holder = lock_holder(run_dir)
                if holder is None or not is_gone(holder):
                    raise BlockingIOError
                # is_gone takes seconds, in which the holder may have released the lock or another process taken it.
                if not _locked(file, path):
                    if lock_holder(run_dir) != holder or not _put_aside(path, holder):
                        raise BlockingIOError
                    file, gone = stack.enter_context(path.open("a")), holder
                    if not _locked(file, path):
                        raise BlockingIOError
        except BlockingIOError:
            raise ConfigError(
                f"{lock_holder(run_dir) or 'another process'} is training in {run_dir}: wait for it, or write another "
                f"exp_manager.explicit_log_dir (if its machine has crashed, remove {path})."
            ) from None
        except OSError:
            pass  # no locks, for example on Lustre mounted without flock
        file.truncate(0)
        file.write(json.dumps(asdict(this_process())) + "\n")
        file.flush()
        if gone is not None:
            said = f"the lock of {gone} is ignored, because Slurm has ended that job"
            RunLog(run_dir, speaks=True).say(said)
        yield
