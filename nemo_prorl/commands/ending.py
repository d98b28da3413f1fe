"""How a command ends when it cannot go on: one sentence on standard error, said once however many ranks there are."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from nemo_prorl.layout import rank_from_environment

SPEAKING_TIME_S = 5.0
"""Launchers end every rank as soon as one has ended: the silent ones wait until the first has said what is wrong."""

_T = TypeVar("_T")


def say(error: object, code: int) -> int:
    """The main rank says it at once. Another speaks only if it is still there later: then it was its mistake alone."""
    rank = rank_from_environment()
    if rank:
        time.sleep(SPEAKING_TIME_S)
    print(f"error{f' on rank {rank}' if rank else ''}: {error}", file=sys.stderr, flush=True)
    return code


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a command ended because there was no more room for a file, which may be any. Libraries that write by
    themselves raise their own errors, with the system's words in them."""
    if error is None:
        return False
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    said = os.strerror(errno.ENOSPC), "disk is full"  # the latter is SQLite's
    return any(words in str(error) for words in said) or is_disk_full(error.__cause__)


def run_unless_stopped(command: Callable[[], _T]) -> _T:
    """Turns the ends that a run may come to (run.STOPS) into a sentence and exit code 1."""
    from nemo_prorl import run

    try:
        return command()
    except run.STOPS as reason:
        raise SystemExit(say(reason, 1)) from None
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise SystemExit(
            say(f"{error}: make room; the same command continues from the last checkpoint.", 1)
        ) from None
