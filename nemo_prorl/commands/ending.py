"""Ends a command that cannot continue: one sentence on standard error, from one rank."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from nemo_prorl.config.layout import rank_from_environment
from nemo_prorl.run_folder import terminal
from nemo_prorl.training import deadline

SPEAKING_TIME_S = 5.0
"""How long the other ranks wait, because launchers end every rank as soon as one has ended: the main rank has to print
first."""

_T = TypeVar("_T")


def say(error: object, code: int) -> int:
    """Prints an error and returns `code`. The main rank prints at once; another rank waits, and prints only if it has
    not been ended by then, which means that the error is its own."""
    terminal.rest()
    rank = rank_from_environment()
    if rank:
        # `train` has made a pause of it, and there is nothing to pause.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if code == 2 and deadline.has_come(signal.SIGTERM):
            return code  # the main rank was faster: it has printed the same mistake and ended, so the launcher ends all
        time.sleep(SPEAKING_TIME_S)
    text = f"error{f' on rank {rank}' if rank else ''}: {error}"
    print(terminal.fitted(text, sys.stderr), file=sys.stderr, flush=True)
    return code


def is_disk_full(error: BaseException | None) -> bool:
    """Returns whether a full disk caused the error. Libraries raise errors of their own types that contain the system's
    message."""
    if error is None:
        return False
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    messages = os.strerror(errno.ENOSPC), "disk is full"  # the latter is SQLite's
    return any(message in str(error) for message in messages) or is_disk_full(error.__cause__)


def run_unless_stopped(command: Callable[[], _T]) -> _T:
    """Calls `command` and returns its result. Exits with code 1 and one sentence on an error of run.STOPS or if the
    disk is full."""
    from nemo_prorl import run

    try:
        return command()
    except run.STOPS as reason:
        raise SystemExit(say(reason, 1)) from None
    except Exception as error:
        if not is_disk_full(error):
            raise
        what = f"{error}: make room. The same command continues from the last checkpoint."
        raise SystemExit(say(what, 1)) from None
