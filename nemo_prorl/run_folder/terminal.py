"""Fits text to the terminal, and shows on standard error during a silence what is being waited for.

On a terminal this is one line that changes in place. In a file, such as a job's log, it is a line after 20 s of
silence, and then after twice as long each time, so that it does not fill the log of a long run.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from nemo_prorl.config.layout import rank_from_environment

MOMENT_S = 2.0
"""Silence after which a terminal shows what is being waited for."""
FIRST_LINE_S, LAST_LINE_S = 20.0, 600.0
"""Silence after which a file gets its first line, and the longest silence between lines."""
CLEAR = "\r\x1b[2K"
USUAL_WIDTH = 80
"""Columns of a terminal that does not say how many it has."""


class Waiting:
    """Knows what is being waited for, and says so on standard error at each `tick`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_shown = False
        self.begin()

    def begin(self) -> None:
        """Waits for nothing yet, and counts the silence from now."""
        self._what, self._why, self._unit, self._count = "", "", "", 0
        self._since = self._last = time.monotonic()
        self._patience_s = FIRST_LINE_S

    def wait_for(self, what: str, unit: str = "") -> None:
        """Says from now on that `what` is waited for; `progress` counts its `unit`s. Empty: waits for nothing."""
        with self._lock:
            self._what, self._why, self._unit, self._count, self._since = what, "", unit, 0, time.monotonic()

    def explain(self, why: str) -> None:
        """Says from now on why it is still waited for."""
        self._why = why

    def progress(self) -> None:
        self._count += 1

    def say(self, text: str) -> None:
        """Prints a message on standard error."""
        with self._lock:
            self._clear()
            print(fitted(text, sys.stderr), file=sys.stderr, flush=True)
            self._last = time.monotonic()

    def clear_line(self) -> None:
        """Waits for nothing, and takes the changing line away, so that something else may print."""
        with self._lock:
            self._what = ""
            self._clear()

    def tick(self) -> None:
        """Shows what is being waited for, if that is due."""
        with self._lock:
            now, width = time.monotonic(), width_of(sys.stderr)
            silence_s = now - self._last
            if not self._what or silence_s < (MOMENT_S if width else self._patience_s):
                return
            counted = f", {self._count:,} {self._unit}" if self._unit and self._count else ""
            why = f": {self._why}" if self._why else ""
            text = f"... {self._what} ({now - self._since:.0f} s{counted}){why}"
            if width:
                # The cursor goes back to the margin: what a library prints then overwrites the line.
                sys.stderr.write(f"{CLEAR}{text[: width - 1]}\r")
                sys.stderr.flush()
                self._is_shown = True
            else:
                print(f"   {text}", file=sys.stderr, flush=True)
                self._last, self._patience_s = now, min(2 * self._patience_s, LAST_LINE_S)

    def _clear(self) -> None:
        if self._is_shown:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
            self._is_shown = False


_WAITING = Waiting()
wait_for, explain, progress = _WAITING.wait_for, _WAITING.explain, _WAITING.progress
say, clear_line = _WAITING.say, _WAITING.clear_line


@contextmanager
def shown(*, speaks: bool) -> Iterator[None]:
    """Says during silences of the body what is waited for, if this is the rank that `speaks`."""
    if not speaks:
        yield
        return
    _WAITING.begin()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            _WAITING.tick()

    thread = threading.Thread(target=watch, name="terminal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        clear_line()


@functools.cache
def say_once(line: str) -> None:
    """Prints a line on the main rank, unless it has been printed before."""
    if rank_from_environment() == 0:
        say(line)


def width_of(stream: TextIO) -> int:
    """Returns the columns at which text on this stream is folded: those of a terminal, or COLUMNS. It is 0 for a file,
    a pipe and a dumb terminal, where a line remains one line, for `grep` and for programs."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns) or USUAL_WIDTH
    except (OSError, ValueError):
        return USUAL_WIDTH


def fitted(text: str, stream: TextIO) -> str:
    """Returns the text with lines that fit the stream. Everything that a person reads goes through here."""
    width = width_of(stream)
    return "\n".join(folded(line, width) for line in text.split("\n")) if width else text


def folded(line: str, width: int) -> str:
    """Returns a line of at most `width` columns, as far as its words allow, whose further lines begin where its last
    column of text does: after the last two blanks within the first 60 % of the width."""
    if len(line) <= width:
        return line
    columns = [found.end() for found in re.finditer(r"^ +|  +", line[: width * 3 // 5])]
    indent = columns[-1] if columns else 0
    folds = textwrap.wrap(
        line[indent:], width - indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return line[:indent] + ("\n" + " " * indent).join(folds)
