"""Tests of the launchers on a real Slurm with a stub of the trainer: one for each way in which signals, ends and files
cross from Slurm to slurm/job and back. test_decisions.py holds what it decides from them, test_training.py what the
real trainer does."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.run_folder.slurm_jobs import read_submissions
from tests.slurm.cluster import GPUS_PER_NODE, ROOT, SIZE, Cluster
from tests.test_cli import inputs_for_submit

pytestmark = pytest.mark.slow

WORLD_SIZE = 2 * GPUS_PER_NODE
LEFT_BEHIND = "SLURM_GPUS=2,SLURM_GPUS_PER_NODE=1,SLURM_EXCLUSIVE=1,SLURM_HET_SIZE=2,SLURM_RESTART_COUNT=3"
ODD = "data.train={'a file.parquet': 1.0}"
PINNED = ("node1", "node2")
JOBS: dict[str, dict[str, str]] = {
    # name: fate (see stub.py) and variables of site.env
    "pinned node": {"FATE": "faulty"},  # the first, because it waits for its nodes
    "late": {"FATE": "late,done"},
    "done": {"FATE": "done"},
    "no service": {"FATE": "alone"},
    "no interpreter": {"FATE": "done", "PYTHON": "/no/such/python"},
    "restarts": {"FATE": "crash,crash_after_progress,crash,paused"},
    "usr1": {"FATE": "waiting,done"},
    "preempted": {"FATE": "waiting,done"},
    "dead node": {"FATE": "waiting,done"},
    "told to end": {"FATE": "waiting"},
    "no grader": {"FATE": "waiting"},
    "faulty node": {"FATE": "faulty,done"},
}
"""The jobs that start at once, because most of a job's time is spent waiting for Slurm."""


@dataclass
class Run:
    """A run folder, and its latest job."""

    cluster: Cluster
    folder: Path
    python: Path
    job: str = ""

    def submit(
        self, *arguments: str, launcher: str = "run1_8k", options: tuple[str, ...] = (), **site: str
    ) -> None:
        """Submits a launcher with these variables, none of which the job's environment has: several sites set
        SBATCH_EXPORT=NONE. It has what salloc and an earlier job may leave behind in a shell."""
        file = self.folder / f"{launcher}.env"
        given = {**stub_environment(self.python), **site}
        file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in given.items()))
        command = ["sbatch", "--parsable", f"--output={self.folder}/%x-%j.out", *SIZE, *options]
        command += [
            f"{ROOT}/launchers/{launcher}.sh",
            f"exp_manager.explicit_log_dir={self.folder}",
            *arguments,
        ]
        self.job = self.cluster.run(*command, SBATCH_EXPORT=f"SITE_ENV,{LEFT_BEHIND}", SITE_ENV=str(file))

    def end(self) -> str:
        """Waits for the job's end; returns its state and exit code."""
        state = self.cluster.wait(self.job)
        print(self.log())  # for pytest, which shows the output of a failed test
        return f"{state['JobState']} {state['ExitCode']}"

    def wait_for(self, has_come: Callable[[], bool]) -> None:
        limit = time.monotonic() + 180
        while not has_come():
            assert time.monotonic() < limit, self.log()
            time.sleep(0.1)

    def wait_for_ranks(self) -> None:
        self.wait_for(lambda: len(list(self.folder.glob("ranks/0-*.json"))) >= WORLD_SIZE)

    def log(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("*.out"))

    def failure(self) -> str:
        return str(json.loads((self.folder / "stages" / "run1.failed").read_text())["reason"])

    def lives(self) -> int:
        return len(list(self.folder.glob("ranks/*-0.json")))

    def ranks(self, life: int = 0) -> list[dict[str, Any]]:
        """Returns what each rank was given in one start of the job."""
        files = (self.folder / "ranks" / f"{life}-{rank}.json" for rank in range(WORLD_SIZE))
        return [json.loads(file.read_text()) for file in files]

    def nodes(self, life: int = 0) -> list[str]:
        return [rank["environment"]["SLURMD_NODENAME"] for rank in self.ranks(life)]


def stub_environment(python: Path) -> dict[str, str]:
    path = f"{python.parent}:{os.environ['PATH']}"
    return {"PYTHON": str(python), "MAX_RESTARTS": "1", "PATH": path}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the program that takes the place of Python."""
    python = tmp_path_factory.mktemp("stub") / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {ROOT}/tests/slurm/stub.py "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def runs(cluster: Cluster, stub: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    made = {name: Run(cluster, tmp_path_factory.mktemp("run"), stub) for name in JOBS}
    for name, run in made.items():
        options = (f"--nodelist={','.join(PINNED)}",) if name == "pinned node" else ()
        run.submit("algorithm.kl_beta=0", ODD, options=options, **JOBS[name])
    return made


def test_a_signal_while_doctor_runs_is_remembered(runs: dict[str, Run]) -> None:
    run = runs["late"]
    run.wait_for(lambda: len(list(run.folder.glob("doctor/*/*.waits"))) == 2)
    run.cluster.run("scancel", "--signal=USR1", run.job)
    assert run.end() == "COMPLETED 0:0"
    assert "SIGUSR1 came before training: paused at step 0; the job goes back to the queue" in run.log()
    assert not list(run.folder.glob("ranks/0-*.json"))
    assert run.lives() == 1


def test_ranks_know_their_place_and_overrides_arrive_as_they_were_written(runs: dict[str, Run]) -> None:
    run = runs["done"]
    assert run.end() == "COMPLETED 0:0"
    environments = [rank["environment"] for rank in run.ranks()]
    assert [int(e["LOCAL_RANK"]) for e in environments] == [*range(GPUS_PER_NODE)] * 2
    nodes = run.nodes()
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    for environment in environments:
        assert (environment["WORLD_SIZE"], environment["LOCAL_WORLD_SIZE"]) == (str(WORLD_SIZE), "2")
        assert environment["CUDA_VISIBLE_DEVICES"] == "0,1", (
            "each rank sees the node's GPUs, and takes its own"
        )
        assert (environment["MASTER_ADDR"], environment["NCCL_DEBUG"]) == ("127.0.0.1", "INFO")
        assert Path(environment["VLLM_CACHE_ROOT"]).parent.is_dir(), (
            "the rank has made the node's cache folder"
        )
        assert 3 * 3600 < float(environment["SLURM_JOB_END_TIME"]) - time.time() < 4 * 3600 + 60
        assert environment["PRORL_HEED_USR1_FROM"] == "0"
    arguments, reward = run.ranks()[0]["arguments"], run.folder / "reward" / run.job
    assert arguments[0] == "stage=run1"
    assert arguments[-2:] == ["algorithm.kl_beta=0", ODD]
    assert {f"reward.discovery_dir={reward}", f"reward.token_file={reward}/token"} < {*arguments}
    assert not (reward / "token").exists(), "the next start makes another"
    for node in nodes:
        said = (reward / f"{node}.log").read_text()
        assert f'"--host", "127.0.0.1", "--ready-file", "{reward}/{node}.json"' in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no interpreter", r"doctor ended with code .*/no/such/python: No such file or directory"),
        ("no service", r"no reward server starts"),
    ],
)
def test_what_is_missing_everywhere_fails_at_once_and_is_named(
    runs: dict[str, Run], name: str, said: str
) -> None:
    run = runs[name]
    assert run.end() == "FAILED 1:0"
    assert re.match(said, run.failure())
    assert run.cluster.states(run.job)["Restarts"] == "0"
    assert run.lives() == 0
    record = json.loads((run.folder / "slurm" / "job.json").read_text())
    assert (record["state"], record["reason"]) == ("ended", run.failure())
    if name == "no service":
        assert re.search(r"ready on 0 of 2 nodes(.|\n)*reward: fastapi cannot be imported", run.log())


def test_usr1_pauses_every_rank_and_meanwhile_a_second_job_touches_nothing(runs: dict[str, Run]) -> None:
    """The signal reaches the reward service too, which continues."""
    run = runs["usr1"]
    run.wait_for_ranks()

    def files() -> dict[Path, bytes]:
        found = (path for path in run.folder.rglob("*") if path.is_file() and path.suffix in ("", ".json"))
        return {path: path.read_bytes() for path in found}

    before = files()
    second = Run(run.cluster, run.folder, run.python)
    second.submit(launcher="run2_8k", FATE="done")
    assert second.end() == "FAILED 1:0"
    assert f"run2: job {run.job} trains in {run.folder}: wait for its end" in run.log()
    assert run.cluster.states(second.job)["Restarts"] == "0"
    assert files() == before
    run.cluster.run("scancel", "--signal=USR1", run.job)
    assert run.end() == "COMPLETED 0:0"
    assert "paused at step 1; the job goes back to the queue" in run.log()
    assert run.lives() == 2
    logs = [path.read_text() for path in (run.folder / "reward" / run.job).glob("*.log")]
    assert all("ended with" not in log for log in logs)


def test_a_preempted_job_saves_in_its_grace_time_and_comes_back(runs: dict[str, Run]) -> None:
    """The signal also ends the reward servers, which the rest of the step needs. What depends on the job waits on."""
    run = runs["preempted"]
    run.wait_for_ranks()
    child = Run(run.cluster, run.folder, run.python)
    child.submit(launcher="run2_8k", options=(f"--dependency=afterok:{run.job}",), FATE="done")
    urgent = ("sbatch", "--partition=urgent", f"--nodelist={','.join({*run.nodes()})}", "--exclusive")
    run.cluster.run(*urgent, "--output=/dev/null", "--wrap=sleep 1")
    assert run.cluster.wait(run.job, until={"PENDING"})["Restarts"] == "1"
    assert "paused at step 1; the job goes back to the queue" in run.log()
    state = run.cluster.states(child.job)
    assert (state["JobState"], state["Reason"]) == ("PENDING", "Dependency")
    assert run.end() == "COMPLETED 0:0"
    assert run.lives() == 2
    assert child.end() == "COMPLETED 0:0"


def test_a_task_of_an_array_pauses_alone(cluster: Cluster, stub: Path, tmp_path: Path) -> None:
    """The id of the last task is that of the array. Each task has a folder of its own."""
    site = {**stub_environment(stub), "FATE": "waiting,done"}
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in site.items())
    (tmp_path / "site.env").write_text(f"{text}RUN_DIR={tmp_path}/$SLURM_ARRAY_TASK_ID\n")
    options = ("--array=0-1", f"--output={tmp_path}/%a.out", *SIZE)
    array = cluster.run(
        "sbatch", "--parsable", *options, "launchers/run1_8k.sh", SITE_ENV=str(tmp_path / "site.env")
    )
    first, last = (Run(cluster, tmp_path / task, stub, job=f"{array}_{task}") for task in "01")
    for run in (first, last):
        run.wait_for_ranks()
    cluster.run("scancel", "--signal=USR1", last.job)
    assert last.end() == "COMPLETED 0:0"
    state = cluster.states(first.job)
    assert (state["JobState"], state["Restarts"]) == ("RUNNING", "0")
    cluster.run("scancel", "--signal=USR1", first.job)
    assert first.end() == "COMPLETED 0:0"
    assert [first.lives(), last.lives()] == [2, 2]


def test_crashes_are_tried_again_and_restarts_without_progress_come_to_an_end(runs: dict[str, Run]) -> None:
    """One restart without a new checkpoint is allowed, and another one after there was a checkpoint again."""
    run = runs["restarts"]
    assert run.end() == "FAILED 1:0"
    assert run.lives() == 4
    assert (
        run.failure()
        == "paused at step 2, and MAX_RESTARTS=1 restarts in a row had brought no new checkpoint"
    )


def test_a_node_with_a_fault_is_named_and_left_out(runs: dict[str, Run]) -> None:
    """It is found before anything has started there; the job continues elsewhere."""
    run = runs["faulty node"]
    assert run.end() == "COMPLETED 0:0"
    (node,) = (run.folder / "stages" / "run1.excluded").read_text().split()
    assert f"run1: {node}: caches: no room" in run.log()
    assert f"doctor found fault with {node} at step 0; the job goes back to the queue" in run.log()
    state = run.cluster.states(run.job)
    assert (state["ExcNodeList"], state["Restarts"]) == (node, "1")
    assert not list(run.folder.glob("ranks/0-*.json"))
    assert node not in run.nodes(1)


def test_a_reward_step_that_was_killed_as_a_whole_is_started_again(runs: dict[str, Run]) -> None:
    """As for its memory, with the script that would start the server again."""
    run = runs["no grader"]
    run.wait_for_ranks()
    steps = run.cluster.run("squeue", "--noheader", "--steps", f"--jobs={run.job}", "--format=%i %j %N")
    step, _, node = next(line.split() for line in steps.splitlines() if " reward " in line)
    address = run.folder / "reward" / run.job / f"{node}.json"
    before = address.read_text()
    run.cluster.run("scancel", "--signal=KILL", step)
    run.wait_for(lambda: address.exists() and address.read_text() not in ("", before))
    assert re.search(rf"{node}: the reward service, which ended with code \d+, starts again", run.log())
    run.cluster.run("scancel", run.job)
    assert run.end().startswith("CANCELLED")


def test_sigterm_to_the_launcher_alone_ends_the_ranks(runs: dict[str, Run]) -> None:
    """As by `scancel --batch`. Their step is saved."""
    run = runs["told to end"]
    run.wait_for_ranks()
    run.cluster.run("scancel", "--batch", "--signal=TERM", run.job)
    assert run.end().startswith("FAILED 143:")
    assert list(run.folder.glob("checkpoints/step-*"))
    record = json.loads((run.folder / "slurm" / "job.json").read_text())
    assert (record["state"], record["reason"]) == ("stopped", "")


def test_a_bad_node_that_the_user_has_pinned_fails_the_job(runs: dict[str, Run]) -> None:
    run = runs["pinned node"]
    assert run.end() == "FAILED 1:0"
    assert run.failure() == f"{PINNED[1]}: caches: no room; --nodelist asks for it: submit without it"


def test_a_dead_node_brings_the_job_back_to_the_queue_with_its_folder(runs: dict[str, Run]) -> None:
    run = runs["dead node"]
    run.wait_for_ranks()
    node = run.nodes()[-1]
    run.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    # It would come back at once and get the job while the job's earlier start is still being cleaned up there.
    run.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    run.cluster.wait(run.job, until={"PENDING"})
    second = Run(run.cluster, run.folder, run.python)
    second.submit(launcher="run2_8k", FATE="done")
    assert second.end() == "FAILED 1:0"
    assert f"run2: job {run.job} waits in the queue to go on in {run.folder}" in run.log()
    assert run.end() == "COMPLETED 0:0"
    assert run.cluster.states(run.job)["Restarts"] == "1"
    assert run.lives() == 2
    assert "submit the launcher again" not in run.log(), "Slurm has requeued it"


def test_a_job_shorter_than_the_lead_time_of_its_signal_does_not_pause_at_its_start(
    cluster: Cluster, stub: Path, tmp_path: Path
) -> None:
    run = Run(cluster, tmp_path, stub)
    run.submit(options=("--time=3",), FATE="done")
    assert run.end() == "COMPLETED 0:0"
    assert (
        "no more than the 600 s of --signal: it pauses before its end without that signal, after a step"
        in run.log()
    )
    environment = run.ranks()[0]["environment"]
    assert 0 < float(environment["SLURM_JOB_END_TIME"]) - float(environment["PRORL_HEED_USR1_FROM"]) < 180


def test_a_chain_stops_when_a_stage_fails_and_advances_when_it_is_submitted_again(
    cluster: Cluster, stub: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    command = (
        sys.executable, "-m", "nemo_prorl", "submit", "stage=run2", f"--sbatch={' '.join(SIZE)}",
        *inputs_for_submit(tmp_path), f"exp_manager.explicit_log_dir={run_dir}",
    )  # fmt: skip
    for fate, ends in (("stopped", ["FAILED", "CANCELLED"]), ("done", ["COMPLETED", "COMPLETED"])):
        said = cluster.run(*command, FATE=fate, **stub_environment(stub))
        jobs = {stage: one.job for stage, one in read_submissions(run_dir).items()}
        assert said.splitlines()[:2] == [f"run1     job {jobs['run1']}", f"run2     job {jobs['run2']}"]
        states = [cluster.wait(job) for job in jobs.values()]
        assert [state["JobState"] for state in states] == ends
        assert (run_dir / "stages" / "run1.failed").exists() == (fate == "stopped")
    assert states[0]["EndTime"] <= states[1]["StartTime"]
    assert len(list((run_dir / "slurm").glob("run2_8k-*.out"))) == 1, "the child of the failed one never ran"
    assert "every stage is done" in cluster.run(*command, FATE="done", **stub_environment(stub))
    (tmp_path / "run" / "ranks").rename(tmp_path / "ranks")
    again = cluster.run("sbatch", "--parsable", "--output=/dev/null", *SIZE, "launchers/run1_8k.sh", command[-1],
                        FATE="stopped", **stub_environment(stub))  # fmt: skip
    assert cluster.wait(again)["JobState"] == "COMPLETED", "done is done"
    assert not (run_dir / "ranks").exists()


def test_the_follower_comes_back_before_its_time_is_up(cluster: Cluster, tmp_path: Path) -> None:
    calls, python = tmp_path / "calls", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n[ $(wc -l < {calls}) -gt 1 ] || exec sleep 300\n')
    python.chmod(0o755)
    run = Run(cluster, tmp_path, python)
    (tmp_path / "site.env").write_text(f"PYTHON={python}\n")
    options = (
        f"--output={tmp_path}/%x-%j.out",
        "--gpus-per-node=2",
        "launchers/follow.sh",
        "runs/a b",
        "suite=smoke",
    )
    run.job = cluster.run("sbatch", "--parsable", *options, SITE_ENV=str(tmp_path / "site.env"))
    run.wait_for(calls.exists)
    cluster.run("scancel", "--batch", "--signal=USR1", run.job)
    run.wait_for(lambda: len(calls.read_text().splitlines()) == 2)
    assert run.end() == "COMPLETED 0:0"
    command = "-m nemo_prorl evaluate --follow runs/a b suite=smoke --ranks 2"
    assert calls.read_text().splitlines() == [command] * 2
