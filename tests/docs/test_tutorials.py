"""Runs every command and program of docs/first_run.md as its reader would, with a tiny random policy in place of the
demo's, and the commands of docs/cluster.md that need no cluster. `train` and `evaluate` get smaller numbers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from nemo_prorl.config.compose import compose
from nemo_prorl.data.rows import write_rows
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.metrics_file import read_metrics
from tests.conftest import ROOT
from tests.engines.conftest import run_ranks
from tests.training.tiny import rows, run_forked, write_case

DOCS = ROOT / "docs"
LAPTOP = compose("laptop", [], conf_dir=ROOT / "conf")
SMALLER = {
    "train": ["trainer.prompts_per_step=4", "trainer.updates_per_step=2", "sampler.num_rollouts=8"],
    "evaluate": [],
}
FOR_BOTH = ["validation.num_rollouts=2", "sampler.kv_cache_mib=32"]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```(?:\n\nIt prints `(.*?)`)?", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the policy and the prompt files that conf/laptop.yaml names."""
    folder = tmp_path_factory.mktemp("first_run")
    write_case((folder / LAPTOP.model.path).parent)
    for split, count, files in (("train", 40, LAPTOP.data.train), ("held_out", 4, LAPTOP.data.validation)):
        made = rows(split, count)
        for index, file in enumerate(files):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            write_rows(folder / file, made[index :: len(files)])
    return folder


@pytest.fixture(scope="module")
def followed(folder: Path, service: str) -> dict[str, str]:
    """What the blocks of each section of docs/first_run.md print, run in their order, by heading."""
    _, *sections = re.split(r"^## ", (DOCS / "first_run.md").read_text(), flags=re.MULTILINE)
    return {section.splitlines()[0]: follow(section, folder, service) for section in sections}


def follow(text: str, folder: Path, service: str) -> str:
    """Runs the blocks of a text in order and returns their output."""
    printed = []
    for language, block, promised in BLOCK.findall(text):
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
        exec(compile(text, "page", "exec"), {"__name__": "__main__"})
    return output.getvalue()


@pytest.mark.slow
def test_a_run_is_continued(followed: dict[str, str], folder: Path) -> None:
    assert followed["A second stage with a reset"].endswith("second 6 1\n")
    run = folder / "runs" / "mine"
    steps = [record for record in read_metrics(run / "metrics.jsonl") if "reward/mean" in record]
    assert [(record["stage"], record["step"]) for record in steps] == [
        *(("main", step) for step in (1, 2, 3, 4)),
        *(("second", step) for step in (5, 6)),
    ]
    assert find_checkpoints(run)[-1].state.num_resets == 1


@pytest.mark.slow
@pytest.mark.usefixtures("followed")
def test_a_report_is_written(folder: Path) -> None:
    page = (folder / "runs" / "mine" / "report.html").read_text()
    for heading in (
        "Held-out reward",
        "KL to the reference",
        "Where sampled prompts go",
        "Rollouts without an end",
    ):
        assert heading in page
    assert list((folder / "runs" / "mine" / "report").glob("*.png"))
    assert "second_try" in (folder / "both.html").read_text()


@pytest.mark.slow
def test_the_policy_is_evaluated_and_exported(followed: dict[str, str], folder: Path) -> None:
    assert "pass_at_1" in followed["Export and evaluate"]
    evaluated = len((folder / "samples.jsonl").read_text().splitlines())
    assert evaluated == 2 * 4 // len(LAPTOP.data.validation), (
        "two rollouts for each prompt of one held-out file"
    )
    assert followed["Use the policy elsewhere"]


@pytest.mark.slow
def test_a_submission_is_shown(folder: Path, service: str) -> None:
    (section,) = re.findall(
        r"^## From a laptop$.*?(?=^## )", (DOCS / "cluster.md").read_text(), re.DOTALL | re.MULTILINE
    )
    said = follow(section, folder, service)
    assert "stage main can start" in said
    assert "sbatch --parsable" in said
    assert not (folder / "runs" / "first").exists()
