"""A fork on the real engines: its control is the run's own continuation, bit for bit, also if the fork is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import yaml

from nemo_prorl.questions.arms import Arm, ArmRun, arm_runs, checkpoint_at
from nemo_prorl.questions.table import ArmResult, results_of
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.metrics_file import read_metrics
from tests.conftest import ROOT
from tests.training.conftest import case as case
from tests.training.tiny import TIMEOUT_S, Case, run_forked, saved_tensors, timeless

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

OPTIONS = (
    "trainer.num_steps=4",
    "exp_manager.checkpoint_callback_params.save_last_k=9",
    "validation.interval=1",
    # A schedule that goes on in an arm, and draws on the scores so far.
    "algorithm.entropy_bonus=adaptive",
    "algorithm.entropy_target=5.0",
    "algorithm.entropy_target_end=3.0",
    "algorithm.entropy_anneal_steps=4",
    "data.mix=difficulty",
)
ARMS = ("nothing", "fast: trainer.learning_rate=1e-2")


def fork(case: Case, out: Path, *options: str) -> list[str]:
    words = ["fork", str(case.run_dir("whole")), "--at", "2", "--steps", "2", "--out", str(out), *options]
    return [sys.executable, "-m", "nemo_prorl", *words, *(word for arm in ARMS for word in ("--arm", arm))]


@pytest.fixture(scope="module")
def forked(case: Case) -> Path:
    """Trains a run of four steps, and forks it at its second. The fork is killed in its first arm, and repeated."""
    run_forked(case.command("whole", *OPTIONS, own_service=True))
    out = case.folder / "fork"
    process = subprocess.Popen(
        fork(case, out), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    records, until = out / "nothing-1/metrics.jsonl", time.monotonic() + TIMEOUT_S
    while not (
        records.is_file() and len(read_metrics(records)) > 4
    ):  # validation of 0, steps 1 and 2, validation of 2
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "nothing-1/stages/nothing.done").exists()
    done = subprocess.run(
        fork(case, out), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (case.folder / "printed.txt").write_text(done.stdout)
    return out


def end_of(run_dir: Path, scratch: Path) -> dict[str, torch.Tensor]:
    scratch.mkdir()
    return saved_tensors(find_checkpoints(run_dir)[-1].policy, scratch)


def step_records(folder: Path) -> list[dict[str, Any]]:
    """Returns the records of a folder's steps, of any stage."""
    return [record for record in read_metrics(folder / "metrics.jsonl") if "reward/mean" in record]


def steps(folder: Path) -> list[dict[str, Any]]:
    """Returns the same without times and stages."""
    found = map(timeless, step_records(folder))
    return [{key: value for key, value in record.items() if key != "stage"} for record in found]


def test_an_arm_without_overrides_is_the_runs_own_continuation(
    case: Case, forked: Path, tmp_path: Path
) -> None:
    own, arm, fast = (
        end_of(folder, tmp_path / folder.name)
        for folder in (case.run_dir("whole"), forked / "nothing-1", forked / "fast-1")
    )
    assert own.keys() == arm.keys()
    assert [name for name in own if not torch.equal(own[name], arm[name])] == []
    assert any(not torch.equal(own[name], fast[name]) for name in own)

    assert len(steps(forked / "nothing-1")) == 4
    assert steps(forked / "nothing-1") == steps(case.run_dir("whole"))
    assert steps(forked / "fast-1")[:2] == steps(case.run_dir("whole"))[:2]
    assert steps(forked / "fast-1")[3] != steps(case.run_dir("whole"))[3]
    options = yaml.safe_load((forked / "nothing-1/stages/nothing.yaml").read_text())
    assert options["reward"]["urls"] == [], "the fork's service has ended"


def test_the_table_is_of_the_last_validations(case: Case, forked: Path) -> None:
    runs: list[ArmRun] = arm_runs(
        case.run_dir("whole"), checkpoint_at(case.run_dir("whole"), 2), [Arm.parsed(text) for text in ARMS],
        common=[], num_seeds=1, num_steps=2, out=forked, conf_dir=ROOT / "conf",
    )  # fmt: skip
    results: list[ArmResult] = results_of(runs)
    for run, result in zip(runs, results, strict=True):
        last = read_metrics(run.folder / "metrics.jsonl")[-1]
        assert fmean(result.rewards[1].values()) == pytest.approx(last["validation/score"], abs=1e-12)
        assert result.tokens == last["validation/response_tokens"]
    assert results[1].gain is not None
    printed = (case.folder / "printed.txt").read_text()
    assert (forked / "fork.txt").read_text() in printed
    assert "With one seed, intervals are over prompts" in printed
    assert f"report {forked}/nothing-1 {forked}/fast-1" in printed.replace("'", "")


def test_arms_of_two_ranks_take_the_same_steps_up_to_rounding(case: Case, forked: Path) -> None:
    out = case.folder / "fork of two ranks"
    options = ("--ranks", "2", "--steps", "1")
    done = subprocess.run(
        fork(case, out, *options), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "on 2 rank(s)" in done.stdout
    mine, own = (steps(folder)[2] for folder in (out / "nothing-1", case.run_dir("whole")))
    for name in ("reward/mean", "objective/loss", "objective/entropy", "optimizer/grad_norm"):
        assert mine[name] == pytest.approx(own[name], rel=1e-4), name
    exchanged = [record["throughput/exchange_mib"] for record in step_records(out / "nothing-1")]
    assert exchanged[2] > 0 == exchanged[1], "what one rank trained alone, two do together"
