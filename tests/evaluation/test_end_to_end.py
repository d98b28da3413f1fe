"""The command with the real engines, graders and a random policy, killed in between."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_prorl.evaluation import results
from tests.training.tiny import ROOT, TIMEOUT_S, Case, rows, run, served_case

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    with served_case(tmp_path_factory.mktemp("case")) as case:
        lines = [
            {
                "prompt": row.messages[0]["content"],
                **{key: row.task[key] for key in ("instruction_id_list", "kwargs")},
            }
            for row in rows("test", 6)
        ]
        (case.folder / "ifeval.jsonl").write_text("\n".join(map(json.dumps, lines)))
        yield case


def command(case: Case, out: Path) -> list[str]:
    return [
        "-m", "nemo_prorl", "evaluate", "--config-name", str(case.folder / "tiny.yaml"),
        f"model={case.folder / 'policy'}", f"data_dir={case.folder}", "benchmarks=ifeval,aime24", f"out={out}",
        f"reward.urls=[{case.url}]", "evaluation.chunk_samples=5",
    ]  # fmt: skip


def test_a_killed_evaluation_goes_on_to_the_same_results(case: Case, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    said = run(*command(case, whole))
    assert "IFEval" in said
    file = killed / "samples" / "ifeval.rank0.jsonl"
    process = subprocess.Popen(
        [sys.executable, *command(case, killed)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if file.is_file() and file.stat().st_size:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    process.wait()
    run(*command(case, killed))
    (header, expected), (_, found) = results.read(whole), results.read(killed)
    assert found == expected
    assert list(header["missing"]) == ["aime2024"]
    assert found["ifeval"].num_missing == 0
    assert 0 < found["ifeval"].reward < 1, "a random policy follows some of the instructions"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert (
        len(lines) == len({(line["uid"], line["sample"], "response" in line) for line in lines}) == 2 * 6 * 4
    )
