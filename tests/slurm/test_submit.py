"""Tests of what only a real Slurm can tell `submit` and `status`: which jobs are in its queue, and with which words it
describes them. The jobs are held, so none runs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_prorl.cluster.slurm_queue import GONE, ask_queue
from nemo_prorl.run_folder.slurm_jobs import read_submissions
from tests.slurm.cluster import ROOT, SIZE, Cluster
from tests.test_cli import inputs_for_submit

pytestmark = pytest.mark.slow


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    return [*inputs_for_submit(tmp_path), f"exp_manager.explicit_log_dir={tmp_path}/a run"]


def call(cluster: Cluster, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nemo_prorl", *arguments],
        cwd=ROOT, env={**cluster.environment, **environment}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


def submit(cluster: Cluster, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return call(cluster, "submit", f"--sbatch=--hold {' '.join(SIZE)}", *arguments, **environment)


def state_of(cluster: Cluster, run_dir: Path) -> str:
    return call(cluster, "status", str(run_dir)).stdout.replace("\n", " ")


def test_jobs_of_an_earlier_submission_are_gone_on_with(
    cluster: Cluster, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "a run"
    assert submit(cluster, "stage=run1", *overrides).returncode == 0
    first = read_submissions(run_dir)["run1"].job
    done = submit(cluster, "stage=run2", *overrides)
    assert done.returncode == 0, done.stderr
    chained = read_submissions(run_dir)["run2"].job
    assert done.stdout.splitlines()[:2] == [
        f"run1     job {first} (in the queue already)",
        f"run2     job {chained}",
    ]
    assert cluster.states(chained)["Dependency"].startswith(f"afterok:{first}")
    assert f"StdOut={run_dir}/slurm/run2_8k-{chained}.out" in cluster.run("scontrol", "show", "job", chained)
    assert f"job {first} of run1: PENDING (JobHeldUser)" in state_of(cluster, run_dir)
    changed = submit(cluster, "stage=run2", *overrides, "trainer.learning_rate=5e-5")
    assert changed.returncode == 2
    assert f"stage run1 is in the queue as job {first} with other overrides" in changed.stderr

    (tmp_path / "broken.conf").write_text("")
    down = submit(cluster, "stage=run2", *overrides, SLURM_CONF=str(tmp_path / "broken.conf"))
    assert (down.returncode, down.stdout) == (1, "")
    assert "squeue does not answer (" in down.stderr

    cluster.run("scancel", first, chained)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    limit = time.monotonic() + 60
    while (queue := ask_queue()).state(first) != "CANCELLED":
        assert time.monotonic() < limit, queue
        time.sleep(0.2)
    assert (queue.problem, queue.cluster, queue.state("99999999")) == ("", "test", GONE)
    assert f"job {first} of run1: CANCELLED" in state_of(cluster, run_dir)
    again = submit(cluster, "stage=run1", *overrides)
    assert again.stdout.startswith(f"run1     job {read_submissions(run_dir)['run1'].job}\n")
    assert read_submissions(run_dir)["run1"].job != first
    cluster.run("scancel", read_submissions(run_dir)["run1"].job)


def test_a_refused_submission_is_one_sentence(cluster: Cluster, overrides: list[str]) -> None:
    done = call(cluster, "submit", "stage=run1", "--sbatch=--partition=nowhere", *overrides)
    assert done.returncode == 2
    assert "sbatch refuses launchers/run1_8k.sh: sbatch: error: invalid partition" in done.stderr
