"""Runs the study of the graders on a folder of a few invented outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def write_outputs(folder: Path) -> None:
    rows = {
        "ifeval_outputs.jsonl": {
            "id": "i", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}], "response": "No",
            "strict": [True], "loose": [True],
        },
        "math_outputs.jsonl": {
            "id": "m", "domain": "math", "response": "\\boxed{4}", "gold": "5", "expected": 0,
        },
        "code_reference.jsonl": {
            "id": "c", "inputs": ["1", "2"], "outputs": ["1", "2"], "solution": "print(input())",
            "wrong": {"source": "print(1)", "passed": 2},
        },
    }  # fmt: skip
    for name, row in rows.items():
        (folder / name).write_text(json.dumps(row) + "\n")
    for name, answer in (("math", "1"), ("aime", "2")):
        (folder / "deepscaler").mkdir(exist_ok=True)
        (folder / f"deepscaler/{name}.json").write_text(json.dumps([{"answer": answer}]))


@pytest.mark.slow
def test_the_study_counts_what_agrees_and_names_what_does_not(tmp_path: Path) -> None:
    write_outputs(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "experiments.grading", str(tmp_path), "--workers", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    counted = {line[0]: line[1:] for line in lines if len(line) == 6 and line[1].isdigit()}
    agree = ["1", "1", "0", "0", "0"]
    assert counted == {
        "altered": ["1", "0", "1", "0", "0"],  # passes one of its tests, and was recorded with both
        "golds": ["2", "2", "0", "0", "0"],
        "pairs": ["2000", "2000", "0", "0", "0"],
        **dict.fromkeys(("ifeval_loose", "ifeval_strict", "math", "references"), agree),
    }
    (deviation,) = (line for line in done.stdout.splitlines() if "not explained yet" in line)
    assert deviation.startswith("  altered c: expected 1, got 0.5 [")
    assert "2007 requests in" in done.stdout
