"""Runs every command and program of docs/tutorials/ with a tiny random policy in place of the demo's. `train` and
`evaluate` get smaller numbers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from nemo_prorl.data.rows import write_rows
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.telemetry import read_metrics
from tests.conftest import ROOT
from tests.engines.conftest import run_ranks
from tests.training.tiny import rows, run_forked, write_case

TUTORIALS = ROOT / "docs" / "tutorials"
SMALLER = {
    "train": ["trainer.prompts_per_step=4", "trainer.updates_per_step=2", "sampler.num_rollouts=8"],
    "evaluate": [],
}
FOR_BOTH = ["validation.num_rollouts=2", "sampler.kv_cache_mib=32"]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```(?:\n\nIt prints `(.*?)`)?", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of `make demo` in runs/tiny."""
    folder = tmp_path_factory.mktemp("tutorials")
    tiny = folder / "runs" / "tiny"
    write_case(tiny)
    for name, split, count in (("train-1", "train", 40), ("validation", "held_out", 4)):
        write_rows(tiny / "data" / f"{name}.parquet", rows(split, count))
    return folder


@pytest.fixture(scope="module")
def continued(folder: Path, service: str) -> Path:
    """The folder after the first tutorial."""
    follow("continue_a_run.md", folder, service)
    return folder


def follow(page: str, folder: Path, service: str) -> str:
    """Runs the blocks of a page in order and returns their output."""
    printed = []
    for language, block, promised in BLOCK.findall((TUTORIALS / page).read_text()):
        if language == "python":
            (said,) = run_ranks(_program, 1, folder=folder, text=block)
            assert not promised or said.strip() == promised
            printed.append(said)
        for command in commands(block) if language == "bash" else ():
            if command[:3] == ["python", "-m", "nemo_prorl"]:
                arguments = command[3:]
                if arguments[0] in SMALLER:
                    arguments += [*SMALLER[arguments[0]], *FOR_BOTH, f"reward.urls=[{service}]"]
                where = ROOT if arguments[0] == "submit" else folder
                printed.append(run_forked(arguments, folder=where))
            else:
                subprocess.run(command, cwd=folder, check=True)
    return "".join(printed)


def commands(block: str) -> list[list[str]]:
    lines = block.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def _program(folder: Path, text: str) -> str:
    os.chdir(folder)
    with redirect_stdout(StringIO()) as output:
        exec(compile(text, "tutorial", "exec"), {"__name__": "__main__"})
    return output.getvalue()


@pytest.mark.slow
def test_a_run_is_continued(continued: Path) -> None:
    run = continued / "runs" / "mine"
    steps = [record for record in read_metrics(run / "metrics.jsonl") if "reward/mean" in record]
    assert [(record["stage"], record["step"]) for record in steps] == [
        *(("main", step) for step in (1, 2, 3, 4)),
        *(("second", step) for step in (5, 6)),
    ]
    assert find_checkpoints(run)[-1].state.num_resets == 1


@pytest.mark.slow
def test_a_report_is_written(continued: Path, service: str) -> None:
    follow("read_a_report.md", continued, service)
    page = (continued / "runs" / "mine" / "report.html").read_text()
    for heading in (
        "Held-out reward",
        "KL to the reference",
        "Where sampled prompts go",
        "Rollouts without an end",
    ):
        assert heading in page
    assert list((continued / "runs" / "mine" / "report").glob("*.png"))
    assert "second_try" in (continued / "both.html").read_text()


@pytest.mark.slow
def test_the_policy_is_evaluated_and_exported(continued: Path, service: str) -> None:
    said = follow("evaluate_and_export.md", continued, service)
    assert "pass_at_1" in said
    assert len((continued / "samples.jsonl").read_text().splitlines()) == 2 * 2, "two prompts, two rollouts"


@pytest.mark.slow
def test_a_submission_is_shown(folder: Path, service: str) -> None:
    said = follow("laptop_to_slurm.md", folder, service)
    assert "stage main can start" in said
    assert "The fastest: " in said
    assert "sbatch --parsable" in said
    assert not (folder / "runs" / "first").exists()


def test_every_tutorial_is_followed() -> None:
    followed = re.findall(r"follow\(\"(\w+\.md)\"", Path(__file__).read_text())
    assert sorted(page.name for page in TUTORIALS.glob("*.md")) == sorted(followed)


def test_a_command_over_two_lines_is_one() -> None:
    assert commands("a b \\\n    c='d e'  # said\n\nf\n") == [["a", "b", "c=d e"], ["f"]]
