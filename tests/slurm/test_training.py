"""Tests training on a real Slurm with the real engines: the tiny policy on two nodes of one GPU, by the commands that
users give.

The run is submitted by `submit` and told to pause in the middle; it must equal an undisturbed run of two processes
without Slurm, and so must an arm of a fork. Plain sbatch, chains and nodes of several GPUs are tested in
test_launchers.py, stages and other layouts with the real engines in tests/training.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from nemo_prorl.run_folder.slurm_jobs import read_submissions
from tests.slurm.cluster import ROOT, Cluster
from tests.training.tiny import Case, assert_close, make_case, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # three starts of the engines, on a busy machine

NUM_STEPS = 3
"""Number of steps. The signal comes during the first, and however slow this machine is before the last."""
NUM_NODES = 2
OVERRIDES = (
    "trainer.device=cpu",
    f"trainer.pipeline_parallel={NUM_NODES}",
    f"trainer.num_steps={NUM_STEPS}",
    "validation.max_prompts=1",
    f"exp_manager.checkpoint_callback_params.save_last_k={NUM_STEPS}",
)
SITE = ("--gpus-per-node=1", "--exclusive=user")
"""Options of sbatch: the launchers ask for whole nodes (--exclusive), with all their GPUs."""


@dataclass
class Trained:
    """The results of both runs."""

    undisturbed: Path
    disturbed: Path
    log: str
    """Log of the paused run's job."""


@pytest.fixture(scope="module")
def case(service: str, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The case, with the settings of its site beside it."""
    folder = tmp_path_factory.mktemp("slurm_training")
    (folder / "site.env").write_text(f"PYTHON={sys.executable}\nREWARD_WORKERS=1\n")
    return make_case(folder, service)


@pytest.fixture(scope="module")
def trained(cluster: Cluster, case: Case) -> Trained:
    disturbed = case.run_dir("disturbed")
    submit = [sys.executable, "-m", "nemo_prorl", "submit", "stage=run1"]
    size = f"--sbatch={shlex.join([f'--nodes={NUM_NODES}', *SITE])}"
    options = case.command("disturbed", *OVERRIDES, own_service=True)[1:]
    cluster.run(*submit, size, *options, SITE_ENV=str(case.folder / "site.env"))
    job = read_submissions(disturbed)["run1"].job
    wait_for_first_step(disturbed)
    cluster.run("scancel", "--signal=USR1", job)
    case.train_forked("undisturbed", "stage=run1", *OVERRIDES, num_ranks=NUM_NODES)
    state = cluster.wait(job, timeout_s=900)
    log = Path(state["StdOut"]).read_text()
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), log
    return Trained(case.run_dir("undisturbed"), disturbed, log)


def wait_for_first_step(run_dir: Path) -> None:
    """Waits until the run has recorded the validation before its first step."""
    metrics, limit = run_dir / "metrics.jsonl", time.monotonic() + 600
    while not (metrics.exists() and metrics.stat().st_size):
        assert time.monotonic() < limit, [path.read_text() for path in run_dir.glob("slurm/*.out")]
        time.sleep(0.1)


def test_two_nodes_train_with_the_reward_servers_that_they_found(trained: Trained) -> None:
    records = steps(trained.disturbed, "run1")
    assert [record["step"] for record in records] == [*range(1, NUM_STEPS + 1)]
    assert all(record["dynamic_sampling/num_failed_rollouts"] == 0 for record in records)
    assert all(0 < record["reward/mean"] < 1 for record in records)
    assert len(list((trained.disturbed / "reward").glob("*/*.log"))) == NUM_NODES
    own = trained.disturbed / "reward_service.log"
    assert not own.exists(), "the trainer started a service of its own"
    resolved = yaml.safe_load((trained.disturbed / "resolved.yaml").read_text())
    assert resolved["trainer"]["pipeline_parallel"] == NUM_NODES
    assert resolved["stage"]["name"] == "run1"


def test_a_run_that_was_told_to_pause_continues_bit_for_bit(trained: Trained) -> None:
    assert "paused after step" in trained.log
    assert f"{NUM_NODES} nodes x 1 ranks" in trained.log
    actual, expected = steps(trained.disturbed, "run1"), steps(trained.undisturbed, "run1")
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other, 0.0)


def test_the_commands_of_a_prepared_fork_train_its_arms(
    cluster: Cluster, case: Case, trained: Trained
) -> None:
    """The parent is the run that trained on Slurm, whose reward servers have ended."""
    fork = (
        sys.executable,
        "-m",
        "nemo_prorl",
        "fork",
        str(trained.disturbed),
        f"--at={NUM_STEPS - 1}",
        "--steps=1",
    )
    arms = ("--arm=nothing", "--arm=fast: trainer.learning_rate=1e-2", "validation.interval=1")
    jobs = []
    for line in cluster.run(*fork, *arms, "--prepare").splitlines():
        sbatch, *words = shlex.split(line)
        submit = (sbatch, "--parsable", f"--nodes={NUM_NODES}", *SITE, *words)
        jobs.append(cluster.run(*submit, SITE_ENV=str(case.folder / "site.env")))
    assert len(jobs) == 2
    for state in [cluster.wait(job, timeout_s=900) for job in jobs]:
        assert state["JobState"] == "COMPLETED", Path(state["StdOut"]).read_text()
    table = cluster.run(*fork, *arms, "--prepare").splitlines()
    assert f"held-out reward after step {NUM_STEPS}, " in table[0]
    assert [line.split()[0] for line in table[2:4]] == ["nothing", "fast"]
    last = steps(trained.undisturbed, "run1")[-1]
    mine, fast = (steps(trained.disturbed / f"forks/2/{arm}-1", arm)[-1] for arm in ("nothing", "fast"))
    assert_close({**mine, "stage": "run1"}, last, 0.0)
    assert fast["optimizer/learning_rate"] == 1e-2


def test_the_smoke_job_trains_the_demo_and_says_what_it_showed(cluster: Cluster, case: Case) -> None:
    """From a checkout, without an argument but a smaller step."""
    site = case.folder / "site.env"
    smaller = ["trainer.num_steps=1", "trainer.prompts_per_step=4", "validation.max_prompts=1"]
    launcher = ["launchers/smoke.sh", "sampler.kv_cache_mib=32", "trainer.device=cpu", *smaller]
    job = cluster.run("sbatch", "--parsable", "--time=30", *SITE, *launcher, SITE_ENV=str(site))
    state = cluster.wait(job, timeout_s=900)
    log, run_dir = Path(state["StdOut"]), ROOT / f"runs/smoke-{job}"
    try:
        assert state["JobState"] == "COMPLETED", log.read_text()
        *_, line = log.read_text().splitlines()
        assert " with 1 GPU(s) trained the demo's policy: the checks of the node" in line
        assert "after step 1" in log.read_text()
    finally:
        log.unlink()
        shutil.rmtree(run_dir, ignore_errors=True)
