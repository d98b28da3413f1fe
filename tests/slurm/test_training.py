"""Training on a real Slurm with the real engines: the tiny policy on two nodes of one GPU, by the commands that users
give.

Two runs of the same steps. One comes from `submit` and is told to pause in the middle; the other is a plain sbatch that
nobody disturbs, at the same time. (Chains and nodes of several GPUs are tried in test_launchers.py, stages and other
layouts on the real engines in tests/training.)
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from nemo_prorl.training.telemetry import read_metrics
from tests.conftest import REWARD_PYTHON
from tests.slurm.cluster import Cluster
from tests.training.tiny import assert_close, steps, write_case

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # three starts of the engines, on a busy machine

NUM_STEPS = 3
SIZE = ("--nodes=2", "--gpus-per-node=1")
OVERRIDES = (
    "trainer.pipeline_parallel=2",
    f"trainer.num_steps={NUM_STEPS}",
    "validation.max_prompts=1",
)


@dataclass
class Trained:
    """What both runs left."""

    undisturbed: Path
    disturbed: Path
    log: str
    """Of the disturbed one's job."""


@pytest.fixture(scope="module")
def trained(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("slurm_training")
    write_case(folder)
    site = folder / "site.env"
    site.write_text(f"REWARD_PYTHON={REWARD_PYTHON}\nREWARD_WORKERS=1\n")
    arguments = ["--config-name", str(folder / "tiny.yaml"), *OVERRIDES]
    undisturbed, disturbed = folder / "undisturbed", folder / "disturbed"

    command = ["sbatch", "--parsable", f"--output={folder}/%x-%j.out", *SIZE, "launchers/run1_8k.sh"]
    place = f"exp_manager.explicit_log_dir={undisturbed}"
    plain = cluster.run(*command, *arguments, place, SITE_ENV=str(site))

    place = f"exp_manager.explicit_log_dir={disturbed}"
    submit = [sys.executable, "-m", "nemo_prorl", "submit", "stage=run1", f"--sbatch={' '.join(SIZE)}"]
    cluster.run(*submit, *arguments, place, SITE_ENV=str(site))
    job = json.loads((disturbed / "slurm" / "jobs.json").read_text())["run1"]
    wait_for_step(disturbed, 1)
    cluster.run("scancel", "--signal=USR1", job)
    state = cluster.wait(job, timeout_s=900)
    log = Path(state["StdOut"]).read_text()
    assert cluster.wait(plain, timeout_s=900)["JobState"] == "COMPLETED", (
        folder / f"run1_8k-{plain}.out"
    ).read_text()
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), log
    return Trained(undisturbed, disturbed, log)


def wait_for_step(run_dir: Path, step: int) -> None:
    limit = time.monotonic() + 600
    while True:
        if (run_dir / "metrics.jsonl").exists() and read_metrics(run_dir / "metrics.jsonl")[-1][
            "step"
        ] >= step:
            return
        assert time.monotonic() < limit, [path.read_text() for path in run_dir.glob("slurm/*.out")]
        time.sleep(0.1)


def test_two_nodes_train_with_the_reward_servers_that_they_found(trained: Trained) -> None:
    records = steps(trained.undisturbed, "run1")
    assert [record["step"] for record in records] == [*range(1, NUM_STEPS + 1)]
    assert all(record["dynamic_sampling/num_failed_rollouts"] == 0 for record in records)
    assert all(0 < record["reward/mean"] < 1 for record in records)
    assert len(list((trained.undisturbed / "reward").glob("*.log"))) == 2
    assert not (trained.undisturbed / "reward_service.log").exists(), (
        "the trainer started a service of its own"
    )
    resolved = yaml.safe_load((trained.undisturbed / "resolved.yaml").read_text())
    assert resolved["trainer"]["pipeline_parallel"] == 2
    assert resolved["stage"]["name"] == "run1"


def test_a_run_that_was_told_to_pause_continues_bit_for_bit(trained: Trained) -> None:
    assert "paused at step" in trained.log
    actual, expected = steps(trained.disturbed, "run1"), steps(trained.undisturbed, "run1")
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other, 0.0)
