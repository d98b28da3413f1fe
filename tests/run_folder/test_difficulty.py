"""How prompts fared is recorded by step and by validation, with the same files whether a run was interrupted or not."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow as pa
import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.difficulty import (
    BANDS,
    BEFORE,
    NOW,
    difficulty_files,
    difficulty_metrics,
    read_difficulty,
    read_rewards,
    summary,
    validation_files,
    write_difficulty,
    write_validation,
)
from nemo_prorl.run_folder.samples import sample_files
from tests.training.conftest import FAILED, MIXED, RIGHT, make_group, make_prompt
from tests.training.scripted_run import Run


def write(folder: Path, parts: dict[int, dict[str, list[float]]]) -> None:
    """parts: step -> prompt -> scores of its rollouts."""
    for step, scores in parts.items():
        write_difficulty(folder, step, [make_group(f"{uid}#{step}", of) for uid, of in scores.items()])


def rows(folder: Path) -> pa.Table:
    found, damaged = read_difficulty(folder)
    assert damaged == []
    return found


def test_a_row_is_a_prompt_of_a_step_with_its_scores_before_shaping(tmp_path: Path) -> None:
    groups = [make_group("sums/a#b#2", [1.0, 0.5, 0.0, 0.0]), make_group("p#0", [0.9, None], domain="code")]
    write_difficulty(tmp_path, 1, groups)
    assert rows(tmp_path).to_pylist() == [
        {
            "step": 1, "uid": "sums/a#b", "epoch": 2, "domain": "math", "source": "script", "num_rollouts": 4,
            "reward_mean": 0.375, "pass_rate": 0.25,
        },
        {
            "step": 1, "uid": "p", "epoch": 0, "domain": "code", "source": "script", "num_rollouts": 1,
            "reward_mean": 0.9, "pass_rate": 0.0,
        },
    ]  # fmt: skip


def test_prompts_without_a_verdict_leave_no_row(tmp_path: Path) -> None:
    write_difficulty(tmp_path, 1, [make_group("a#0", FAILED)])
    with pytest.raises(ConfigError, match="difficulty"):
        rows(tmp_path)
    assert difficulty_metrics(tmp_path) == ({}, [])


def test_the_summary_compares_first_and_last_visits(tmp_path: Path) -> None:
    write(tmp_path, {1: {"a": [0, 0], "b": [1, 1], "c": [0, 0]}, 2: {"a": [1, 0], "b": [1, 1]}})
    write_difficulty(tmp_path, 3, [make_group("d#0", [1.0, 0.0], domain="code")])
    fared = summary(rows(tmp_path))
    assert list(fared) == ["code", "math", "all"]
    assert (fared["code"]["prompts"], fared["code"]["visits"]) == (1, 1)
    third = pytest.approx(1 / 3)
    last = pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert fared["math"] == {
        "prompts": 3, "visits": 5, "first": third, "last": last, "never": third, "always": third,
    }  # fmt: skip
    assert fared["all"]["prompts"] == 4


def test_a_torn_file_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path, {step: {"a": [1, 0]} for step in (1, 2, 3)})
    torn = difficulty_files(tmp_path).path(2)
    torn.write_bytes(torn.read_bytes()[:-9])
    found, damaged = read_difficulty(tmp_path)
    assert (found["step"].to_pylist(), damaged) == ([1, 3], [torn.name])
    for _, path in difficulty_files(tmp_path).all():
        path.write_bytes(b"")
    assert difficulty_metrics(tmp_path) == ({}, [f"step-0000000{step}.parquet" for step in (1, 2, 3)])


def test_prompts_are_counted_by_the_share_of_their_rollouts_that_passed(tmp_path: Path) -> None:
    shares = (0, 1, 2, 3, 4, 4)
    write(tmp_path, {3: {f"p{number}": [1.0] * n + [0.0] * (4 - n) for number, n in enumerate(shares)}})
    (metrics,) = difficulty_metrics(tmp_path)[0].values()
    assert [metrics[name] for name in BANDS] == [1, 1, 2, 0, 2]


def test_a_prompt_is_compared_with_its_own_last_visit(tmp_path: Path) -> None:
    """Agrees with a plain count."""
    rng = np.random.default_rng(1)
    parts = {
        step: {
            f"p{uid}": rng.integers(0, 2, 8).astype(float).tolist()
            for uid in rng.choice(30, 10, replace=False)
        }
        for step in range(1, 21)
    }
    write(tmp_path, parts)
    last: dict[str, float] = {}
    expected: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for step, prompts in parts.items():
        for uid, scores in prompts.items():
            if uid in last:
                expected[step].append((last[uid], fmean(scores)))
            last[uid] = fmean(scores)
    metrics, _ = difficulty_metrics(tmp_path)
    assert NOW not in metrics[1]
    for step, pairs in expected.items():
        before, now = np.mean(pairs, axis=0)
        assert (metrics[step][BEFORE], metrics[step][NOW]) == pytest.approx((before, now))


def test_stages_keep_their_own_validation_of_the_step_between_them(tmp_path: Path) -> None:
    for stage, score in (("first", 0.0), ("second", 1.0)):
        groups = [make_group("a#0", [score, score, None]), make_group("b#0", [None])]
        write_validation(tmp_path, stage, 2, groups)
    assert [read_rewards(tmp_path, stage, 2) for stage in ("first", "second")] == [{"a": 0.0}, {"a": 1.0}]
    with pytest.raises(FileNotFoundError):
        read_rewards(tmp_path, "first", 1)


def test_the_loop_keeps_every_prompt_and_a_resumed_run_leaves_the_same_files(tmp_path: Path) -> None:
    """Also the texts of validations."""
    held_out = [make_prompt("u", MIXED), make_prompt("v", RIGHT, domain="code"), make_prompt("w", MIXED)]
    whole, first = (
        Run(tmp_path / name, num_steps=steps, interval=1) for name, steps in (("whole", 4), ("parts", 2))
    )
    whole.held_out = first.held_out = held_out
    whole.fit()
    first.fit()
    kinds = (validation_files, sample_files, difficulty_files)
    lost = [files(first.folder).path(99, "main") for files in kinds]
    for path in lost:  # it had gone on after its last checkpoint
        path.write_bytes(b"")
    second = first.resume(num_steps=4)
    second.held_out = held_out
    second.fit()
    for files in kinds:
        kept = [
            {path.name: path.read_bytes() for _, path in files(run.folder).all()} for run in (whole, first)
        ]
        assert (len(kept[0]), kept[0]) == (4 if files is difficulty_files else 5, kept[1])
    for record in whole.records:
        rewards = read_rewards(whole.folder, "main", record["step"])
        assert fmean(rewards.values()) == record["validation/score"]
    sampled = rows(whole.folder)
    assert sorted(set(sampled["step"].to_pylist())) == [1, 2, 3, 4]
    steps = [record for record in whole.records if record["step"]]
    assert len(sampled) == sum(record["dynamic_sampling/num_prompts"] for record in steps)
    assert all(r["data/math/num_prompts"] == r["dynamic_sampling/num_prompts"] for r in steps)
