"""What is said in a silence, and what of it stays on a terminal or in a file."""

from __future__ import annotations

import time
from io import StringIO
from types import SimpleNamespace

import pytest

from nemo_prorl.run_folder import terminal
from nemo_prorl.run_folder.terminal import CLEAR, FIRST_LINE_S, LAST_LINE_S, Waiting, folded


class Screen(StringIO):
    """A terminal of 80 columns, of which `lines` are what a reader sees."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        shown = [""]
        for character in self.getvalue().replace(CLEAR, "\0"):
            if character == "\0":
                shown[-1] = ""
            elif character == "\n":
                shown.append("")
            elif character != "\r":
                shown[-1] += character
        return shown


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("TERM", "xterm")
    clock = Clock()
    monkeypatch.setattr(terminal, "time", clock)
    return clock


@pytest.fixture
def screen(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(terminal, "sys", SimpleNamespace(stderr=screen))
    return screen


def passing(waiting: Waiting, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        waiting.tick()


def test_a_terminal_shows_one_line_that_changes_and_goes(clock: Clock, screen: Screen) -> None:
    waiting = Waiting()
    waiting.wait_for("step 3: sampling", "rollouts sampled or graded")
    passing(waiting, clock, 1)
    assert screen.getvalue() == "", "a moment is no silence"
    passing(waiting, clock, 30)
    assert screen.lines == ["... step 3: sampling (31 s)"]
    for _ in range(1200):
        waiting.progress()
    passing(waiting, clock, 1)
    assert screen.lines == ["... step 3: sampling (32 s, 1,200 rollouts sampled or graded)"]
    waiting.say("a message")
    assert screen.lines == ["a message", ""]
    waiting.wait_for("reward service")
    passing(waiting, clock, 3)
    waiting.explain("is not ready: " + "x" * 100)
    passing(waiting, clock, 1)
    assert screen.lines[1] == f"... reward service (4 s): is not ready: {'x' * 39}"
    assert len(screen.lines[1]) == 79
    waiting.wait_for("starting vLLM")
    passing(waiting, clock, 3)
    assert screen.lines[1] == "... starting vLLM (3 s)", "the reason goes with what was waited for"
    waiting.clear_line()
    passing(waiting, clock, 100)
    assert screen.lines == ["a message", ""], "nothing is waited for"
    waiting.say("   " + "warning words " * 30)
    assert max(map(len, screen.lines)) <= 80


def test_a_file_gets_few_lines_and_no_control_characters(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StringIO()
    monkeypatch.setattr(terminal, "sys", SimpleNamespace(stderr=file))
    waiting = Waiting()
    waiting.wait_for("starting vLLM")
    passing(waiting, clock, int(FIRST_LINE_S))
    assert file.getvalue() == "   ... starting vLLM (20 s)\n"
    passing(waiting, clock, 24 * 3600)
    lines = file.getvalue().splitlines()
    assert lines[1:3] == ["   ... starting vLLM (60 s)", "   ... starting vLLM (140 s)"]
    assert len(lines) < 10 + 24 * 3600 / LAST_LINE_S
    assert not {"\x1b", "\r"} & set(file.getvalue())


def test_folding_keeps_every_word() -> None:
    text = "   held out at step 40: " + ", ".join(f"domain{number} 0.{number:03d}" for number in range(20))
    assert folded(text, 80).split() == text.split()
    assert max(map(len, folded(text, 80).splitlines())) < 80
    for text in ("", "   step  reward", "x" * 120):
        assert folded(text, 80) == text


def test_what_is_waited_for_is_shown_by_itself_and_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(terminal, "sys", SimpleNamespace(stderr=screen))
    monkeypatch.setattr(terminal, "MOMENT_S", 0.1)
    for speaks in (False, True):
        with terminal.shown(speaks=speaks):
            terminal.wait_for("a long computation")
            time.sleep(1.5)
            assert ("... a long computation (" in screen.lines[-1]) is speaks
        assert screen.lines == [""]
