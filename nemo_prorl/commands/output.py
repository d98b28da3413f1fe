"""Prints the result of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from nemo_prorl.run_folder import terminal


def show(lines: Iterable[str], *, exact: bool = False) -> None:
    """Prints lines on standard output, folded to a terminal unless they are `exact`, as JSON or a script has to be. A
    reader that closes the pipe early (`| head`) is not an error."""
    terminal.rest()
    try:
        for line in lines:
            print(line if exact else terminal.fitted(line, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:  # Python flushes again when it exits, which must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
