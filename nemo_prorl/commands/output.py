"""What a command prints as its result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def show(lines: Iterable[str]) -> None:
    """On standard output. A reader that has seen enough (`| head`) is no mistake of anybody's."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:  # Python flushes once more at its end: to where it cannot fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
