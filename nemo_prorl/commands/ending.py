"""What a command prints at its end: its result on standard output, or one sentence on standard error."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterable

from nemo_prorl.config.layout import rank_from_environment
from nemo_prorl.run_folder import terminal
from nemo_prorl.training import deadline

SPEAKING_TIME_S = 5.0
"""How long the other ranks wait, because launchers end every rank as soon as one has ended: the main rank has to print
first."""


def say(error: object, code: int) -> int:
    """Prints an error and returns `code`. The main rank prints at once; another rank waits, and prints only if it has
    not been ended by then, which means that the error is its own."""
    terminal.clear_line()
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


def expected_errors() -> tuple[type[Exception], ...]:
    """Returns run.STOPS, none of which can be raised before nemo_prorl.run is loaded."""
    run = sys.modules.get("nemo_prorl.run")
    return run.STOPS if run else ()


def show(lines: Iterable[str], *, exact: bool = False) -> None:
    """Prints lines on standard output, folded to a terminal unless they are `exact`, as JSON or a script has to be. A
    reader that closes the pipe early (`| head`) is not an error."""
    terminal.clear_line()
    try:
        for line in lines:
            print(line if exact else terminal.fitted(line, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:  # Python flushes again when it exits, which must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
