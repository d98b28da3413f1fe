"""Which jobs of a queue belong to a run's folder, however their commands spell it, and what a new job would meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_prorl.cluster.folder_jobs import ActiveJob, NotNow, difference, find_jobs, match_jobs
from nemo_prorl.cluster.slurm_queue import Queue, QueuedJob
from nemo_prorl.config import ConfigError

KEY = "exp_manager.explicit_log_dir"


def queue(*jobs: tuple[str, str], work_dir: Path, state: str = "PENDING") -> Queue:
    """Returns a queue of (job, command)."""
    listed = {
        job: QueuedJob(job=job, state=state, reason="None", work_dir=str(work_dir), command=command)
        for job, command in jobs
    }
    return Queue(jobs=listed, cluster="eos", user="ada")


def found(tmp_path: Path, arguments: str, *, is_default: bool = False) -> list[tuple[str, str]]:
    """Returns (stage, arguments) of a job of run 1 with these arguments in the folder `a run`."""
    launchers = {(tmp_path / "launchers" / "run1_8k.sh").resolve(): "run1"}
    asked = queue(("68", f"launchers/run1_8k.sh {arguments}".strip()), work_dir=tmp_path)
    jobs = find_jobs(asked, tmp_path / "a run", launchers, is_default=is_default)
    return [(job.stage, " ".join(job.arguments.split())) for job in jobs]


@pytest.mark.parametrize(
    "spelling", ["{0}/a run", "'{0}/a run'", '"{0}/a run"', "a run", "./a run", "{0}/x/../a run/", "link"]
)
@pytest.mark.parametrize("form", ["{0} a=b c", "a=b c {0}", "a=b {0} c"])
def test_every_spelling_of_a_folder_is_understood(tmp_path: Path, spelling: str, form: str) -> None:
    """squeue separates a job's arguments by spaces, and so does the folder's name."""
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to("a run")
    override = f"{KEY}={spelling.format(tmp_path)}"
    assert found(tmp_path, form.format(override)) == [("run1", "a=b c")]


@pytest.mark.parametrize("folder", ["a run2", "a", "run", "x/a run", "a runs"])
def test_another_folder_is_another(tmp_path: Path, folder: str) -> None:
    assert found(tmp_path, f"{KEY}={folder} a=b") == []
    assert found(tmp_path, f"{KEY}={folder} a=b", is_default=True) == []


def test_a_launcher_that_is_told_no_folder_has_the_default(tmp_path: Path) -> None:
    assert found(tmp_path, "a=b") == []
    assert found(tmp_path, "a=b", is_default=True) == [("run1", "a=b")]
    elsewhere = queue(("68", "other/run1_8k.sh a=b"), work_dir=tmp_path)
    assert find_jobs(elsewhere, tmp_path, {}, is_default=True) == [], "somebody's own script"


def test_without_an_answer_nothing_is_found(tmp_path: Path) -> None:
    with pytest.raises(NotNow, match="squeue does not answer \\(it is down\\)"):
        find_jobs(Queue(problem="it is down"), tmp_path, {}, is_default=False)


def job(number: str, stage: str, arguments: str = "a=1", state: str = "RUNNING") -> ActiveJob:
    return ActiveJob(job=number, stage=stage, name=f"job {number}", state=state, arguments=arguments)


NEW = {stage: ["a=1", f"{KEY}=runs/x"] for stage in ("run1", "run2", "run3")}


@pytest.mark.parametrize(
    ("jobs", "matched"),
    [
        ([], {}),
        ([job("1", "run1")], {"run1": "1"}),
        ([job("2", "run2"), job("1", "run1")], {"run1": "1", "run2": "2"}),
        ([job("3", "run3"), job("1", "run1"), job("2", "run2"), job("9", "")], {"run1": "1", "run2": "2", "run3": "3"}),
    ],
)  # fmt: skip
def test_jobs_of_the_first_stages_are_gone_on_with(jobs: list[ActiveJob], matched: dict[str, str]) -> None:
    assert match_jobs(jobs, NEW, Path("runs/x")) == matched


@pytest.mark.parametrize(
    ("jobs", "error", "must_say"),
    [
        ([job("2", "run2")], ConfigError, "job 2 trains in runs/x or waits to, and a job of stage run1"),
        ([job("1", "run1"), job("3", "run3")], ConfigError, "job 3 trains in .*a job of stage run2"),
        ([job("1", "run1"), job("8", "run1")], ConfigError, "job 8 trains in .*a job of stage run2"),
        ([job("9", "")], ConfigError, "job 9 trains in"),
        ([job("1", "run1", "a=2")], ConfigError, "run1 .* job 1 with other overrides: it has a=2 where .* has a=1"),
        ([job("1", "run1", "a=1 b=2")], ConfigError, "it has b=2 where this command has nothing"),
        ([job("1", "run1", state="COMPLETING")], NotNow, "job 1 is leaving its nodes"),
    ],
)  # fmt: skip
def test_what_a_new_job_would_meet_is_said(
    jobs: list[ActiveJob], error: type[Exception], must_say: str
) -> None:
    with pytest.raises(error, match=must_say):
        match_jobs(jobs, NEW, Path("runs/x"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a=1 b=2", ["b=2", f"{KEY}=x", "a=1"], ""),
        ("a={x: 1, y: 2}", ["a={x: 1, y: 2}"], ""),
        ("", ["a=1"], "it has nothing where this command has a=1"),
        ("a=1 a=1", ["a=1"], "it has a=1 where this command has nothing"),
    ],
)
def test_the_difference_of_two_jobs(old: str, new: list[str], said: str) -> None:
    assert difference(old, new) == said
