"""Output fits the terminal, and is left alone everywhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_prorl.__main__ import main
from nemo_prorl.commands.ending import show
from nemo_prorl.run_folder import terminal
from nemo_prorl.run_folder.markers import mark_done
from nemo_prorl.run_folder.terminal import folded
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("short enough", "short enough"),
        ("a line that is longer than that", "a line that is\nlonger than that"),
        ("  indented text that goes on", "  indented text that\n  goes on"),
        ("  name  what it says, at length", "  name  what it\n        says, at\n        length"),
        ("https://no.blank/to/fold/at/all", "https://no.blank/to/fold/at/all"),
        ("a text whose gap  is far to the right", "a text whose gap  is\nfar to the right"),
        ("", ""),
    ],
)
def test_further_lines_begin_where_the_text_does(line: str, expected: str) -> None:
    assert folded(line, 20) == expected


def in_a_terminal(*arguments: str, columns: int) -> list[str]:
    ours, theirs = os.openpty()
    environment = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "nemo_prorl", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=theirs, env=environment) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # Linux says so when the other end is closed
            pass
        finally:
            os.close(ours)
    assert process.returncode == 0
    return said.decode().splitlines()


def test_help_fits_the_terminal_and_says_the_same_in_a_pipe() -> None:
    command = [sys.executable, "-m", "nemo_prorl", "--help"]
    piped = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert max(map(len, piped.splitlines())) > 80
    shown = in_a_terminal("--help", columns=80)
    assert max(map(len, shown)) <= 80
    assert " ".join(shown).split() == piped.split()


def test_exact_lines_are_not_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    show(["#!/bin/bash # one long line of a script"], exact=True)
    show(["a sentence for people to read"])
    assert capsys.readouterr().out == (
        "#!/bin/bash # one long line of a script\na sentence for\npeople to read\n"
    )


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes every stream a terminal of 50 columns."""
    monkeypatch.setattr(terminal, "width_of", lambda stream: 50)
    return 50


def test_a_mistake_fits_the_terminal_too(capsys: pytest.CaptureFixture[str], narrow: int) -> None:
    assert main(["plan", "--config-name", "lapto"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) > 1
    assert max(map(len, lines)) <= narrow


@pytest.mark.parametrize(
    ("outcome", "advice"),
    [
        ("steps", "raise trainer.num_steps"),
        ("target", "raise validation.stop_at"),
        ("end_stage", "write controller.mode=manual"),
    ],
)
def test_a_stage_that_is_done_says_so_and_what_trains_it_further_within_the_terminal(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    narrow: int,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    advice: str,
) -> None:
    from nemo_prorl import run
    from nemo_prorl.config import ExpManagerConfig, RunConfig

    monkeypatch.chdir(tmp_path)
    mark_done(Path("x"), "main", outcome=outcome, checkpoint="")
    assert run.train(RunConfig(exp_manager=ExpManagerConfig(explicit_log_dir="x"))) == 0
    lines = capsys.readouterr().out.splitlines()
    said = f"stage main is already done in x; to train it further, remove x/stages/main.done and {advice}"
    assert said in " ".join(lines)
    assert max(map(len, lines)) <= narrow
