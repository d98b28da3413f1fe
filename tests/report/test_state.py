"""The state of a run by files and queue: each way in which a job may stand, where squeue answers and where it does
not."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.cluster.slurm_queue import Queue, QueuedJob
from nemo_prorl.report.state import Signs, describe, jobs_of
from nemo_prorl.run_folder.slurm_jobs import Submission, note_submission
from nemo_prorl.run_folder.starts import Start

WHERE = "after step 3 of 40 of run1"


def queue(**states: str) -> Queue:
    """A queue of jobs, j35="PENDING BeginTime"."""
    jobs = {}
    for name, text in states.items():
        state, _, reason = text.partition(" ")
        jobs[name[1:]] = QueuedJob(
            job=name[1:], state=state, reason=reason or "None", work_dir="/", command=""
        )
    return Queue(jobs=jobs, cluster="eos", user="ada")


DOWN = Queue(problem="no answer")


def hold(folder: Path, state: str, age_s: float = 180.0, **fields: Any) -> None:
    updated = datetime.fromtimestamp(time.time() - age_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = {"job_id": "35", "stage": "run1", "start": 1, "cluster": "eos", "user": "ada", "host": "node1"}
    given |= {"state": state, "reason": "", "updated": updated}
    (folder / "slurm").mkdir(exist_ok=True)
    (folder / "slurm" / "job.json").write_text(json.dumps(given | fields))


def said(
    folder: Path, asked: Queue | None, *, end: str = "", job: str = "35", **signs: Any
) -> tuple[str, str]:
    """What is said of a run whose process began 170 s ago and gave its last sign of life 20 s ago."""
    now = time.time()
    start = Start(
        stage="run1",
        began=now - signs.pop("began_s", 170),
        seen=now - 20,
        num_ranks=8,
        on_gpus=True,
        job=job,
        end=end,
    )
    beat = {"phase": "sampling", "time": now - 20}
    given = {"stage": "run1", "where": WHERE, "start": start, "seen_s": 20.0, "step": 3, "beat": beat} | signs
    return describe(Signs(**given), jobs_of(folder, [start] if given["start"] else [], asked))


TRAINING = f"training {WHERE} (step 3 of the run; sampling for 20 s), seen 20 s ago"
AGO, ON = f"{WHERE}, 20 s ago", "The same submission goes on from the last checkpoint."
GUESS = " (a guess: squeue says nothing of it here)."


@pytest.mark.parametrize(
    ("launcher", "asked", "signs", "state", "sentence"),
    [
        ("training", queue(j35="RUNNING"), {}, "training", f"{TRAINING}."),
        ("training", DOWN, {}, "training", TRAINING + GUESS),
        ("training", None, {}, "training", TRAINING + GUESS),
        ("training", queue(j35="RUNNING"), {"seen_s": 1000.0}, "silent",
         f"no sign of life for 17 min {WHERE}: killed, or hanging; job 35 still has its nodes."),
        ("training", DOWN, {"seen_s": 1000.0}, "silent",
         f"no sign of life for 17 min {WHERE}: killed, or hanging; the same command goes on, unless a job of it is in "
         f"the queue{GUESS}"),
        ("training", queue(j35="RUNNING"), {"began_s": 900}, "starting",
         f"job 35 of run1 has been starting its trainer for 3 min; stopped {AGO}."),
        ("training", queue(j35="SUSPENDED"), {}, "waiting", f"Slurm has suspended job 35 {WHERE}."),
        ("training", queue(j35="COMPLETING"), {}, "stopped", f"stopped {AGO}; job 35 is leaving its nodes."),
        ("training", queue(j35="PENDING BeginTime"), {}, "waiting",
         f"stopped {AGO}; job 35 of run1 waits in the queue (BeginTime)."),
        ("training", queue(j35="CANCELLED"), {}, "cancelled",
         f"job 35 was cancelled, last sign of life 20 s ago {WHERE}. {ON}"),
        ("training", queue(), {}, "stopped",
         f"job 35 is not in the queue any more, last sign of life 20 s ago {WHERE}. {ON}"),
        ("training", queue(j35="TIMEOUT"), {}, "stopped",
         f"job 35 ended as TIMEOUT, last sign of life 20 s ago {WHERE}. {ON}"),
        ("checking", queue(j35="RUNNING"), {"began_s": 900}, "checking",
         f"job 35 of run1 has been checking its nodes for 3 min; stopped {AGO}."),
        ("checking", DOWN, {"began_s": 900}, "checking",
         f"job 35 of run1 has been checking its nodes for 3 min{GUESS[:-1]}; stopped {AGO}."),
        ("checking", queue(j35="CANCELLED"), {"end": "paused"}, "cancelled",
         f"paused {AGO}; job 35 was cancelled. {ON}"),
        ("requeued", queue(j35="PENDING BeginTime"), {"end": "paused"}, "waiting",
         f"paused {AGO}; job 35 of run1 waits in the queue (BeginTime)."),
        ("requeued", DOWN, {"end": "paused"}, "waiting",
         f"paused {AGO}; job 35 went back to the queue 3 min ago, unless it was cancelled{GUESS}"),
        ("requeued", queue(j35="RUNNING"), {"end": "paused"}, "paused", f"paused {AGO}; job 35 is leaving its nodes."),
        ("requeued", queue(), {"end": "paused"}, "stopped", f"paused {AGO}; job 35 is not in the queue any more. {ON}"),
        ("ended", queue(), {"end": "no GPU."}, "stopped",
         f"stopped {AGO}: no GPU; job 35 is not in the queue any more (crashed). {ON}"),
        ("ended", DOWN, {"end": "no GPU."}, "stopped",
         f"stopped {AGO}: no GPU; job 35 ended 3 min ago: crashed. The same submission goes on."),
        ("training", queue(j35="RUNNING"), {"failures": {"run1": "no GPU."}}, "failed",
         f"run1 failed {WHERE}: no GPU."),
    ],
)  # fmt: skip
def test_a_run_whose_job_began(
    tmp_path: Path, launcher: str, asked: Queue | None, signs: dict[str, Any], state: str, sentence: str
) -> None:
    hold(tmp_path, launcher, reason="crashed." if launcher == "ended" else "")
    assert said(tmp_path, asked, **signs) == (state, sentence)


@pytest.mark.parametrize(
    ("asked", "state", "must_say"),
    [
        (queue(j35="PENDING Priority", j36="PENDING Dependency"), "waiting",
         "run1 has not begun; job 35 of run1 waits in the queue (Priority)."),
        (queue(j35="RUNNING"), "starting", "job 35 of run1 is on its nodes, and has not trained yet."),
        (queue(j35="CANCELLED", j36="CANCELLED"), "stopped",
         "run1 has not begun, and its job 35 is not in the queue any more: submit again."),
        (DOWN, "waiting", f"run1 waits in the queue as job 35, unless it was cancelled{GUESS}"),
    ],
)  # fmt: skip
def test_a_run_that_was_only_submitted(tmp_path: Path, asked: Queue, state: str, must_say: str) -> None:
    note_submission(tmp_path, "run1", Submission(job="35"))
    note_submission(tmp_path, "run2", Submission(job="36"))
    assert said(tmp_path, asked, start=None, step=None) == (state, must_say)


@pytest.mark.parametrize(
    ("asked", "state", "must_say"),
    [
        (queue(j35="COMPLETED", j36="PENDING Resources"), "waiting",
         "run1 is done; job 36 of run2 waits in the queue (Resources)."),
        (queue(j36="RUNNING"), "starting", "job 36 of run2 is on its nodes; stopped"),
        (queue(j35="COMPLETING"), "done", "done: run1 ended after step 3 (all its steps)."),
        (queue(j36="CANCELLED"), "done", "done: run1 ended after step 3 (all its steps)."),
        (DOWN, "waiting", "run1 is done; run2 waits in the queue as job 36, unless it was cancelled"),
    ],
)  # fmt: skip
def test_a_stage_that_is_done(tmp_path: Path, asked: Queue, state: str, must_say: str) -> None:
    note_submission(tmp_path, "run1", Submission(job="35"))
    note_submission(tmp_path, "run2", Submission(job="36"))
    found = said(tmp_path, asked, end="steps", outcomes={"run1": "all its steps"})
    assert (found[0], found[1].startswith(must_say)) == (state, True), found


def test_the_job_of_a_later_stage_checks_its_nodes(tmp_path: Path) -> None:
    hold(tmp_path, "checking", job_id="36", stage="run2", start=2)
    state, sentence = said(
        tmp_path, queue(j36="RUNNING"), began_s=900, end="steps", outcomes={"run1": "steps"}
    )
    assert (state, sentence.partition(";")[0]) == (
        "checking",
        "job 36 of run2, start 2, has been checking its nodes for 3 min",
    )


def test_a_failed_stage_that_was_submitted_again(tmp_path: Path) -> None:
    note_submission(tmp_path, "run1", Submission(job="40"))
    found = said(tmp_path, queue(j40="PENDING Priority"), failures={"run1": "no GPU."})
    assert found == (
        "failed",
        f"run1 failed {WHERE}: no GPU. But job 40 of run1 waits in the queue (Priority).",
    )


@pytest.mark.parametrize("owner", [{"cluster": "other"}, {"user": "bob"}])
def test_a_job_of_somebody_else_is_a_guess(tmp_path: Path, owner: dict[str, str]) -> None:
    """Another cluster has jobs of the same numbers."""
    hold(tmp_path, "training", **owner)
    assert said(tmp_path, queue(j35="CANCELLED")) == ("training", TRAINING + GUESS)


def test_a_process_outside_of_slurm(tmp_path: Path) -> None:
    """An old job of the folder says nothing about it."""
    hold(tmp_path, "requeued", age_s=5000)
    assert said(tmp_path, queue(), job="") == ("training", f"{TRAINING}.")
    assert said(tmp_path, queue(), job="", is_unlocked=True) == (
        "stopped", f"killed {WHERE}, last sign of life 20 s ago; the same command goes on.",
    )  # fmt: skip


def test_a_job_of_an_earlier_version_has_no_launcher_that_writes(tmp_path: Path) -> None:
    assert said(tmp_path, queue(j35="RUNNING")) == ("training", f"{TRAINING}.")
    assert said(tmp_path, queue(j35="CANCELLED"))[0] == "cancelled"
    assert said(tmp_path, queue(j35="PENDING BeginTime"), end="paused")[0] == "waiting"
    assert said(tmp_path, queue(j35="RUNNING"), end="paused")[1].startswith("job 35 is on its nodes; paused")


def test_the_first_job_of_a_run_checks_its_nodes(tmp_path: Path) -> None:
    hold(tmp_path, "checking")
    sentence = "job 35 of run1 has been checking its nodes for 3 min"
    assert said(tmp_path, queue(j35="RUNNING"), start=None, step=None) == ("checking", f"{sentence}.")
    assert said(tmp_path, DOWN, start=None, step=None) == ("checking", sentence + GUESS)
    state, sentence = said(tmp_path, queue(j35="FAILED"), start=None, step=None)
    assert state == "stopped"
    assert sentence == "run1 has not begun; job 35 ended as FAILED. The same submission begins again."
