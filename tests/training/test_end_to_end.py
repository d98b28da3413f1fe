"""`python -m nemo_prorl train` on the real engines and the real reward service, with a tiny random policy and two
steps.

The run is repeated on two ranks and resumed on four; a second stage continues it with a reset; the result is exported.
All assertions read the files that the runs leave.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.storage import write_manifest
from nemo_prorl.run_folder.validation_metrics import MEASUREMENT
from tests.training.tiny import ROOT, Case, assert_close, run_forked, saved_tensors, steps, timeless

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(case: Case) -> Path:
    """The run in one process, uninterrupted."""
    case.train_forked("alone")
    return case.run_dir("alone")


@pytest.fixture(scope="module")
def continued(case: Case, alone: Path) -> Path:
    """A stage that continues the run for one step of one update, after a reset, from the policy of the first step,
    which is declared the best."""
    folder = case.run_dir("continued")
    shutil.copytree(alone, folder)
    declare_best(folder / "checkpoints" / "step-00000001-main")
    case.train_forked("continued", *CONTINUED)
    return folder


CONTINUED = (
    "stage.name=second",
    "stage.parent=main",
    "stage.start_from=best",
    "trainer.num_steps=1",
    "trainer.updates_per_step=1",
    "validation.interval=1",
    "controller.reset_to=best",
)


def declare_best(checkpoint: Path) -> None:
    """Gives the checkpoint the highest score, because which of two tiny policies is better is not known beforehand."""
    file = checkpoint / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"score": 9.0}))
    write_manifest(checkpoint, {})


def parts_of(checkpoint: Path, scratch: Path) -> dict[str, dict[str, Any]]:
    """Groups tensors into "weights", "reference", and the optimizer's "exp_avg" and "exp_avg_sq"."""
    parts: dict[str, dict[str, Any]] = {
        "reference.": {}, "optimizer.exp_avg.": {}, "optimizer.exp_avg_sq.": {}, "": {},
    }  # fmt: skip
    for name, tensor in saved_tensors(checkpoint / "policy", scratch).items():
        key = name.removeprefix("/")
        prefix = next(prefix for prefix in parts if key.startswith(prefix))
        parts[prefix][key.removeprefix(prefix)] = tensor
    return {(prefix or "weights.").removeprefix("optimizer.")[:-1]: part for prefix, part in parts.items()}


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(bool((left[name] == right[name]).all()) for name in left)


# One process


def test_a_run_leaves_what_it_promises(alone: Path) -> None:
    assert [record["step"] for record in steps(alone)] == [1, 2]
    first, *_, last = read_metrics(alone / "metrics.jsonl")
    assert (first["step"], "validation/score" in first) == (0, True)
    assert "validation/score" in last
    assert [checkpoint.state.step for checkpoint in find_checkpoints(alone)] == [1, 2]
    assert json.loads((alone / "stages" / "main.done").read_text()) == {
        "outcome": "steps",
        "checkpoint": "step-00000002-main",
    }
    assert (alone / "resolved.yaml").is_file()


def test_a_run_says_first_what_it_computes_with(alone: Path) -> None:
    facts = json.loads((alone / "engines.json").read_text())
    assert (facts["layers"], facts["sequences"], facts["precision"]) == (
        "Megatron's own",
        "padded",
        "float32",
    )
    assert (facts["sampler's head"], facts["model runner"], facts["scheduling"]) == (
        "float32",
        "V1",
        "synchronous",
    )
    assert facts["device"].startswith("CPU")
    places = 32 * 2**20 // (2 * 4 * 2 * 32 * 4)  # keys and values of four layers, two heads of 32, fp32
    assert facts["KV cache"] == f"{places // 32 * 32:,} tokens"
    (line,) = [line for line in (alone / "run.log").read_text().splitlines() if " in use: " in line]
    assert all(f"{name}: {value}" in line for name, value in facts.items())


def test_the_policy_is_trained_on_real_verdicts(alone: Path) -> None:
    for record in steps(alone):
        assert 0.0 < record["reward/mean"] < 1.0
        assert record["dynamic_sampling/num_kept"] == 8
        assert record["dynamic_sampling/num_failed_rollouts"] == 0
        assert record["optimizer/grad_norm"] > 0
        assert all(math.isfinite(value) for value in timeless(record).values() if isinstance(value, float))
    assert steps(alone)[-1]["optimizer/num_updates"] == 4


def test_sampler_and_trainer_agree_at_every_step(alone: Path, continued: Path) -> None:
    for record in [*steps(alone), *steps(continued, "second")]:
        assert 0 <= record["sampler/logprob_abs_diff_max"] < 1e-4
        assert 0 <= record["sampler/canary_abs_diff_max"] < 1e-4
        assert record["sampler/num_wrong_tensors"] == 0


def test_the_policy_moves_away_from_its_reference(alone: Path) -> None:
    """From the second update of the first step on. Another test checks that a stage starts with both equal."""
    assert all(record["objective/kl_to_reference"] > 1e-3 for record in steps(alone))


# Other layouts


def test_replicas_take_the_same_steps(case: Case, alone: Path) -> None:
    """The same seeds give the same rollouts on any engine, and the same updates on any rank."""
    less = ["exp_manager.create_checkpoint_callback=false", "validation.max_prompts=1"]
    case.train("data_parallel", *less, num_ranks=2)
    for actual, expected in zip(steps(case.run_dir("data_parallel")), steps(alone), strict=True):
        for record in (actual, expected):
            for key in [key for key in record if key.startswith("validation/") or key == MEASUREMENT]:
                del record[key]
        assert_close(actual, expected, 1e-4)
    for _ in range(2):  # all ranks end without an error, which most of three starts did not
        assert "main is already done" in " ".join(case.train("data_parallel", *less, num_ranks=2).split())


def test_a_run_goes_on_in_another_layout(case: Case, alone: Path, tmp_path: Path) -> None:
    """One rank does the first step, and four in tensor and pipeline parallel do the second, with the result of one
    rank.

    Sums in another order differ in the last bits, and a token whose probability is that close to its random number
    would change. So the test compares rollouts first: these happen to be equal, so everything else must be, too.
    """
    folder = case.run_dir("other_layout")
    shutil.copytree(alone, folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000002-main")
    (folder / "stages" / "main.done").unlink()
    layout = ["trainer.tensor_parallel=2", "trainer.pipeline_parallel=2"]
    case.train_forked("other_layout", *layout, num_ranks=4)
    before, after = steps(folder)
    assert before == steps(alone)[0]
    expected = steps(alone)[1]
    sampled = ("reward/", "response/", "dynamic_sampling/")
    assert {k: v for k, v in after.items() if k.startswith(sampled)} == {
        k: v for k, v in expected.items() if k.startswith(sampled)
    }
    assert_close(after, expected, 1e-5)
    ends = [saved_tensors(find_checkpoints(run)[-1].policy, tmp_path) for run in (folder, alone)]
    assert ends[0].keys() == ends[1].keys()
    worst = {name: float((ends[0][name] - value).abs().max()) for name, value in ends[1].items()}
    assert max(worst.values()) <= 1e-5, worst


# The next stage


def test_a_stage_with_a_reset_begins_at_a_kl_of_0(alone: Path, continued: Path) -> None:
    (record,) = steps(continued, "second")
    assert (record["step"], record["num_resets"]) == (3, 1)
    assert record["objective/kl_to_reference"] == 0.0 < 1e-9 < steps(alone)[-1]["objective/kl_to_reference"]
    begins = next(r for r in read_metrics(continued / "metrics.jsonl") if r["stage"] == "second")
    assert (begins["step"], begins["num_resets"]) == (2, 1)
    last = find_checkpoints(continued)[-1].state
    assert (last.stage, last.step, last.stage_step, last.num_updates) == ("second", 3, 1, 5)
    assert (last.num_resets, last.last_reset_step) == (1, 2)


def test_a_stage_leaves_its_parents_work_as_it_was(alone: Path, continued: Path) -> None:
    assert steps(continued) == steps(alone)
    assert [(c.state.stage, c.state.step) for c in find_checkpoints(continued)] == [
        ("main", 1),
        ("main", 2),
        ("second", 2),
        ("second", 3),
    ]


def test_a_stage_begins_with_its_parents_best_behind_its_parents_last_step(
    continued: Path, tmp_path: Path
) -> None:
    begins = next(r for r in read_metrics(continued / "metrics.jsonl") if r["stage"] == "second")
    assert (begins["step"], begins["went_back_to_step"]) == (2, 1)
    best, last, start = (
        parts_of(continued / "checkpoints" / name, tmp_path)
        for name in ("step-00000001-main", "step-00000002-main", "step-00000002-second")
    )
    assert same(start["weights"], best["weights"])
    assert not same(start["weights"], last["weights"])
    assert same(start["reference"], start["weights"])
    states = {checkpoint.path.name: checkpoint.state for checkpoint in find_checkpoints(continued)}
    assert states["step-00000002-second"].prompts == states["step-00000002-main"].prompts
    assert states["step-00000002-second"].num_updates == states["step-00000002-main"].num_updates == 4


def test_a_reset_goes_back_to_the_best_with_its_moments(case: Case, continued: Path, tmp_path: Path) -> None:
    """The stage's start is declared the best. Its moments are 0, because the stage began with a reset, and this reset
    does not clear them. In the step after the reset, sampler and trainer agree."""
    folder = case.run_dir("gone_back")
    shutil.copytree(continued, folder)
    (folder / "stages" / "second.done").unlink()
    declare_best(folder / "checkpoints" / "step-00000002-second")
    again = ("controller.mode=interval", "controller.interval=2", "controller.reset_optimizer=false")
    case.train_forked("gone_back", *CONTINUED, "trainer.num_steps=3", *again)
    _, reset, after = steps(folder, "second")
    assert (reset["step"], reset["went_back_to_step"], reset["controller"]["signal"]) == (4, 2, "interval")
    assert after["objective/kl_at_sampling"] == 0.0
    assert after["sampler/logprob_abs_diff_max"] < 1e-4
    assert after["optimizer/num_updates"] == 7
    best, end = (parts_of(folder / "checkpoints" / f"step-0000000{step}-second", tmp_path) for step in (2, 4))
    for part in ("weights", "reference", "exp_avg", "exp_avg_sq"):
        assert same(end[part], best[part]), part
    assert same(end["reference"], end["weights"])


def test_a_finished_stage_is_not_run_again(case: Case, continued: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in continued.rglob("*")}
    assert "already done" in case.train_forked("continued", *CONTINUED)
    assert {path: path.stat().st_mtime_ns for path in continued.rglob("*")} == before


# The export


def test_the_export_is_the_policy_that_was_trained(case: Case, continued: Path) -> None:
    """Log-probabilities of transformers equal those of the Megatron policy from the checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    last = find_checkpoints(continued)[-1].path
    run_forked(["export", str(last), str(case.folder / "hf")])
    exported = AutoModelForCausalLM.from_pretrained(case.folder / "hf", dtype=torch.float32)
    before = AutoModelForCausalLM.from_pretrained(case.folder / "policy", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(case.folder / "hf")
    assert tokenizer.chat_template
    token_ids = tokenizer.encode("use a h i #3 and go on", add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        logits, old_logits = exported(token_ids).logits[0], before(token_ids).logits[0]
    trained = trained_logprobs(case, last / "policy", token_ids)
    expected = torch.log_softmax(logits[:-1] / 1.2, dim=-1).gather(-1, token_ids[0, 1:, None])[:, 0]
    assert torch.allclose(trained, expected, atol=1e-5)
    assert not torch.allclose(logits, old_logits, atol=1e-3)


def trained_logprobs(case: Case, checkpoint: Path, token_ids: Any) -> Any:
    """Returns log-probabilities [T - 1] of the tokens [1, T] but the first, of the Megatron policy at temperature
    1.2."""
    import torch

    from nemo_prorl.config.compose import compose
    from nemo_prorl.distributed import initialise
    from nemo_prorl.engines.megatron.policy import MegatronPolicy
    from nemo_prorl.types import TokenBatch

    config = compose(str(case.folder / "tiny.yaml"), [], conf_dir=ROOT / "conf")
    policy = MegatronPolicy(config, initialise(1, 1))
    policy.load(checkpoint)
    tokens = token_ids.numpy()
    mask = np.ones(tokens.shape, dtype=bool)
    mask[:, 0] = False
    lengths = np.array([tokens.shape[1]])
    batch = TokenBatch(token_ids_BT=tokens, response_mask_BT=mask, lengths_B=lengths)
    return torch.from_numpy(policy.logprobs(batch)[0, 1:])
