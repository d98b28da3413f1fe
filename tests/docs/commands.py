"""The commands that a page tells its readers to type, and what it says that they print."""

from __future__ import annotations

import re
import shlex
from textwrap import dedent


def sessions_of(page: str) -> list[tuple[list[str], list[str]]]:
    """Returns each command's words, without comments, and the lines of its output on the page. Commands are the lines
    of bash blocks, and those after a `$` in console blocks; the lines that follow those are their output. A block may
    be in an item of a list."""
    sessions: list[tuple[list[str], list[str]]] = []
    for kind, block in re.findall(r"^ *```(bash|console)\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL):
        for line in dedent(block).replace("\\\n", " ").splitlines():
            if kind == "bash" or line.startswith("$ "):
                if words := shlex.split(line.removeprefix("$ "), comments=True):
                    sessions.append((words, []))
            else:
                sessions[-1][1].append(line)
    return sessions
