"""Tests of the launchers on a real Slurm with a stub of the trainer: what happens after every end of a job."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.run_folder.slurm_jobs import read_submissions
from tests.slurm.cluster import GPUS_PER_NODE, ROOT, SIZE, Cluster
from tests.test_cli import ARCHITECTURE

pytestmark = pytest.mark.slow

WORLD_SIZE = 2 * GPUS_PER_NODE
ODD = "data.train={'a file.parquet': 1.0}"


@dataclass(frozen=True)
class Given:
    """A job to run: its fate in each start (see stub.py), arguments and name of the launcher, options of sbatch and the
    folder where it is called, variables of site.env."""

    fate: str
    arguments: tuple[str, ...] = ()
    launcher: str = "run1_8k"
    options: tuple[str, ...] = ()
    cwd: Path = ROOT
    site: dict[str, str] = field(default_factory=dict)


JOBS = {
    "time limit": Given("waiting,done", options=("--time=2", "--signal=USR1@60")),
    "signal in doctor": Given("done", site={"DOCTOR_WAITS": "1"}),
    "done": Given("done", ("algorithm.kl_beta=0", ODD)),
    "no service": Given("done", site={"SERVICE": "missing"}),
    "no interpreter": Given("done", site={"PYTHON": "/no/such/python"}),
    "no pyxis": Given("done", site={"CONTAINER": "x.sqsh"}),
    "short": Given("done", options=("--time=3",)),
    "cannot write": Given("unwritable"),
    "crash": Given("crash,done"),
    "restarts": Given("crash,crash_after_progress,crash,paused"),
    "stopped": Given("stopped"),
    "mistake": Given("mistake"),
    "elsewhere": Given("done", cwd=Path("/")),
    "other stage": Given("done", ("stage=run3",)),
    "usr1": Given("waiting,done"),
    "preempted": Given("waiting,done"),
    "apptainer": Given("done", site={"CONTAINER": "/images/a b.sif", "CONTAINER_RUNTIME": "apptainer"}),
    "dead node": Given("waiting,done"),
    "faulty node": Given("done", site={"FAULTY": "one"}),
    "faulty nodes": Given("done", site={"FAULTY": "all"}),
}


APPTAINER = """#!/usr/bin/env bash
# Starts the command as apptainer would, but without a container; knows only the options that we use.
[ "$1" = exec ] && shift || exit 255
while [[ $1 == -* ]]; do
    case $1 in
        --bind) [[ ,$2, == *,/tmp,* ]] && shift || exit 255 ;;
        --pwd) cd "$2" && shift || exit 255 ;;
        --nv | --no-home | --writable-tmpfs) ;;
        *) exit 255 ;;
    esac
    shift
done
export APPTAINER_CONTAINER=$1
shift
exec "$@"
"""


@dataclass
class Run:
    """A run folder, and its latest job."""

    cluster: Cluster
    folder: Path
    python: Path
    job: str = ""

    @property
    def reward(self) -> Path:
        return self.folder / "reward" / self.job

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "slurm" / "job.json").read_text())

    def submit(self, given: Given) -> None:
        own = {"FATE": given.fate, **stub_environment(self.python)}
        command = ["sbatch", "--parsable", f"--output={self.folder}/%x-%j.out", *SIZE, *given.options]
        command += [
            str(ROOT / "launchers" / f"{given.launcher}.sh"),
            f"exp_manager.explicit_log_dir={self.folder}",
        ]
        self.job = self.cluster.run(*command, *given.arguments, cwd=given.cwd, **{**own, **given.site})

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

    def lives(self) -> int:
        return len(list(self.folder.glob("ranks/*-0.json")))

    def rank(self, rank: int) -> dict[str, Any]:
        """Returns what a rank was given in the job's first start."""
        return json.loads((self.folder / "ranks" / f"0-{rank}.json").read_text())


def stub_environment(python: Path) -> dict[str, str]:
    path = f"{python.parent}:{os.environ['PATH']}"
    return {"PYTHON": str(python), "MAX_RESTARTS": "1", "PATH": path}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the program that takes the place of Python."""
    python = tmp_path_factory.mktemp("stub") / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {ROOT}/tests/slurm/stub.py "$@"\n')
    python.chmod(0o755)
    apptainer = python.with_name("apptainer")
    apptainer.write_text(APPTAINER)
    apptainer.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def runs(cluster: Cluster, stub: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Starts all jobs at once, because most of a job's time is spent waiting for Slurm."""
    made = {name: Run(cluster, tmp_path_factory.mktemp("run"), stub) for name in JOBS}
    for name, run in made.items():
        run.submit(JOBS[name])
    return made


def test_a_signal_while_doctor_runs_is_remembered(runs: dict[str, Run]) -> None:
    run = runs["signal in doctor"]
    run.wait_for(lambda: len(list(run.folder.glob("doctor/*/*.waits"))) == 2)
    run.cluster.run("scancel", "--signal=USR1", run.job)
    assert run.end() == "COMPLETED 0:0"
    assert "SIGUSR1 came before training: paused at step 0; the job goes back to the queue" in run.log()
    assert not list(run.folder.glob("ranks/0-*.json"))
    assert run.lives() == 1


def test_ranks_know_their_place_and_overrides_arrive_as_they_were_written(runs: dict[str, Run]) -> None:
    run = runs["done"]
    assert run.end() == "COMPLETED 0:0"
    assert "run1: done" in run.log()
    environments = [run.rank(rank)["environment"] for rank in range(WORLD_SIZE)]
    assert [int(e["LOCAL_RANK"]) for e in environments] == [*range(GPUS_PER_NODE)] * 2
    nodes = [e["SLURMD_NODENAME"] for e in environments]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    for environment in environments:
        assert environment["WORLD_SIZE"] == str(WORLD_SIZE)
        assert environment["LOCAL_WORLD_SIZE"] == str(GPUS_PER_NODE)
        assert environment["CUDA_VISIBLE_DEVICES"] == "0,1", (
            "each rank sees the node's GPUs, and takes its own"
        )
        assert (environment["MASTER_ADDR"], environment["NCCL_DEBUG"]) == ("127.0.0.1", "INFO")
        assert environment["NCCL_DEBUG_FILE"] == f"{run.folder}/nccl/%h.%p"
        assert (run.folder / "nccl").is_dir()
        assert Path(environment["VLLM_CACHE_ROOT"]).parent.is_dir(), (
            "the rank has made the node's cache folder"
        )
        assert 3 * 3600 < float(environment["SLURM_JOB_END_TIME"]) - time.time() < 4 * 3600 + 60
    arguments = run.rank(0)["arguments"]
    assert arguments[0] == "stage=run1"
    assert arguments[-2:] == ["algorithm.kl_beta=0", ODD]


def test_a_reward_server_runs_on_every_node_with_a_secret_of_the_run(runs: dict[str, Run]) -> None:
    run = runs["done"]
    assert run.end() == "COMPLETED 0:0"
    assert run.reward.stat().st_mode & 0o777 == 0o700
    assert not (run.reward / "token").exists(), "the next start makes another"
    for node in {run.rank(rank)["environment"]["SLURMD_NODENAME"] for rank in range(WORLD_SIZE)}:
        said = (run.reward / f"{node}.log").read_text()
        assert f'"--host", "127.0.0.1", "--ready-file", "{run.reward}/{node}.json"' in said
    arguments = run.rank(0)["arguments"]
    assert f"reward.discovery_dir={run.reward}" in arguments
    assert f"reward.token_file={run.reward}/token" in arguments


def test_a_reward_service_that_cannot_start_is_said_and_ends_the_job(runs: dict[str, Run]) -> None:
    run = runs["no service"]
    assert run.end() == "FAILED 1:0"
    assert "ready on 0 of 2 nodes" in run.log()
    assert "reward: fastapi cannot be imported" in run.log()
    assert run.lives() == 0


def test_an_environment_that_is_not_exported_is_the_sites(runs: dict[str, Run], tmp_path: Path) -> None:
    """Several sites set SBATCH_EXPORT=NONE."""
    run = Run(runs["done"].cluster, tmp_path / "run", runs["done"].python)
    run.folder.mkdir()
    site = tmp_path / "site.env"
    given = {"FATE": "done", **stub_environment(run.python)}
    site.write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in given.items()))
    exported = {"SBATCH_EXPORT": "SITE_ENV", "SITE_ENV": str(site)}
    run.submit(Given("crash", site=exported))
    assert run.end() == "COMPLETED 0:0"
    assert run.rank(3)["environment"]["FATE"] == "done"


def test_a_second_job_in_a_folder_ends_without_touching_anything(runs: dict[str, Run]) -> None:
    run = runs["usr1"]
    run.wait_for_ranks()

    def files() -> dict[Path, bytes]:
        found = (
            path for path in run.folder.rglob("*") if path.is_file() and path.suffix not in (".out", ".log")
        )
        return {path: path.read_bytes() for path in found}

    before = files()
    second = Run(run.cluster, run.folder, run.python)
    second.submit(Given("done", launcher="run2_8k"))
    assert second.end() == "FAILED 1:0"
    assert f"run2: job {run.job} trains in {run.folder}: wait for its end" in run.log()
    assert run.cluster.states(second.job)["Restarts"] == "0"
    assert files() == before
    assert (run.record["job_id"], run.record["state"]) == (run.job, "training")


def test_a_port_that_is_in_use_is_passed_over(runs: dict[str, Run], tmp_path: Path) -> None:
    run = Run(runs["done"].cluster, tmp_path, runs["done"].python)
    run.submit(Given("done", options=("--hold",)))
    with socket.create_server(("", 20000 + int(run.job) % 10000)) as listener:
        run.cluster.run("scontrol", "release", run.job)
        assert run.end() == "COMPLETED 0:0"
        ports = {run.rank(rank)["environment"]["MASTER_PORT"] for rank in range(WORLD_SIZE)}
        assert len(ports) == 1
        assert ports != {str(listener.getsockname()[1])}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no interpreter", "/no/such/python: No such file or directory"),
        ("no pyxis", "srun: unrecognized option '--container-image=x.sqsh'"),
    ],
)
def test_what_is_missing_everywhere_fails_at_once_and_is_named(
    runs: dict[str, Run], name: str, said: str
) -> None:
    run = runs[name]
    assert run.end() == "FAILED 1:0"
    reason = json.loads((run.folder / "stages" / "run1.failed").read_text())["reason"]
    assert reason.startswith("doctor ended with code ")
    assert said in reason
    assert run.cluster.states(run.job)["Restarts"] == "0"
    assert (run.record["state"], run.record["reason"]) == ("ended", reason)


def test_a_job_shorter_than_the_lead_time_of_its_signal_does_not_pause_at_its_start(
    runs: dict[str, Run],
) -> None:
    run = runs["short"]
    assert run.end() == "COMPLETED 0:0"
    assert "no more than the 600 s of --signal: it pauses before its end without that signal" in run.log()
    environment = run.rank(0)["environment"]
    assert 0 < float(environment["SLURM_JOB_END_TIME"]) - float(environment["PRORL_HEED_USR1_FROM"]) < 180
    assert runs["done"].rank(0)["environment"]["PRORL_HEED_USR1_FROM"] == "0"


def test_a_folder_that_cannot_be_written_any_more_ends_the_job_with_a_sentence(runs: dict[str, Run]) -> None:
    """It is tried once more, because somebody may have made room."""
    run = runs["cannot write"]
    assert run.end() == "FAILED 1:0"
    assert f"{run.folder}/stages/run1.restarts cannot be written" in run.log()
    assert "ended with code 1 at step 0; the job goes back to the queue" in run.log()
    assert re.search("stages cannot be written .*make room or correct its permissions", run.log())
    assert run.lives() == 1


def test_usr1_pauses_every_rank_and_the_job_goes_on_after_it(runs: dict[str, Run]) -> None:
    """The signal reaches the reward service too, which continues."""
    run = runs["usr1"]
    run.wait_for_ranks()
    run.cluster.run("scancel", "--signal=USR1", run.job)
    assert run.end() == "COMPLETED 0:0"
    assert "paused at step 1; the job goes back to the queue" in run.log()
    assert run.lives() == 2
    assert all("ended with" not in path.read_text() for path in run.reward.glob("*.log"))


def test_a_preempted_job_saves_in_its_grace_time_and_comes_back(runs: dict[str, Run]) -> None:
    """The signal also ends the reward servers, which the rest of the step needs. What depends on the job waits on."""
    run = runs["preempted"]
    run.wait_for_ranks()
    child = Run(run.cluster, run.folder, run.python)
    child.submit(Given("done", launcher="run2_8k", options=(f"--dependency=afterok:{run.job}",)))
    nodes = ",".join({run.rank(rank)["environment"]["SLURMD_NODENAME"] for rank in range(WORLD_SIZE)})
    urgent = ("sbatch", "--partition=urgent", f"--nodelist={nodes}", "--exclusive", "--output=/dev/null")
    run.cluster.run(*urgent, "--wrap=sleep 1")
    assert run.cluster.wait(run.job, until={"PENDING"})["Restarts"] == "1"
    assert "paused at step 1; the job goes back to the queue" in run.log()
    state = run.cluster.states(child.job)
    assert (state["JobState"], state["Reason"]) == ("PENDING", "Dependency")
    assert run.end() == "COMPLETED 0:0"
    assert run.lives() == 2
    assert child.end() == "COMPLETED 0:0"


def test_a_job_runs_in_apptainer_as_well(runs: dict[str, Run]) -> None:
    run = runs["apptainer"]
    assert run.end() == "COMPLETED 0:0"
    environments = [run.rank(rank)["environment"] for rank in range(WORLD_SIZE)]
    assert {environment["APPTAINER_CONTAINER"] for environment in environments} == {"/images/a b.sif"}
    assert {environment["LOCAL_RANK"] for environment in environments} == {"0", "1"}


def test_a_crash_ends_all_ranks_and_is_tried_again(runs: dict[str, Run]) -> None:
    run = runs["crash"]
    assert run.end() == "COMPLETED 0:0"
    assert "ended with code" in run.log()
    assert run.lives() == 2


def test_restarts_without_progress_are_few_and_those_with_progress_are_not(runs: dict[str, Run]) -> None:
    """One restart without a new checkpoint is allowed, and another one after there was a checkpoint again."""
    run = runs["restarts"]
    assert run.end() == "FAILED 1:0"
    assert run.lives() == 4
    reason = json.loads((run.folder / "stages" / "run1.failed").read_text())["reason"]
    assert reason == "paused at step 2, and MAX_RESTARTS=1 restarts in a row had brought no new checkpoint"


def test_a_failed_stage_stays_down_until_it_is_submitted_again(runs: dict[str, Run]) -> None:
    run = runs["stopped"]
    assert run.end() == "FAILED 1:0"
    assert "the controller stops" in run.log()
    assert run.lives() == 1
    run.submit(Given("done"))
    assert run.end() == "COMPLETED 0:0"
    assert not (run.folder / "stages" / "run1.failed").exists()
    run.submit(Given("stopped"))
    assert run.end() == "COMPLETED 0:0", "done is done"


def test_a_mistake_in_the_configuration_ends_the_job_before_anything_starts(runs: dict[str, Run]) -> None:
    run = runs["mistake"]
    assert run.end() == "FAILED 1:0"
    assert run.lives() == 0
    assert not list(run.reward.glob("*.log"))


def test_a_node_with_a_fault_is_named_and_left_out(runs: dict[str, Run]) -> None:
    """It is found before anything has started there; the job continues elsewhere, and a new job may use the node
    again."""
    run = runs["faulty node"]
    assert run.end() == "COMPLETED 0:0"
    (node,) = (run.folder / "stages" / "run1.excluded").read_text().split()
    assert (run.folder / "faults" / node).is_file()
    assert f"run1: {node}: run folder: {run.folder}/faults/{node}/run cannot be written" in run.log()
    assert f"doctor found fault with {node} at step 0; the job goes back to the queue" in run.log()
    state = run.cluster.states(run.job)
    assert (state["ExcNodeList"], state["Restarts"]) == (node, "1")
    assert not list(run.folder.glob("ranks/0-*.json"))
    places = [json.loads(path.read_text())["environment"] for path in run.folder.glob("ranks/1-*.json")]
    assert len(places) == WORLD_SIZE
    assert node not in {environment["SLURMD_NODENAME"] for environment in places}


def test_what_every_node_lacks_is_no_fault_of_a_node(runs: dict[str, Run]) -> None:
    run = runs["faulty nodes"]
    assert run.end() == "FAILED 1:0"
    reason = json.loads((run.folder / "stages" / "run1.failed").read_text())["reason"]
    assert re.match(r"2 of 2 nodes cannot run this: run folder: .*Not a directory: write another", reason)
    assert not (run.folder / "stages" / "run1.excluded").exists()
    assert run.lives() == 0


def test_a_dead_node_brings_the_job_back_to_the_queue(runs: dict[str, Run]) -> None:
    run = runs["dead node"]
    run.wait_for_ranks()
    node = run.rank(WORLD_SIZE - 1)["environment"]["SLURMD_NODENAME"]
    run.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    # It would come back at once and get the job while the job's earlier start is still being cleaned up there.
    run.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    assert run.end() == "COMPLETED 0:0"
    assert run.cluster.states(run.job)["Restarts"] == "1"
    assert run.lives() == 2
    assert "submit the launcher again" not in run.log(), "Slurm has requeued it"


def test_a_launcher_submitted_from_elsewhere_says_so(runs: dict[str, Run]) -> None:
    assert runs["elsewhere"].end() == "FAILED 1:0"
    assert "error: / is not the root of the repository" in runs["elsewhere"].log()


def test_a_launcher_trains_no_other_stage(runs: dict[str, Run]) -> None:
    assert runs["other stage"].end() == "FAILED 1:0"
    assert "a launcher trains its own stage" in runs["other stage"].log()


@pytest.mark.parametrize(
    ("fate", "ends"), [("done", ["COMPLETED", "COMPLETED"]), ("stopped", ["FAILED", "CANCELLED"])]
)
def test_a_chain_advances_by_itself_and_stops_when_a_stage_fails(
    cluster: Cluster, stub: Path, tmp_path: Path, fate: str, ends: list[str]
) -> None:
    """Uses `submit`, which afterwards finds nothing to do or submits what failed again."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(ARCHITECTURE)
    (tmp_path / "rows.parquet").write_bytes(b"")
    run_dir = tmp_path / "run"
    files = [
        f"model.path={tmp_path}/model",
        f"data.train={{{tmp_path}/rows.parquet: 1}}",
        f"data.validation=[{tmp_path}/rows.parquet]",
        f"exp_manager.explicit_log_dir={run_dir}",
    ]
    command = [
        sys.executable,
        "-m",
        "nemo_prorl",
        "submit",
        "stage=run2",
        f"--sbatch={' '.join(SIZE)}",
        *files,
    ]
    said = cluster.run(*command, FATE=fate, **stub_environment(stub))
    jobs = {stage: one.job for stage, one in read_submissions(run_dir).items()}
    assert said.splitlines()[:2] == [f"run1     job {jobs['run1']}", f"run2     job {jobs['run2']}"]
    states = [cluster.wait(job) for job in jobs.values()]
    assert [state["JobState"] for state in states] == ends
    assert (run_dir / "stages" / "run2.done").exists() == (fate == "done")
    if fate == "done":
        assert states[0]["EndTime"] <= states[1]["StartTime"]
        assert "every stage is done" in cluster.run(*command, FATE=fate, **stub_environment(stub))
    else:
        assert len(list((run_dir / "slurm").glob("run2_8k-*.out"))) == 0, "its child never ran"
        cluster.run(*command, FATE="done", **stub_environment(stub))
        again = {stage: one.job for stage, one in read_submissions(run_dir).items()}
        assert [cluster.wait(job)["JobState"] for job in again.values()] == ["COMPLETED", "COMPLETED"]


def test_slurm_sends_usr1_before_the_time_limit_and_the_job_goes_on(runs: dict[str, Run]) -> None:
    """Slurm sends it up to a minute early. This test is the last, because its job runs during the others."""
    run = runs["time limit"]
    assert run.end() == "COMPLETED 0:0"
    assert "paused at step 1; the job goes back to the queue" in run.log()
    assert run.lives() == 2
