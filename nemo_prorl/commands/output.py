"""Prints the result of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def show(lines: Iterable[str]) -> None:
    """Prints lines on standard output. A reader that closes the pipe early (`| head`) is not an error."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:  # Python flushes again when it exits, which must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
