"""The story of docs/experiments.md: its commands in their order, on a smaller run of the same configuration."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.commands import sessions_of
from tests.training.tiny import run_forked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SMALLER = ("sampler.num_rollouts=8", "validation.max_prompts=8", "validation.num_rollouts=2")


def quicker(command: str, *arguments: str) -> list[str]:
    """Returns the command with a smaller run, and with fewer steps and seeds after a fork."""
    fewer = {"12": "2", "2": "1"} if command == "fork" else {}
    options = ("", *arguments)
    words = [
        fewer.get(word, word) if before in ("--steps", "--seeds") else word
        for before, word in itertools.pairwise(options)
    ]
    return [command, *words, *(SMALLER if command == "train" else ())]


def shape(line: str) -> str:
    """Returns a line with N in place of numbers and one space in place of several; of seeds there may be fewer."""
    return " ".join(re.sub(r"[+-]?\d[\d.,]*", "N", re.sub(r"seeds? .*", "seeds", line)).split())


def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    """Other lines depend on the numbers, but the first and the indented ones, which are tables, have the page's
    words."""
    for name in ("conf", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    build = [sys.executable, "-m", "nemo_prorl.demo.build"]
    subprocess.run(build, cwd=tmp_path, env=environ, check=True, capture_output=True)
    told = sessions_of((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8"))
    assert [words[3] for words, _ in told] == ["train", "verify", "verify", "forecast", "fork"]
    for words, shown in told:
        printed = run_forked(quicker(*words[3:]), folder=tmp_path)
        shapes = {shape(line) for line in printed.splitlines()}
        tables = [*shown[:1], *(line for line in shown if line.startswith("  "))]
        assert [line for line in tables if shape(line) not in shapes] == [], printed
