"""The story of docs/experiments.md: its commands in their order, on a smaller run of the same configuration."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.training.tiny import run_forked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SMALLER = ("sampler.num_rollouts=8", "validation.max_prompts=8", "validation.num_rollouts=2")
SAYS = (
    "",
    "Exact: every bit is compared.",
    "wrote 4 step(s) of my/effective_sample",
    "pass rate in training",
    "held-out reward after step 14",
)
"""What the page's commands print, in the page's order; training prints past the test's capture."""


def commands(page: str) -> list[list[str]]:
    """Returns the words of every command in the page's blocks and sentences, without the interpreter."""
    text = page.replace("\\\n", " ")
    found = re.findall(
        r"^(?:\$ )?python -m nemo_prorl (.+)$|`python -m nemo_prorl ([^`]* [^`]*)`", text, re.MULTILINE
    )
    return [shlex.split(block or sentence) for block, sentence in found]


def quicker(words: list[str]) -> list[str]:
    """Returns the command on the story's run: smaller, and with fewer steps and seeds after a fork."""
    text = re.sub(r"\bRUN\b|runs/laptop", "runs/story", shlex.join(words))
    if words[0] == "fork":
        text = text.replace("--seeds 2", "--seeds 1").replace("--steps 12", "--steps 2")
    return [*shlex.split(text), *(SMALLER if words[0] == "train" else ())]


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    for name in ("conf", "examples", ".venv-reward"):
        (tmp_path / name).symlink_to(ROOT / name)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    build = [sys.executable, "-m", "nemo_prorl.demo.build", "runs/tiny"]
    subprocess.run(build, cwd=tmp_path, env=environ, check=True, capture_output=True)
    told = commands((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8"))
    for words, said in zip(told, SAYS, strict=True):
        printed = run_forked(quicker(words), folder=tmp_path)
        assert said in printed, f"{words}\n{printed}"
