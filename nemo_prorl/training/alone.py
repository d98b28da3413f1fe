"""One process at a time trains in a run's folder: who holds RUN/lock, and when it is certain that nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nemo_prorl.config import ConfigError
from nemo_prorl.slurm_queue import has_ended
from nemo_prorl.storage import LOCK_FILE, LockHolder, lock_holder, sole_user, this_process
from nemo_prorl.training.telemetry import RunLog


@contextmanager
def alone_in(run_dir: Path) -> Iterator[None]:
    """Two processes that train in one folder would each take the other's steps for its own. Raises ConfigError when
    there is one."""
    with ExitStack() as stack:
        try:
            gone = stack.enter_context(sole_user(run_dir, is_gone))
        except BlockingIOError:
            raise ConfigError(
                f"{lock_holder(run_dir) or 'another process'} is training in {run_dir}: wait for it, or write another "
                f"exp_manager.explicit_log_dir (if its machine has crashed, remove {run_dir / LOCK_FILE})."
            ) from None
        if gone is not None:
            RunLog(run_dir, speaks=True).say(f"the lock of {gone}, which Slurm has ended, is put aside")
        yield


def is_gone(holder: LockHolder) -> bool:
    """Whether Slurm says that the job of this process is over: it runs again, as this job, or squeue does not list it.
    The lock of a process on this machine goes with the process, so one that is there is alive. Of a job of another user
    or cluster nothing is known: squeue may not list it although it runs."""
    here = this_process()
    if not holder.job or holder.host == here.host:
        return False
    if not (holder.cluster and holder.user) or (holder.cluster, holder.user) != (here.cluster, here.user):
        return False
    if holder.job == here.job:
        return holder.restarts < here.restarts
    return has_ended(holder.job)
