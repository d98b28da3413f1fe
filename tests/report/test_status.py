"""Tests of `status` for running, dead, waiting, paused, failed, done, empty and foreign folders, each with its
sentence."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_prorl import __main__ as cli
from nemo_prorl.report.status import read_status, status_lines, status_table
from nemo_prorl.run_folder.lock import alone_in
from nemo_prorl.run_folder.markers import mark_done, mark_failed
from nemo_prorl.run_folder.starts import starts_file
from nemo_prorl.run_folder.storage import ENGINES_FILE
from nemo_prorl.training.watchdog import heartbeat
from tests.conftest import ROOT
from tests.report.made_up_runs import write_run

NUM_STEPS = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of a run of two stages: 30 steps, and 30 of 40 steps; its process is alive and sampling."""
    path = tmp_path / "run"
    write_run(path, num_steps=NUM_STEPS, num_stages=2, is_done=False)
    stage = path / "stages" / "run2.yaml"
    stage.write_text(yaml.safe_dump(yaml.safe_load(stage.read_text()) | {"trainer": {"num_steps": 40}}))
    beat(path, age_s=12)
    live(path, ("run1", 3.0, "steps"), ("run2", 2.0, ""), age_s=5)
    checkpoint = path / "checkpoints" / "step-00000040-run2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    return path


def beat(folder: Path, *, age_s: float) -> None:
    record = {"step": NUM_STEPS, "stage": "run2", "phase": "old_logprobs", "time": time.time() - age_s}
    heartbeat(folder).write_text(json.dumps(record))
    for file in (heartbeat(folder), folder / "metrics.jsonl"):
        os.utime(file, (time.time() - age_s, time.time() - age_s))


def live(folder: Path, *starts: tuple[str, float, str], age_s: float = 0.0, job: str = "") -> None:
    """Records processes on 8 GPUs as (stage, hours, end); the last one was seen `age_s` ago."""
    now = time.time() - age_s
    entries: list[dict[str, Any]] = [
        {"stage": stage, "began": now - 3600 * hours, "seen": now, "end": end}
        | {"num_ranks": 8, "on_gpus": True, "job": job}
        for stage, hours, end in starts
    ]
    starts_file(folder).write_text(json.dumps(entries))


def test_a_run_that_trains(folder: Path) -> None:
    status = read_status(folder)
    assert (status.state, status.stage, status.step, status.stage_step) == ("training", "run2", 60, 30)
    assert (status.num_steps, status.phase) == (40, "old_logprobs")
    assert status.stage_hours == pytest.approx({"run1": 24.0, "run2": 16.0}, rel=1e-3)
    assert (status.checkpoint_step, status.alarms) == (40, ())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "reward/mean" in record]
    mean_s = sum(record["time/step_s"] + record.get("time/validation_s", 0.0) for record in steps[-20:]) / 20
    assert status.step_s == pytest.approx(mean_s)
    assert status.left_s == pytest.approx(10 * mean_s)
    assert status.left_hours == pytest.approx(10 * mean_s * 8 / 3600)
    rewards = [record["reward/mean"] for record in steps]
    assert status.reward == pytest.approx(sum(rewards[-20:]) / 20)
    assert status.reward_change == pytest.approx((sum(rewards[-20:]) - sum(rewards[-40:-20])) / 20)
    first, *others = status_lines(status)
    assert first.startswith(
        f"{folder}: training after step 30 of 40 of run2 (step 60 of the run; old logprobs for 12 s"
    )
    assert any("16.00 GPU h in run2, 40.00 in all, 2 starts; " in line for line in others)
    assert any(line.startswith("  checkpoint of step 40, 0 s ago") for line in others)


def test_it_says_what_the_run_computes_with(folder: Path) -> None:
    assert not any("in use" in line for line in status_lines(read_status(folder))), (
        "its engines are not ready"
    )
    (folder / ENGINES_FILE).write_text(json.dumps({"device": "NVIDIA H100", "layers": "Megatron's own"}))
    status = read_status(folder)
    assert status.engines["layers"] == "Megatron's own"
    assert "  in use: device: NVIDIA H100; layers: Megatron's own" in status_lines(status)


def test_a_run_that_was_killed(folder: Path) -> None:
    """Steps take ten minutes, so it is called silent only after two of them."""
    for age_s, state in ((1000, "training"), (2000, "silent")):
        beat(folder, age_s=age_s)
        live(folder, ("run2", 2.0, ""), age_s=age_s)
        assert read_status(folder).state == state
    assert "no sign of life for 33 min after step 30 of 40" in status_lines(read_status(folder))[0]


def test_a_process_of_this_machine_that_has_lost_the_lock_is_known_to_be_gone(folder: Path) -> None:
    entries = json.loads(starts_file(folder).read_text())
    for host, with_lock, without in (
        (socket.gethostname(), "training", "stopped"),
        ("elsewhere", "training", "training"),
    ):
        starts_file(folder).write_text(json.dumps([entry | {"host": host} for entry in entries]))
        with alone_in(folder, lambda _holder: False):
            assert read_status(folder).state == with_lock
        assert read_status(folder).state == without
    assert "killed" not in read_status(folder).sentence


def test_rollouts_that_end_are_signs_of_life(folder: Path) -> None:
    """A phase may last long: its heartbeat is as old as its beginning, but the record of the process is newer."""
    beat(folder, age_s=7200)
    live(folder, ("run2", 2.0, ""), age_s=30)
    assert read_status(folder).state == "training"


def test_a_start_after_a_crash(folder: Path) -> None:
    heartbeat(folder).unlink()
    assert read_status(folder).sentence.startswith("run2 starts again after step 30 of 40 of run2")


def test_a_paused_run(folder: Path) -> None:
    live(folder, ("run2", 2.0, "paused"), age_s=120)
    assert "paused after step 30 of 40 of run2, 2 min ago; the same command" in read_status(folder).sentence
    live(folder, ("run2", 2.0, "paused"), age_s=120, job="77")
    assert "; the same command goes on with it, unless job 77 is in the queue" in read_status(folder).sentence
    live(folder, ("run2", 2.0, "paused"), age_s=120)
    assert "; the same command goes on with it." in read_status(folder).sentence, "it ran outside of Slurm"


def test_a_run_that_stopped_says_why(folder: Path) -> None:
    live(folder, ("run2", 2.0, "the reward service is not reachable."), age_s=120)
    status = read_status(folder)
    assert status.state == "stopped"
    assert status.sentence.endswith("2 min ago: the reward service is not reachable.")


def test_a_run_that_failed(folder: Path) -> None:
    mark_failed(folder, "run2", reason="the loss is not finite.")
    status = read_status(folder)
    assert (status.state, status.left_s) == ("failed", None)
    assert status.sentence == "run2 failed after step 30 of 40 of run2: the loss is not finite."


def test_a_stage_that_is_done_and_the_next_one_in_the_queue(folder: Path) -> None:
    mark_done(folder, "run1", outcome="steps", checkpoint="")
    mark_done(folder, "run2", outcome="end_stage", checkpoint="")
    assert read_status(folder).sentence == "done: run2 ended after step 60 (by its controller)."
    (folder / "slurm").mkdir()
    (folder / "slurm" / "jobs.json").write_text(json.dumps({"run1": "71", "run2": "72", "run3": "73"}))
    status = read_status(folder)
    assert status.state == "waiting"
    assert "run2 is done; run3 waits in the queue as job 73" in status.sentence


def test_alarms_are_those_of_the_report(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) | {"dynamic_sampling/informative_share": 0.1} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    status = read_status(folder)
    assert [alarm.partition(":")[0] for alarm in status.alarms] == ["Yield of dynamic sampling"]
    assert status_lines(status)[-1].startswith("  look at: Yield of dynamic sampling: 10% of the recent")


def test_a_run_of_an_older_version_has_no_hours(folder: Path) -> None:
    starts_file(folder).unlink()
    status = read_status(folder)
    assert (status.state, status.stage_hours, status.left_hours) == ("training", {}, None)
    assert not any(" h in " in line for line in status_lines(status))


def only_starts(folder: Path, age_s: float, end: str = "") -> None:
    live(folder, ("run1", age_s / 3600, end), age_s=age_s)


@pytest.mark.parametrize(
    ("make", "state", "must_say"),
    [
        (lambda folder: folder.rmdir(), "no run", "there is no such folder: write the exp_manager.explicit"),
        (lambda folder: None, "no run", "the folder holds none of the files that a run leaves"),
        (lambda folder: (folder / "resolved.yaml").write_text("a: 1"), "empty", "not come to its first step"),
        (lambda folder: (folder / "metrics.jsonl").write_text(""), "empty", "not come to its first step"),
        (lambda folder: (folder / "metrics.jsonl").write_text('{"step": 1}\n'), "no run", "not that of a run"),
        (lambda folder: (folder / "metrics.jsonl").write_bytes(b"\xff\xfe\n"), "no run", "not that of a run"),
        (lambda folder: only_starts(folder, 60.0), "starting", "run1 starts, since "),
        (lambda folder: only_starts(folder, 5000.0), "silent", "last seen 83 min ago"),
        (lambda folder: only_starts(folder, 60.0, "no GPU"), "stopped", "before its first step, 60 s ago: no GPU."),
        (lambda folder: mark_failed(folder, "run1", reason="no GPU."), "failed", "its first step: no GPU."),
    ],
)  # fmt: skip
def test_folders_without_a_step(tmp_path: Path, make: Any, state: str, must_say: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)
    status = read_status(folder)
    assert (status.state, must_say in status.sentence) == (state, True), status.sentence
    _first, *others = status_lines(status)
    assert [line.endswith(", 1 start") for line in others] == [True] * (
        state in ("starting", "silent", "stopped")
    )
    json.dumps(status.stage_hours)


def test_a_run_that_was_only_submitted(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "jobs.json").write_text(json.dumps({"run1": "71", "run2": "72"}))
    assert read_status(tmp_path).sentence.startswith("run1 waits in the queue as job 71")


def test_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    assert cli.main(["status", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == status_lines(read_status(folder))
    assert cli.main(["status", str(folder), str(folder / "nothing"), "--json"]) == 2
    first, second = json.loads(capsys.readouterr().out)
    assert (first["state"], second["state"]) == ("training", "no run")
    assert first["stage_hours"]["run2"] == pytest.approx(16.0, rel=1e-3)


def test_without_a_folder_it_looks_at_all_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    assert cli.main(["status"]) == 0
    assert (
        capsys.readouterr().out
        == "There is no run in runs/. Name the folder of a run: nemo-prorl status RUN_DIR.\n"
    )
    shutil.copytree(folder, "runs/mine")
    (Path("runs") / "mine" / "resolved.yaml").write_text("")
    assert cli.main(["status"]) == 0
    _title, line = capsys.readouterr().out.splitlines()
    assert line.split()[:4] == ["runs/mine", "training", "run2", "30/40"]
    assert cli.main(["status", "--long"]) == 0
    assert capsys.readouterr().out.startswith("runs/mine: training after step 30")


def test_several_runs_are_a_table_of_one_line_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With every number as wide as it may come."""
    (folder.parent / "empty").mkdir()
    assert cli.main(["status", str(folder), str(folder.parent / "empty")]) == 2
    title, run, empty = capsys.readouterr().out.splitlines()
    assert max(map(len, (title, run, empty))) < 80
    assert run.split()[1:4] == ["training", "run2", "30/40"]
    assert run.split()[4] == "5s"
    assert empty.split()[1:] == ["no", "run", "-", "-", "-", "-", "-", "-"]
    status = read_status(folder)
    wide = replace(
        status, run_dir="x" * 90 + "end", state="cancelled", stage="a_long_stage_name", stage_step=99999,
        num_steps=99999, seen_s=7199.0, reward=-0.12345, held_out=0.98765, left_s=1e7, alarms=("a",) * 10,
    )  # fmt: skip
    for width in (80, 120, 60):
        title, first, second = status_table([wide, status], width)
        assert len(title) == len(first) == len(second) <= max(width, 79) - 1
        assert first.split()[1:] == [
            "cancelled", "a_long_s", "99999/99999", "120m", "-0.123", "0.988", "116d", "10",
        ]  # fmt: skip
        assert first.split()[0].endswith("end")


def test_it_loads_neither_torch_nor_the_configuration(folder: Path) -> None:
    """It must answer at once."""
    program = (
        "import sys; from nemo_prorl.__main__ import main; main(sys.argv[1:]); "
        "assert not {'torch', 'hydra', 'pyarrow', 'plotly', 'matplotlib'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "status", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
