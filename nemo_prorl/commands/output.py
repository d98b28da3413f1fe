"""Prints the result of a command."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable

from nemo_prorl.run_folder import terminal


def show(lines: Iterable[str], *, exact: bool = False) -> None:
    """Prints lines on standard output. A terminal gets lines folded between words at its width, unless they are
    `exact`, as JSON or a script has to be. A reader that closes the pipe early (`| head`) is not an error."""
    width = 0 if exact or not sys.stdout.isatty() else shutil.get_terminal_size().columns
    terminal.rest()
    try:
        for line in lines:
            print("\n".join(terminal.folded(part, width) for part in line.split("\n")) if width else line)
        sys.stdout.flush()
    except BrokenPipeError:  # Python flushes again when it exits, which must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
