"""`status`: what the run wrote last, what the queue says of its jobs, and what follows from both."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import astuple, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_prorl import __main__ as cli
from nemo_prorl.cluster.slurm_queue import Queue, QueuedJob
from nemo_prorl.report.status import read_status, status_lines, status_table
from nemo_prorl.run_folder.lock import alone_in
from nemo_prorl.run_folder.markers import mark_done, mark_failed
from nemo_prorl.run_folder.slurm_jobs import Submission, note_submission
from nemo_prorl.run_folder.starts import starts_file
from nemo_prorl.run_folder.storage import ENGINES_FILE
from nemo_prorl.training.watchdog import heartbeat
from tests.conftest import ROOT
from tests.report.made_up_runs import write_run

NUM_STEPS = 60
DOWN = Queue(problem="no answer")


def queue(**states: str) -> Queue:
    """A queue of jobs, j35="PENDING BeginTime"."""
    jobs = {}
    for name, text in states.items():
        state, _, reason = text.partition(" ")
        jobs[name[1:]] = QueuedJob(job=name[1:], state=state, reason=reason or "None")
    return Queue(jobs=jobs, cluster="eos", user="ada")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still, also on a busy machine."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


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


def live(
    folder: Path, *starts: tuple[str, float, str], age_s: float = 0.0, job: str = "", host: str = ""
) -> None:
    """Records processes on 8 GPUs as (stage, hours, end); the last one was seen `age_s` ago."""
    now = time.time() - age_s
    entries: list[dict[str, Any]] = [
        {"stage": stage, "began": now - 3600 * hours, "seen": now, "end": end}
        | {"num_ranks": 8, "on_gpus": True, "job": job, "host": host}
        for stage, hours, end in starts
    ]
    starts_file(folder).write_text(json.dumps(entries))


def hold(folder: Path, state: str, age_s: float = 180.0, **fields: Any) -> None:
    updated = datetime.fromtimestamp(time.time() - age_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = {"job_id": "35", "stage": "run2", "start": 1, "cluster": "eos", "user": "ada", "host": "node1"}
    given |= {"state": state, "reason": "", "updated": updated}
    (folder / "slurm").mkdir(exist_ok=True)
    (folder / "slurm" / "job.json").write_text(json.dumps(given | fields))


def test_a_run_that_trains(folder: Path) -> None:
    status = read_status(folder)
    assert (status.state, status.stage, status.step, status.stage_step) == ("training", "run2", 60, 30)
    assert (status.num_steps, status.queue, status.advice) == (40, "", "")
    assert status.stage_hours == pytest.approx({"run1": 24.0, "run2": 16.0}, rel=1e-3)
    assert (status.checkpoint_step, status.alarms) == (40, ())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "reward/mean" in record]
    mean_s = sum(record["time/step_s"] + record.get("time/validation_s", 0.0) for record in steps[-20:]) / 20
    assert status.step_s == pytest.approx(mean_s)
    assert status.left_s == pytest.approx(10 * mean_s)
    assert status.left_hours == pytest.approx(10 * mean_s * 8 / 3600)
    rewards = [record["reward/mean"] for record in steps]
    mean, change = sum(rewards[-20:]) / 20, (sum(rewards[-20:]) - sum(rewards[-40:-20])) / 20
    assert astuple(status.reward) == pytest.approx((mean, change))
    first, wrote, *others = status_lines(status)
    assert first == f"{folder}: training after step 30 of 40 of run2 (step 60 of the run)"
    assert wrote == "  it wrote: old logprobs for 12 s, last sign of life 5 s ago"
    assert any("16.00 GPU h in run2, 40.00 in all, 2 starts; " in line for line in others)
    assert any(line.startswith("  checkpoint of step 40, 0 s ago") for line in others)
    (folder / ENGINES_FILE).write_text(json.dumps({"device": "NVIDIA H100", "layers": "Megatron's own"}))
    assert "  in use: device: NVIDIA H100; layers: Megatron's own" in status_lines(read_status(folder))


def sign(folder: Path, age_s: float, end: str = "", *, beat_s: float | None = None, host: str = "") -> None:
    beat(folder, age_s=age_s if beat_s is None else beat_s)
    live(folder, ("run2", 2.0, end), age_s=age_s, host=host)


GOES_ON = "the same command goes on from the newest checkpoint"


@pytest.mark.parametrize(
    ("make", "state", "wrote", "advice"),
    [
        (lambda run: sign(run, 1000), "training", "old logprobs for 17 min, last sign of life 17 min ago", ""),
        # Steps take ten minutes, so it is called silent only after two of them.
        (lambda run: sign(run, 2000), "silent", "no sign of life for 33 min: killed, or hanging", GOES_ON),
        # A phase may last long: its heartbeat is as old as its beginning, but the record of the process is newer.
        (lambda run: sign(run, 30, beat_s=7200), "training", "old logprobs for 2.0 h, last sign of life 30 s", ""),
        (lambda run: heartbeat(run).unlink(), "starting", "starts since 2.0 h, last sign of life 5 s ago", ""),
        (lambda run: sign(run, 120, "paused"), "paused", "paused 2 min ago", GOES_ON),
        (lambda run: sign(run, 120, "no GPU"), "stopped", "stopped 2 min ago: no GPU", GOES_ON),
        (lambda run: sign(run, 5, host=socket.gethostname()), "stopped", "killed; last sign of life 5 s", GOES_ON),
        (lambda run: sign(run, 5, host="elsewhere"), "training", "old logprobs for 5 s", ""),
        (lambda run: mark_failed(run, "run2", reason="no room."), "failed", "failed: no room.", "mend that; then the"),
        (lambda run: mark_done(run, "run2", outcome="steps", checkpoint=""), "done", "ended (all its steps)", ""),
        (lambda run: starts_file(run).unlink(), "training", "old logprobs for 12 s, last sign of life 12 s ago", ""),
    ],
)  # fmt: skip
def test_what_the_run_wrote_last(folder: Path, make: Any, state: str, wrote: str, advice: str) -> None:
    make(folder)
    found = read_status(folder)
    assert (found.state, found.wrote[: len(wrote)], found.advice[: len(advice)]) == (state, wrote, advice)
    assert bool(found.advice) == bool(advice)
    assert found.alarms == (), "the state says it already"
    if state in ("failed", "done"):
        assert (found.left_s, found.forecast) == (None, "")


def test_a_process_of_this_machine_that_holds_the_lock_is_alive(folder: Path) -> None:
    sign(folder, 5, host=socket.gethostname())
    with alone_in(folder, lambda _holder: False):
        assert read_status(folder).state == "training"
    assert read_status(folder).state == "stopped"


CHECKS, STARTS, WENT, STOPPED = (
    "checks its nodes since 3 min",
    "starts its trainer since 3 min",
    "goes back to the queue since 3 min",
    "is stopped by Slurm since 3 min: crashed",
)
ON = "submit again: it goes on from the newest checkpoint"
UNLESS = f"{ON}, unless a job of it is in the queue"


@pytest.mark.parametrize(
    ("launcher", "asked", "process", "state", "note", "advice"),
    [
        # The process belongs to the job's present start if it began after the launcher began to train, by clocks that
        # may differ.
        ("training", queue(j35="RUNNING"), (170, ""), "training", "", ""),
        ("training", DOWN, (200, ""), "training", "", ""),
        ("training", None, (170, ""), "training", "", ""),
        ("training", queue(j35="SUSPENDED"), (170, ""), "waiting", "", ""),
        ("training", queue(j35="COMPLETING"), (170, ""), "stopped", "", ON),
        ("training", queue(j35="COMPLETING"), (170, "paused"), "paused", "", ON),
        ("training", queue(j35="PENDING BeginTime"), (170, ""), "waiting", "", ""),
        ("training", queue(), (170, ""), "stopped", "", ON),
        ("training", queue(j35="TIMEOUT"), (170, ""), "stopped", "", ON),
        # It is that of an earlier start.
        ("training", queue(j35="RUNNING"), (900, ""), "starting", STARTS, ""),
        ("checking", queue(j35="RUNNING"), (900, ""), "checking", CHECKS, ""),
        ("checking", DOWN, (900, "paused"), "checking", CHECKS, ""),
        ("checking", queue(j35="CANCELLED"), (900, "paused"), "stopped", CHECKS, ON),
        ("requeued", queue(j35="PENDING BeginTime"), (900, "paused"), "waiting", WENT, ""),
        ("requeued", DOWN, (900, "paused"), "waiting", WENT, ""),
        ("requeued", queue(), (900, "paused"), "stopped", WENT, ON),
        ("stopped", queue(j35="PENDING BeginTime"), (900, "paused"), "waiting", STOPPED, ""),
        ("stopped", queue(j35="TIMEOUT"), (900, ""), "stopped", STOPPED, f"mend that; then {ON}"),
        ("ended", queue(), (900, "no GPU."), "stopped", "has ended since 3 min: crashed", ON),
        ("ended", DOWN, (900, "no GPU."), "stopped", "has ended since 3 min: crashed", UNLESS),
    ],
)  # fmt: skip
def test_a_run_whose_job_began(
    folder: Path,
    launcher: str,
    asked: Queue | None,
    process: tuple[float, str],
    state: str,
    note: str,
    advice: str,
) -> None:
    hold(folder, launcher, reason="crashed." if launcher in ("stopped", "ended") else "")
    began_s, end = process
    live(folder, ("run2", (began_s - 20) / 3600, end), age_s=20, job="35")
    found = read_status(folder, asked)
    assert (found.state, found.wrote.partition("; job 35 of run2 ")[2], found.advice) == (state, note, advice)
    is_known = asked is not None and not asked.problem
    word = asked.state("35") if asked and is_known else "not known to squeue here, so this is a guess"
    said = {"gone": "not in the queue any more", "PENDING": "PENDING (BeginTime)"}.get(word, word)
    assert found.queue == f"job 35 of run2: {said}"


def test_a_job_that_hangs_may_be_cancelled(folder: Path) -> None:
    hold(folder, "training", age_s=9000)
    sign(folder, 3000)
    live(folder, ("run2", 1.0, ""), age_s=3000, job="35")
    found = read_status(folder, queue(j35="RUNNING"))
    assert (found.state, found.advice) == ("silent", "look at its log; if it hangs, cancel job 35")


@pytest.mark.parametrize(
    ("held", "job", "asked", "end", "state", "queue_line"),
    [
        # Another cluster has jobs of the same numbers, and squeue does not list those of another user.
        (
            {"cluster": "other"},
            "35",
            queue(j35="CANCELLED"),
            "",
            "training",
            "job 35 of run2: not known to squeue",
        ),
        (
            {"user": "bob"},
            "35",
            queue(j35="CANCELLED"),
            "",
            "training",
            "job 35 of run2: not known to squeue",
        ),
        # An old job says nothing about a process outside of Slurm.
        ({"state": "requeued", "updated": "2026-01-01T00:00:00Z"}, "", queue(), "", "training", ""),
        # No launcher of ours wrote for it.
        ({}, "35", queue(j35="RUNNING"), "", "training", "job 35 of run2: RUNNING"),
        ({}, "35", queue(j35="CANCELLED"), "", "stopped", "job 35 of run2: CANCELLED"),
        ({}, "35", queue(j35="PENDING"), "", "waiting", "job 35 of run2: PENDING"),
        ({}, "35", queue(j35="RUNNING"), "paused", "starting", "job 35 of run2: RUNNING"),
    ],
)
def test_jobs_of_others_and_without_a_launcher(
    folder: Path, held: dict[str, str], job: str, asked: Queue, end: str, state: str, queue_line: str
) -> None:
    if held:
        hold(folder, **{"state": "training", **held})
    live(folder, ("run2", 0.04, end), age_s=20, job=job)
    found = read_status(folder, asked)
    assert (found.state, found.queue[: len(queue_line)], bool(found.queue)) == (
        state,
        queue_line,
        bool(queue_line),
    )


@pytest.mark.parametrize(
    ("asked", "state", "advice"),
    [
        (queue(j35="PENDING Priority", j36="PENDING Dependency"), "waiting", ""),
        (queue(j35="RUNNING"), "starting", ""),
        (queue(j35="CANCELLED", j36="CANCELLED"), "stopped", "submit again: it begins again"),
        (DOWN, "waiting", ""),
    ],
)  # fmt: skip
def test_a_run_that_was_only_submitted(tmp_path: Path, asked: Queue, state: str, advice: str) -> None:
    note_submission(tmp_path, "run1", Submission(job="35"))
    note_submission(tmp_path, "run2", Submission(job="36"))
    found = read_status(tmp_path, asked)
    assert (found.state, found.where, found.advice) == (state, "before the first step of run1", advice)
    assert found.queue.startswith("job 35 of run1: ")
    assert "; job 36 of run2: " in found.queue


@pytest.mark.parametrize(
    ("asked", "state", "said"),
    [
        (queue(j35="COMPLETED", j36="PENDING Resources"), "waiting", "job 36 of run3: PENDING (Resources)"),
        (queue(j36="RUNNING"), "starting", "job 36 of run3: RUNNING"),
        (queue(j35="COMPLETING", j36="CANCELLED"), "done", "job 36 of run3: CANCELLED"),
        (DOWN, "waiting", "job 36 of run3: not known to squeue here, so this is a guess"),
    ],
)  # fmt: skip
def test_a_stage_that_is_done_and_the_next_one(folder: Path, asked: Queue, state: str, said: str) -> None:
    mark_done(folder, "run2", outcome="steps", checkpoint="")
    live(folder, ("run2", 2.0, "steps"), job="35")
    note_submission(folder, "run2", Submission(job="35"))
    note_submission(folder, "run3", Submission(job="36"))
    found = read_status(folder, asked)
    assert (found.state, found.wrote, found.queue) == (state, "ended (all its steps)", said)
    hold(folder, "checking", job_id="36", stage="run3", start=2)
    live(folder, ("run2", 2.0, "steps"), age_s=900, job="35")
    found = read_status(folder, queue(j36="RUNNING"))
    assert (found.state, found.wrote) == ("checking", f"ended (all its steps); job 36 of run3 {CHECKS}")


def test_a_failed_stage_that_was_submitted_again(folder: Path) -> None:
    mark_failed(folder, "run2", reason="no GPU.")
    note_submission(folder, "run2", Submission(job="40"))
    found = read_status(folder, queue(j40="RUNNING"))
    assert (found.state, found.queue) == ("failed", "job 40 of run2: RUNNING")


def test_alarms_are_those_of_the_report(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) | {"dynamic_sampling/informative_share": 0.1} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    status = read_status(folder)
    assert [alarm.partition(":")[0] for alarm in status.alarms] == ["Yield of dynamic sampling"]
    assert status_lines(status)[-1].startswith("  look at: Yield of dynamic sampling: 10% of the recent")


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
        (lambda folder: (folder / "metrics.jsonl").mkdir(), "no run", "cannot be read: Is a directory"),
        (lambda folder: only_starts(folder, 60.0), "starting", "starts since 2 min, last sign of life 60 s ago"),
        (lambda folder: only_starts(folder, 5000.0), "silent", "no sign of life for 83 min"),
        (lambda folder: only_starts(folder, 60.0, "no GPU"), "stopped", "stopped 60 s ago: no GPU"),
        (lambda folder: mark_failed(folder, "run1", reason="no GPU."), "failed", "failed: no GPU."),
        (lambda folder: hold(folder, "checking", stage="run1"), "checking", "has not begun; job 35 of run1 checks"),
    ],
)  # fmt: skip
def test_folders_without_a_step(tmp_path: Path, make: Any, state: str, must_say: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)
    status = read_status(folder)
    assert (status.state, must_say in status.wrote) == (state, True), status.wrote
    is_run = state not in ("no run", "empty")
    assert status.where == ("before the first step of run1" if is_run else "")
    assert must_say in " ".join(status_lines(status))
    json.dumps(status.stage_hours)


def test_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == status_lines(read_status(folder))
    assert cli.main(["status", str(folder), str(folder / "nothing"), "--json"]) == 2
    first, second = json.loads(capsys.readouterr().out)
    assert (first["state"], second["state"]) == ("training", "no run")
    assert first["stage_hours"]["run2"] == pytest.approx(16.0, rel=1e-3)
    monkeypatch.chdir(folder.parent)
    assert cli.main(["status"]) == 0
    assert "no run in runs/" in capsys.readouterr().out
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
    assert run.split()[1:6] == ["training", "run2", "30/40", "5", "s"]
    assert empty.split()[1:] == ["no", "run", "-", "-", "-", "-", "-", "-"]
    status = read_status(folder)
    wide = replace(
        status, run_dir="x" * 90 + "end", stage="a_long_stage_name", num_steps=9999, alarms=("a",) * 10
    )
    for width in (90, 120):
        title, first, second = status_table([wide, status], width)
        assert len(title) == len(first) == len(second) == width - 1
        assert first.split()[1:4] == ["training", "a_long_s", "30/9999"]
        assert first.split()[0].endswith("end")


def test_it_loads_neither_torch_nor_the_configuration(folder: Path) -> None:
    """It must answer at once."""
    program = (
        "import sys; from nemo_prorl.__main__ import main; main(sys.argv[1:]); "
        "assert not {'torch', 'hydra', 'pyarrow', 'plotly', 'matplotlib'} & sys.modules.keys()"
    )
    command = [sys.executable, "-c", program, "status", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
