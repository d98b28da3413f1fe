"""The files of a job in a run's folder, and what the trainer's own modules make of them."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_prorl.run_folder import markers
from nemo_prorl.run_folder.lock import alone_in
from nemo_prorl.run_folder.starts import recorded_start
from slurm.job import commands
from slurm.job.__main__ import End, JobStart
from slurm.job.decisions import ENDED, STOP, STOPPED, TRAINING, Answer, JobDecision, StepEnd
from slurm.job.folder import Folder

RECORD = {
    "job_id": "7",
    "stage": "run1",
    "start": 1,
    "cluster": "c",
    "user": "me",
    "host": "n1",
    "state": "checking",
}


def held(run_dir: Path, job: str = "7", start: int = 1) -> Folder:
    folder = Folder(str(run_dir), "run1", job)
    folder.hold({**RECORD, "job_id": job, "start": start})
    return folder


def test_the_newest_step_is_that_of_a_whole_checkpoint(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), "run1", "7")
    assert folder.newest_step() == 0
    for name in ("step-00000008-run1", "step-00000010-run-1", ".writing-step-00000012-run1", "other"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert folder.newest_step() == 10


def test_a_job_that_has_not_said_that_it_ended_holds_the_folder(tmp_path: Path) -> None:
    other = Folder(str(tmp_path), "run2", "8")
    assert other.holders() == []
    assert list(tmp_path.iterdir()) == [], "asking writes nothing"
    folder = held(tmp_path)
    folder.note_state(TRAINING)
    (holder,) = other.holders()
    assert (holder.job, holder.cluster, holder.user, holder.is_alive) == ("7", "c", "me", False)
    assert not other.is_held()
    other.note_state(ENDED, "mine")
    other.close_service()
    assert json.loads((tmp_path / "slurm" / "job.json").read_text())["state"] == TRAINING
    folder.note_state(STOPPED)
    assert [holder.job for holder in other.holders()] == ["7"], "Slurm may have requeued it"
    folder.note_state(ENDED, "done")
    assert other.holders() == []
    record = json.loads((tmp_path / "slurm" / "job.json").read_text())
    assert (record["job_id"], record["reason"], record["updated"][-1]) == ("7", "done", "Z")


def test_a_trainer_outside_of_slurm_holds_the_folder_too(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), "run1", "7")
    with alone_in(tmp_path, is_gone=lambda _: False):
        (holder,) = folder.holders()
        assert (holder.job, holder.is_alive) == (os.environ.get("SLURM_JOB_ID", ""), True)
    assert folder.holders() == []


def test_files_of_two_jobs_are_different_ones_and_secrets_are_for_the_user(tmp_path: Path) -> None:
    first, second = held(tmp_path), held(tmp_path, job="8")
    assert {first.reward, first.doctor}.isdisjoint({second.reward, second.doctor})
    assert first.reward.stat().st_mode & 0o777 == 0o700
    assert (first.reward / "token").stat().st_mode & 0o777 == 0o600
    assert (first.reward / "token").read_text() != (second.reward / "token").read_text()
    (first.reward / "n1.json").write_text('{"url": "http://n1", "sandbox": "none"}')
    assert [first.announcements(), second.announcements()] == [[{"url": "http://n1", "sandbox": "none"}], []]
    held(tmp_path, start=2)
    assert first.announcements() == [], "of the start before"


def test_of_two_jobs_that_claim_a_folder_at_once_the_last_one_has_it(tmp_path: Path) -> None:
    first, second = held(tmp_path), held(tmp_path, job="8")
    assert [first.is_held(), second.is_held()] == [False, True]
    first.note_state(ENDED, "job 8 trains")
    assert [holder.job for holder in first.holders()] == ["8"]


def test_a_new_job_is_trusted_and_a_restart_is_not(tmp_path: Path) -> None:
    folder = held(tmp_path)
    folder.mark_failed('a "quoted" reason')
    assert markers.why_failed(tmp_path, "run1") == folder.failure() == 'a "quoted" reason'
    assert held(tmp_path, start=2).failure()
    assert held(tmp_path, job="8").failure() == ""


def test_starts_without_a_new_checkpoint_are_counted(tmp_path: Path) -> None:
    folder = held(tmp_path)
    assert [folder.count_idle(*steps) for steps in ((0, 0), (0, 0), (3, 0), (3, 3))] == [1, 2, 0, 1]
    folder.note_excluded(["a", "b"])
    folder.note_excluded(["c"])
    assert folder.marker("excluded").read_text().split() == ["a", "b", "c"]


def test_what_cannot_be_written_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = held(tmp_path)
    (tmp_path / "stages").rmdir()
    (tmp_path / "stages").touch()
    assert folder.count_idle(0, 0) == 1
    folder.mark_failed("x")
    said = capfd.readouterr().out.splitlines()
    assert [line.partition("Z run1: ")[2] for line in said] == [
        f"{tmp_path}/stages/run1.{kind} cannot be written: Not a directory" for kind in ("restarts", "failed")
    ]
    with pytest.raises(OSError, match="stages"):
        held(tmp_path)


def test_only_whole_answers_count(tmp_path: Path) -> None:
    folder = held(tmp_path)
    texts = {
        "a": '{"verdict": "ok", "sentence": "", "is_complete": true}',
        "b": '{"verdict": "failure", "sentence": "x", "is_complete": false}',
        "c": '{"verdict": "ok", "is_compl',
        "d": "[]",
    }
    for node, text in texts.items():
        (folder.doctor / f"{node}.json").write_text(text)
    assert folder.answers([*texts, "e"]) == {"a": Answer("ok")}


def test_the_last_signal_that_a_node_noted_counts(tmp_path: Path) -> None:
    folder = held(tmp_path)
    assert folder.usr1_came_s() is None
    (folder.doctor / "usr1").write_text("1700000000\n")
    (folder.reward / "usr1").write_text("1700000005\n")
    assert folder.usr1_came_s() == 1700000005
    assert held(tmp_path, start=2).usr1_came_s() is None
    assert folder.domains() is None
    (folder.doctor / "domains").write_text("")
    assert folder.domains() == ""


def test_the_error_of_a_trainer_is_that_of_this_start(tmp_path: Path) -> None:
    folder, began_s = held(tmp_path), time.time()
    assert folder.error_of_trainer(began_s) == ""
    with pytest.raises(OSError, match="full"), recorded_start(
        tmp_path, "run1", began=began_s + 1, num_ranks=1, on_gpus=False, is_main=True
    ):  # fmt: skip
        raise OSError("the disk\nis full")
    assert folder.error_of_trainer(began_s) == "the disk is full"
    assert folder.error_of_trainer(began_s + 2) == "", "of an earlier start"


def test_a_folder_without_room_is_said_and_a_probe_leaves_nothing(tmp_path: Path) -> None:
    folder = held(tmp_path)
    assert folder.unwritable() == ""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1024, hard)
    )  # a small file fits, as on a disk that is nearly full
    try:
        why = folder.unwritable()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(folder.doctor) in why
    assert "make room" in why
    assert list(folder.doctor.iterdir()) == []
    folder.doctor.rmdir()
    assert "cannot be written" in folder.unwritable()


@pytest.fixture
def told_to_end(tmp_path: Path) -> JobStart:
    """A launcher that trains, and gets SIGTERM after 58 s, which is all the time that its job has."""
    job = object.__new__(JobStart)  # outside of Slurm
    job.stage, job.say = "run1", lambda _: None  # type: ignore[method-assign]
    job.folder, job.signals, job.is_ending = held(tmp_path), {signal.SIGTERM}, False
    job.first_step, job.began_s, job.end_s = 0, time.time() - 58, time.time()
    job.trainer = SimpleNamespace(code=0, end=lambda: StepEnd(0), send=lambda _: None)  # type: ignore[assignment]
    job.folder.note_state(TRAINING)
    return job


def record_of(run_dir: Path) -> tuple[str, str]:
    record = json.loads((run_dir / "slurm" / "job.json").read_text())
    return record["state"], record["reason"]


def test_a_launcher_that_is_told_to_end_keeps_the_folder_and_says_why(
    told_to_end: JobStart, tmp_path: Path
) -> None:
    """Slurm may kill it before its ranks have ended."""
    too_short = "no step was saved in the 58 s that the job had: raise --time"
    told_to_end.pause(0)
    assert told_to_end.is_ending
    assert record_of(tmp_path) == (STOPPED, too_short)
    assert (told_to_end.folder.reward / "over").exists()
    assert told_to_end.finish(JobDecision(STOP, told_to_end.why_stopped())) == 143
    assert record_of(tmp_path) == (STOPPED, too_short)
    (tmp_path / "checkpoints" / "step-00000001-run1").mkdir(parents=True)
    told_to_end.finish(JobDecision(STOP, told_to_end.why_stopped()))
    assert record_of(tmp_path) == (STOPPED, "")
    assert Folder(str(tmp_path), "run1", "8").holders(), "the folder is not free"


def test_a_stage_that_is_done_is_done_although_the_launcher_was_told_to_end(told_to_end: JobStart) -> None:
    assert told_to_end.trainer
    with pytest.raises(End):
        told_to_end.wait(told_to_end.trainer)
    told_to_end.folder.marker("done").touch()
    assert told_to_end.wait(told_to_end.trainer) == StepEnd(0)


def test_a_node_that_was_left_out_stays_out_when_another_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, calls = object.__new__(JobStart), list[tuple[str, ...]]()
    job.folder, job.allocation = held(tmp_path), SimpleNamespace(name="7")  # type: ignore[assignment]
    monkeypatch.setattr(commands, "fields_of", lambda *_: {"ExcNodeList": "n1"})
    monkeypatch.setattr(commands, "run", lambda *call: calls.append(call) or SimpleNamespace(returncode=0))
    job.leave_out(["n2"])
    assert calls == [("scontrol", "update", "JobId=7", "ExcNodeList=n1,n2")]
