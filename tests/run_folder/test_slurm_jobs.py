"""RUN/slurm/: what `submit` and launchers leave there, and what failing disks have left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_prorl.config import ExpManagerConfig, RewardConfig, RunConfig
from nemo_prorl.run_folder.slurm_jobs import (
    HoldingJob,
    Submission,
    note_submission,
    read_folder_job,
    read_submissions,
    submissions_file,
    without_servers_of_its_job,
)

JOB = {
    "job_id": "35", "stage": "run1", "start": 2, "cluster": "eos", "user": "ada", "host": "node1", "state": "training",
    "reason": "", "updated": "2026-11-26T18:20:00Z",
}  # fmt: skip


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "slurm").mkdir()
    return tmp_path


def test_submissions_are_kept_by_stage(run_dir: Path) -> None:
    assert read_submissions(run_dir) == {}
    first = Submission(job="1", options=["--nodes=2"], overrides=["a=b c"])
    note_submission(run_dir, "run1", first)
    note_submission(run_dir, "run2", Submission(job="2"))
    note_submission(run_dir, "run2", Submission(job="3"))
    assert read_submissions(run_dir) == {"run1": first, "run2": Submission(job="3")}


@pytest.mark.parametrize("text", ["", "[]", "x", '{"run2": 5}', '{"run3": {"id": "4"}}'])
def test_other_contents_are_no_submissions(run_dir: Path, text: str) -> None:
    submissions_file(run_dir).write_text(text)
    assert read_submissions(run_dir) == {}
    note_submission(run_dir, "run1", Submission(job="1"))
    assert read_submissions(run_dir) == {"run1": Submission(job="1")}
    assert [path.read_text() for path in (run_dir / "slurm").glob("unread-*-jobs.json")] == [text]


def test_the_job_of_the_folder(run_dir: Path) -> None:
    assert read_folder_job(run_dir) is None
    (run_dir / "slurm" / "job.json").write_text(json.dumps(JOB))
    assert read_folder_job(run_dir) == HoldingJob(
        job="35", stage="run1", cluster="eos", user="ada", state="training", reason="", updated=1795717200.0
    )
    (run_dir / "slurm" / "job.json").write_text(json.dumps(JOB | {"updated": "yesterday"}))
    assert read_folder_job(run_dir) is None


@pytest.mark.parametrize(
    ("discovery_dir", "token_file", "kept"),
    [
        ("runs/x/reward/17", "runs/x/reward/17/token", ("", "")),
        ("", "", ("", "")),
        ("/shared/servers", "/shared/token", ("/shared/servers", "/shared/token")),
        ("/shared/servers", "runs/x/reward/17/token", ("/shared/servers", "")),
        ("runs/x/rewards", "runs/x2/reward/17/token", ("runs/x/rewards", "runs/x2/reward/17/token")),
    ],
)
def test_servers_in_the_runs_folder_end_with_its_job(
    discovery_dir: str, token_file: str, kept: tuple[str, str]
) -> None:
    reward = RewardConfig(discovery_dir=discovery_dir, token_file=token_file, request_timeout_s=7)
    config = RunConfig(reward=reward, exp_manager=ExpManagerConfig(explicit_log_dir="runs/x"))
    left = without_servers_of_its_job(config)
    assert (left.reward.discovery_dir, left.reward.token_file) == kept
    assert left.reward.request_timeout_s == 7
