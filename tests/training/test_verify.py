"""`verify` on the real engines: a recorded step is equal again, and a planted change is named in its phase."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nemo_prorl.__main__ import main
from nemo_prorl.data.rows import write_rows
from nemo_prorl.report.rollouts import read_recorded, visible
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.records import read_rollouts
from nemo_prorl.run_folder.storage import step_files
from nemo_prorl.types import TOKEN_LIMITS
from tests.conftest import ROOT
from tests.engines.conftest import run_ranks
from tests.training.tiny import TIMEOUT_S, Case, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OVERRIDES = (
    "trainer.num_steps=3",
    "exp_manager.record_rollouts=2",
    "exp_manager.checkpoint_callback_params.every_n_train_steps=1",
    "exp_manager.checkpoint_callback_params.save_last_k=5",
)


def verify(*arguments: str, num_ranks: int = 1) -> tuple[int, str]:
    """Returns the exit code and the output of `verify`, in processes of its own."""
    code, text = run_ranks(_verify, num_ranks, timeout_s=TIMEOUT_S, arguments=["verify", *arguments])[0]
    print(text)
    return code, text


def _verify(arguments: list[str]) -> tuple[int, str]:
    with redirect_stdout(StringIO()) as output:
        code = main(arguments)
    return code, output.getvalue()


def _verify_with_a_changed_moment(arguments: list[str]) -> tuple[int, str]:
    """Flips one bit, the sign, of the largest first moment of the checkpoint that the step begins with."""
    from nemo_prorl.engines.megatron.policy import MegatronPolicy

    load = MegatronPolicy.load

    def changed(policy: MegatronPolicy, directory: Path, **options: Any) -> None:
        load(policy, directory, **options)
        (inner,) = policy.optimizer.chained_optimizers
        moments = [state["exp_avg"].view(-1) for state in inner.optimizer.state.values()]
        largest = max(moments, key=lambda moment: float(moment.abs().max()))
        largest[largest.abs().argmax()] *= -1

    with patch.object(MegatronPolicy, "load", changed):
        return _verify(arguments)


def test_a_changed_moment_of_the_optimizer_is_named(run: Path) -> None:
    """The first update's gradients do not depend on it: its weights, and so the second update, do."""
    arguments = ["verify", str(run), "--step", "3"]
    code, text = run_ranks(_verify_with_a_changed_moment, 1, timeout_s=TIMEOUT_S, arguments=arguments)[0]
    assert code == 1
    first = next(line for line in text.splitlines() if "DIFFER" in line)
    assert first.split("DIFFER")[0].strip() == "updates"
    assert "1 of 2 updates (update 2): " in first


@pytest.fixture(scope="module", params=[(), ("lora.rank=4",)], ids=["all weights", "low rank"])
def run(case: Case, request: pytest.FixtureRequest) -> Path:
    name = f"verified{len(request.param)}"
    case.train_forked(name, *OVERRIDES, *request.param)
    return case.run_dir(name)


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_every_step_is_equal_again_from_the_start(run: Path) -> None:
    """Step 2 with its recorded rollouts, the others sampled again; all of them sampled again; and one alone."""
    for options in (("--step", "1..3"), ("--step", "1..3", "--sample-again"), ("--step", "3")):
        code, text = verify(str(run), *options)
        assert code == 0
        assert "Exact: every bit is compared." in text
        assert text.count("weights at the start") == (1 if "3" in options else 3)
        assert "DIFFER" not in text


def test_what_updates_made_of_recorded_rollouts_agrees_with_the_metrics(run: Path) -> None:
    rows = pq.read_table(step_files(run, "rollouts/trained").path(2, "rank0")).to_pylist()
    recorded, record = read_rollouts(run, 2), read_metrics(run / "metrics.jsonl")[2]
    assert record["step"] == 2
    limits = np.concatenate([row["limits"] for row in rows])
    for limit, name in (("clipped_low", "clip_low"), ("clipped_high", "clip_high")):
        assert np.mean((limits >> TOKEN_LIMITS.index(limit)) & 1) == pytest.approx(
            record[f"objective/{name}_fraction"], abs=1e-9
        )
    advantages = np.array([row["advantage"] for row in rows])
    assert advantages.std() == pytest.approx(record["objective/advantage_std"], rel=1e-5)
    for row in rows:
        sampled = recorded[row["uid"], row["sibling"]]
        assert len(row["limits"]) == len(sampled.token_ids)
        differences = np.abs(np.array(row["old_logprobs"]) - sampled.logprobs)
        assert differences.max() <= record["sampler/logprob_abs_diff_max"] + 1e-7
    found = read_recorded(run)
    assert found["prompts"]
    for prompt in found["prompts"]:
        for one in prompt["visits"][0]["rollouts"]:
            assert "".join(one["tokens"]).startswith(visible(recorded[one["uid"], one["sibling"]].text))


def changed_record(run: Path, index: int, change: Callable[[dict[str, Any]], None]) -> tuple[str, str]:
    """Changes one recorded rollout of step 2. Returns what `verify` prints then, and the first phase that differs."""
    (file,) = (run / "rollouts").glob("step-00000002-*.parquet")
    table = pq.read_table(file)
    rows = table.to_pylist()
    change(rows[index])
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)
    code, text = verify(str(run), "--step", "2")
    assert code == 1
    first = next(line for line in text.splitlines() if "DIFFER" in line)
    assert rows[index]["uid"] in first
    return text, first.split("DIFFER")[0].strip()


def test_a_recorded_token_that_was_changed_is_named(copied: Path) -> None:
    def flip(row: dict[str, Any]) -> None:
        row["token_ids"][0] ^= 1

    assert changed_record(copied, 0, flip)[1] == "rollouts"
    assert verify(str(copied), "--step", "2", "--sample-again")[0] == 0


def test_rollouts_that_are_damaged_or_missing_are_no_difference(copied: Path) -> None:
    (file,) = (copied / "rollouts").glob("step-00000002-*.parquet")
    whole, table = file.read_bytes(), pq.read_table(file)
    pq.write_table(table.filter(pc.not_equal(table["uid"], table["uid"][0])), file)  # of one rank's prompt
    assert verify(str(copied), "--step", "2")[0] == 2
    file.write_bytes(whole[:100])
    assert verify(str(copied), "--step", "2")[0] == 2
    assert verify(str(copied), "--step", "2", "--sample-again")[0] == 0


def test_two_ranks_are_exact_on_two_and_within_a_tolerance_on_one(case: Case) -> None:
    options = [*OVERRIDES, "trainer.tensor_parallel=2", "exp_manager.record_rollouts=1"]
    case.train_forked("verified_on_two", *options, num_ranks=2)
    run = str(case.run_dir("verified_on_two"))
    written = step_files(Path(run), "rollouts/trained").all()  # by the replica's leader alone
    assert [path.name for _, path in written] == [f"step-0000000{step}-rank0.parquet" for step in (1, 2, 3)]
    code, text = verify(run, "--step", "2..3", num_ranks=2)
    assert code == 0
    assert "Exact" in text
    assert text.count("weights                         equal") == 2
    code, text = verify(run, "--step", "2")
    assert code == 0
    assert "Within 1e-05, because of ranks" in text
    assert "selection are equal" in text


def test_sixteen_bits_are_exact_too(case: Case) -> None:
    case.train_forked("verified_in_bf16", *OVERRIDES, "model.precision=bf16")
    code, text = verify(str(case.run_dir("verified_in_bf16")), "--step", "1..3")
    assert code == 0
    assert "Exact" in text
    assert "DIFFER" not in text


def test_a_metric_of_the_users_is_measured_afterwards(copied: Path, tmp_path: Path) -> None:
    """The loop's own loss and entropy, computed by a function from the step's result."""
    (tmp_path / "mine.py").write_text("def entropy(step, policy):\n    return [s for s in step.statistics]\n")
    code, text = verify(str(copied), "--step", "2..3", "--metric", f"{tmp_path}/mine.py:entropy")
    assert code == 0
    assert "wrote 2 step(s)" in text
    measured = {
        line["step"]: line
        for line in map(json.loads, (copied / "remeasured" / "entropy.jsonl").read_text().splitlines())
    }
    recorded = {record["step"]: record for record in read_metrics(copied / "metrics.jsonl")}
    assert sorted(measured) == [2, 3]
    for step, line in measured.items():
        shared = [key for key in line if key.startswith("objective/")]
        assert len(shared) > 10
        assert {key: line[key] for key in shared} == {key: recorded[step][key] for key in shared}


def test_the_norms_of_the_gradients_are_measured_without_an_update(copied: Path) -> None:
    """The KL term has no gradient before the first update of a stage, and the step is the same as without asking."""
    metric = str(ROOT / "examples" / "my_metrics.py")
    code, _ = verify(str(copied), "--step", "1..2", "--metric", f"{metric}:gradient_norms")
    assert code == 0
    lines = (copied / "remeasured" / "gradient_norms.jsonl").read_text().splitlines()
    recorded = {record["step"]: record for record in read_metrics(copied / "metrics.jsonl")}
    for line in map(json.loads, lines):
        norm = recorded[line["step"]]["optimizer/grad_norm"]
        assert line["my/policy_gradient"] == pytest.approx(norm, rel=0.2), "the KL weight is small"
        assert 0 <= line["my/kl_gradient"] < 0.2 * norm
    assert len(lines) == 2


def test_a_stage_with_other_data_than_its_parent_is_equal_from_its_beginning(case: Case) -> None:
    """Its two files have the same weight, and are not in the order of their names."""
    for name in ("z", "a"):
        write_rows(case.folder / f"{name}.parquet", rows(name, 20))
    files = f"data.train=[{case.folder}/z.parquet,{case.folder}/a.parquet]"
    held_out = f"data.validation=[{case.folder}/held_out.parquet]"
    case.train_forked("verified_chain", "trainer.num_steps=1", "stage.name=one")
    child = ("stage.name=two", "stage.parent=one", files, held_out)
    case.train_forked("verified_chain", "trainer.num_steps=1", *child)
    code, text = verify(str(case.run_dir("verified_chain")))
    assert code == 0
    assert "from step 1 of stage one" in text
    assert "DIFFER" not in text
