"""A user's first run on the real engines, with problems in the user's own columns and a reward service of its own,
ended by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_prorl.data.rows import RowFile
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.training.watchdog import heartbeat
from tests.conftest import ROOT
from tests.training.tiny import TIMEOUT_S, make_case, rows


@pytest.mark.slow
def test_own_problems_are_trained_on_and_a_signal_to_the_whole_group_saves(tmp_path: Path) -> None:
    """`timeout`, batch systems and Ctrl-C signal the whole process group. The reward service that the run has started
    must outlive the step."""
    case = make_case(tmp_path, "")
    for name, count in (("train", 40), ("test", 6)):
        lines = [
            {"messages": list(row.messages), "domain": row.domain, "task": dict(row.task), "level": 3}
            for row in rows(name, count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    problems = [f"data.train={tmp_path}/train.jsonl", f"data.validation=[{tmp_path}/test.jsonl]"]
    command = case.command("run", *problems, "trainer.num_steps=500", own_service=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "nemo_prorl", *command],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    run_dir = case.run_dir("run")
    limit = time.monotonic() + TIMEOUT_S
    beat, in_step = heartbeat(run_dir), '"sampling"'
    while process.poll() is None and time.monotonic() < limit:
        if beat.exists() and in_step in beat.read_text():
            break
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said[-3000:]
    assert "SIGTERM came: the run saves itself after this step and pauses.\n" in said
    assert (
        f"{tmp_path}/train.jsonl: 40 rows, prompts from messages, tasks from task, domain instruction."
        in said
    )
    assert "Everything is saved: the same command goes on from here." in said
    assert find_checkpoints(run_dir)[-1].state.step >= 1
    assert (run_dir / "reward_service.log").is_file()
    assert not (run_dir / "stages" / "main.done").exists()
    (converted,) = (run_dir / "data").glob("train-*.parquet")
    assert len(RowFile(converted)) == 40
