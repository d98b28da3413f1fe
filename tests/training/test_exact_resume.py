"""A run that is killed at any point and resumed leaves, bit for bit, what an uninterrupted one leaves.

The real `train` on the real engines is killed with SIGKILL: shortly after its heartbeat names a given phase, or a given
time after its start. PRORL_KILLS=12 makes more kills, PRORL_KILL_SEED others.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from nemo_prorl.run_folder.checkpoints import Checkpoint, find_checkpoints
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.records import read_digests
from nemo_prorl.run_folder.starts import read_starts
from nemo_prorl.run_folder.storage import step_files
from nemo_prorl.training.watchdog import heartbeat
from tests.training.tiny import Case, saved_tensors, timeless

NUM_KILLS = int(os.environ.get("PRORL_KILLS", "3"))
SEED = int(os.environ.get("PRORL_KILL_SEED", "5"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 * (NUM_KILLS + 3))]

NUM_STEPS = 6
FIRST_RESET = 3
OVERRIDES = (
    f"trainer.num_steps={NUM_STEPS}",
    "validation.interval=2",
    # Steps between two checkpoints are done again; resets are saved besides, at steps 3 and 6.
    "exp_manager.checkpoint_callback_params.every_n_train_steps=2",
    "controller.mode=interval",
    f"controller.interval={FIRST_RESET}",
    # State of every kind: a bonus that learns, a schedule, rounds of sampling that depend on the yield seen so far, and
    # draws on the scores.
    "data.mix=difficulty",
    "algorithm.entropy_bonus=adaptive",
    "algorithm.entropy_target=4.0",
    "algorithm.entropy_target_end=1.0",
    "algorithm.entropy_anneal_steps=5",
    "trainer.warmup_updates=6",
    "dynamic_sampling.oversample=1.25",
    "exp_manager.record_rollouts=1",
)
PHASES = (
    "sampling",
    "grading",
    "old_logprobs",
    "reference_logprobs",
    "updates",
    "refit",
    "validation",
    "checkpoint",
)


@dataclass(frozen=True)
class Kill:
    """When a process is killed: in a phase of the step after `step`, or, without a phase, some time after its first
    heartbeat."""

    step: int
    phase: str
    delay_s: float


def kills(count: int, seed: int) -> list[Kill]:
    """Returns kills at ever later points of the run: one during the save of a reset, the others anywhere."""
    chance = random.Random(seed)
    phases: list[str] = []
    while len(phases) < count - 1:
        phases += chance.sample([*PHASES, ""], len(PHASES) + 1)
    planned = [
        Kill(chance.randrange(NUM_STEPS), phase, chance.uniform(0, 0.3 if phase else 6.0))
        for phase in phases[: count - 1]
    ]
    planned.append(Kill(FIRST_RESET, "checkpoint", chance.uniform(0, 0.3)))
    return sorted(planned, key=lambda kill: kill.step)


@dataclass(frozen=True)
class Runs:
    whole: Path
    killed: Path
    died: list[str]
    """Where each process was when it was killed."""


@pytest.fixture(scope="module", params=[(), ("lora.rank=4",)], ids=["all weights", "low rank"])
def runs(case: Case, request: pytest.FixtureRequest) -> Runs:
    overrides, suffix = (*OVERRIDES, *request.param), "_low_rank" * bool(request.param)
    whole, killed_run = f"whole{suffix}", f"killed{suffix}"
    case.train_forked(whole, *overrides)
    died = [end for kill in kills(NUM_KILLS, SEED) if (end := killed(case, killed_run, overrides, kill))]
    case.train_forked(killed_run, *overrides)
    print("\n".join(died))
    return Runs(case.run_dir(whole), case.run_dir(killed_run), died)


def killed(case: Case, run: str, overrides: tuple[str, ...], kill: Kill) -> str:
    """Returns where the process was; empty if it finished first."""
    heartbeat(case.run_dir(run)).unlink(missing_ok=True)  # of the process before
    process = case.start(run, *overrides)
    try:
        wait_for(process, case.run_dir(run), kill)
    finally:
        process.kill()
    process.join(60)
    assert process.exitcode in (0, -9), (case.folder / f"{run}.txt").read_text()[-3000:]
    return "" if process.exitcode == 0 else f"{kill}: {read_heartbeat(case.run_dir(run))}"


def wait_for(process: BaseProcess, run_dir: Path, kill: Kill) -> None:
    """Returns when it is time to kill the process, or when it has ended."""
    while process.is_alive():
        beat = read_heartbeat(run_dir)
        if beat and (not kill.phase or (beat["step"] >= kill.step and beat["phase"] == kill.phase)):
            time.sleep(kill.delay_s)
            return
        time.sleep(0.002)


def read_heartbeat(run_dir: Path) -> dict[str, Any] | None:
    try:
        beat: dict[str, Any] = json.loads(heartbeat(run_dir).read_text())
        return beat
    except FileNotFoundError:
        return None


def last_checkpoint(run_dir: Path) -> Checkpoint:
    return find_checkpoints(run_dir)[-1]


def test_processes_did_die_on_the_way(runs: Runs) -> None:
    assert len(runs.died) >= NUM_KILLS - 1, "the last may find the run already finished"


def test_every_process_is_on_record(runs: Runs) -> None:
    *killed, last = [start.end for start in read_starts(runs.killed)]
    assert (killed, last) == ([""] * len(runs.died), "steps")


def test_every_number_of_every_step_is_the_same(runs: Runs) -> None:
    """Except for measured times."""
    whole, resumed = (read_metrics(folder / "metrics.jsonl") for folder in (runs.whole, runs.killed))
    assert [timeless(record) for record in resumed] == [timeless(record) for record in whole]
    assert [record["step"] for record in whole] == list(range(NUM_STEPS + 1))


def test_every_digest_and_every_recorded_rollout_is_the_same(runs: Runs) -> None:
    whole, resumed = (read_digests(folder) for folder in (runs.whole, runs.killed))
    assert whole.damaged == resumed.damaged == frozenset()
    assert sorted(whole.steps) == sorted(resumed.steps) == list(range(1, NUM_STEPS + 1))
    for step, line in whole.steps.items():
        for part in ("phases", "updates", "was_ahead"):
            assert resumed.steps[step][part] == line[part], (step, part)
        for name in ("rollouts", "rollouts/trained"):
            paths = (step_files(folder, name).path(step, "rank0") for folder in (runs.whole, runs.killed))
            recorded, again = map(pq.read_table, paths)
            assert recorded.num_rows > 0
            assert again.equals(recorded), step


def test_weights_moments_and_reference_are_the_same(runs: Runs, tmp_path: Path) -> None:
    whole, resumed = (
        saved_tensors(last_checkpoint(folder).policy, tmp_path) for folder in (runs.whole, runs.killed)
    )
    assert whole.keys() == resumed.keys()
    trained = "lora.decoder" if "low_rank" in runs.whole.name else "embedding"
    for part in ("embedding", "reference.embedding", f"optimizer.exp_avg_sq.{trained}", trained):
        assert any(name.startswith(f"/{part}") for name in whole), part
    assert [name for name, tensor in whole.items() if not torch.equal(tensor, resumed[name])] == []


def test_the_state_of_the_run_is_the_same(runs: Runs) -> None:
    whole, resumed = (asdict(last_checkpoint(folder).state) for folder in (runs.whole, runs.killed))
    assert resumed == whole
    assert whole["num_resets"] == 2


def test_a_reset_makes_no_jump_of_the_learning_rate(runs: Runs) -> None:
    rates = [
        record["optimizer/learning_rate"]
        for record in read_metrics(runs.whole / "metrics.jsonl")
        if record["step"]
    ]
    assert rates == pytest.approx([1e-3 * min(1, 2 * step / 6) for step in range(1, NUM_STEPS + 1)])
