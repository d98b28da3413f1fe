"""Tests of a fork's table and picture, on made-up folders of finished arms."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.questions.arms import Arm, ArmRun
from nemo_prorl.questions.table import as_json, cost_sentence, results_of, table_lines, unfinished
from nemo_prorl.run_folder.difficulty import write_prompts
from nemo_prorl.run_folder.markers import mark_done, mark_failed
from nemo_prorl.run_folder.metrics_file import append_metrics
from nemo_prorl.run_folder.storage import step_files
from tests.training.conftest import make_group

AT, END = 8, 12


def an_arm(
    out: Path, name: str, seed: int, scores: list[float], *, end: int = END, measurement: str = "m"
) -> ArmRun:
    """Writes a finished arm with these rewards of prompts p0, p1, ... after its last step."""
    run = ArmRun(arm=Arm(name=name), seed=seed, folder=out / f"{name}-{seed}", config=RunConfig())
    (run.folder / "stages").mkdir(parents=True)
    file = run.folder / "metrics.jsonl"
    for step in (0, AT):
        append_metrics(
            file, {"step": step, "stage": "main", "num_resets": 0, "validation/score": 0.25 + step / 100}
        )
    append_metrics(
        file, {"step": AT + 1, "stage": name, "reward/mean": 0.5, "objective/kl_to_reference": 9.0}
    )
    for step in (AT, end):
        groups = [make_group(f"p{n}#0", [score]) for n, score in enumerate(scores)] if step > AT else []
        write_prompts(run.folder, "validations", step, groups, name)
        record = {
            "validation/score": fmean(scores),
            "validation/response_tokens": 1000.0 + seed,
            "measurement": measurement,
        }
        trained = {"reward/mean": 0.5, "objective/kl_to_reference": seed / 100} if step > AT else {}
        append_metrics(
            file, {"step": step, "stage": name, "num_resets": int(name == "reset"), **record, **trained}
        )
    mark_done(run.folder, name, outcome="steps", checkpoint="")
    return run


def text_of(runs: list[ArmRun]) -> str:
    lines = [*table_lines(results_of(runs), runs)]
    assert max(len(line) for line in lines if line.startswith(" ")) <= 80
    return "\n".join(lines)


def test_a_row_has_the_means_over_seeds_and_the_difference_by_seed(tmp_path: Path) -> None:
    base = [an_arm(tmp_path, "nothing", seed, [0.5, 0.25 * seed]) for seed in (1, 2)]
    better = [an_arm(tmp_path, "better", seed, [0.75, 0.25 * seed + 0.25]) for seed in (1, 2)]
    unsure = [an_arm(tmp_path, "unsure", seed, [0.5, 0.5]) for seed in (1, 2)]
    runs = [*base, *better, *unsure]
    nothing, sure, equal = results_of(runs)
    assert nothing.gain is None
    assert sure.gain is not None
    assert equal.gain is not None
    assert (sure.gain.value, sure.gain.low, sure.gain.high) == (0.25, 0.25, 0.25)
    assert (sure.tokens, sure.kl, sure.steps) == (1001.5, pytest.approx(0.015), [END])
    assert equal.gain.value == pytest.approx(((0.5 - 0.375) + 0.0) / 2)
    text = text_of(runs)
    assert "held-out reward after step 12, mean over 2 prompts; seeds 1, 2" in text
    row = " ".join(text.splitlines()[3].split())
    assert row == "better 0.688 +0.250 +0.250 to +0.250 1,001.5 0.0150"
    assert "unsure: cannot tell: about " in text
    assert "better:" not in text
    assert "over seeds" in text
    parsed = json.loads(json.dumps(as_json(results_of(runs))))
    assert parsed[1]["rewards"]["2"] == {"p0": 0.75, "p1": 0.75}


def test_one_seed_says_what_its_interval_leaves_out(tmp_path: Path) -> None:
    text = text_of(
        [an_arm(tmp_path, name, 1, scores) for name, scores in (("a", [0.0, 1.0]), ("b", [1.0, 0.0]))]
    )
    assert "b: cannot tell; more seeds may." in text
    assert "without the luck of training" in text


def test_arms_with_the_same_rewards_are_called_equal(tmp_path: Path) -> None:
    text = text_of([an_arm(tmp_path, name, seed, [0.5]) for name in ("a", "b") for seed in (1, 2)])
    assert "b: every prompt's reward is that of the other arm with 2 seed(s)." in text


def test_a_failed_an_unfinished_and_an_early_arm_are_named_and_none_counts_as_done(tmp_path: Path) -> None:
    runs = [an_arm(tmp_path, "a", seed, [0.5]) for seed in (1, 2)]
    early = an_arm(tmp_path, "early", 1, [0.75], end=10)
    failed, left = (
        ArmRun(arm=Arm(name=name), seed=1, folder=tmp_path / f"{name}-1", config=RunConfig())
        for name in ("bad", "left")
    )
    mark_failed(failed.folder, "bad", reason="the loss is not finite.")
    text = text_of([*runs, early, failed, left])
    assert "bad, seed 1: failed. the loss is not finite." in text
    assert "early: only seed(s) 1; compared by those that both arms have." in text
    assert "early: ended after step 10." in text
    assert unfinished([*runs, failed, left]) == [left]


def test_validations_of_different_things_are_not_compared(tmp_path: Path) -> None:
    runs = [an_arm(tmp_path, "a", 1, [0.5]), an_arm(tmp_path, "b", 1, [0.5], measurement="other")]
    with pytest.raises(ConfigError, match="a and b measure different things"):
        results_of(runs)


def test_a_damaged_file_of_a_finished_arm_is_named(tmp_path: Path) -> None:
    runs = [an_arm(tmp_path, name, 1, [0.5]) for name in ("a", "b")]
    ((_, path),) = step_files(runs[1].folder, "validations").all()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match=f"{path} cannot be read .* or delete the folder of that run"):
        results_of(runs)
    (runs[0].folder / "metrics.jsonl").write_text("")
    with pytest.raises(
        ConfigError, match=r"a-1/metrics.jsonl has no validation of a: .* delete .*/a-1, to train"
    ):
        results_of(runs)


def test_the_cost_is_that_of_all_steps_of_all_runs() -> None:
    assert "36.0 s each) 24 min on 2 rank(s)" in cost_sentence(36.0, num_runs=1, num_steps=40, num_ranks=2)
    assert "36.0 s each) 2.0 h on 4 rank(s)" in cost_sentence(36.0, num_runs=5, num_steps=40, num_ranks=4)
