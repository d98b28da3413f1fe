"""How prompts fared is recorded by step and by validation, with the same files whether a run was interrupted or not."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.difficulty import (
    BANDS,
    BEFORE,
    NOW,
    difficulty_metrics,
    read_difficulty,
    read_rewards,
    summary,
    write_prompts,
)
from nemo_prorl.run_folder.storage import step_files
from tests.training.conftest import FAILED, MIXED, RIGHT, make_group, make_prompt
from tests.training.scripted_run import Run


def write(folder: Path, parts: dict[int, dict[str, list[float]]]) -> None:
    """parts: step -> prompt -> scores of its rollouts."""
    for step, scores in parts.items():
        write_prompts(
            folder, "difficulty", step, [make_group(f"{uid}#{step}", of) for uid, of in scores.items()]
        )


def test_a_row_is_a_prompt_of_a_step_with_its_scores_before_shaping(tmp_path: Path) -> None:
    groups = [make_group("sums/a#b#2", [1.0, 0.5, 0.0, 0.0]), make_group("p#0", [0.9, None], domain="code")]
    write_prompts(tmp_path, "difficulty", 1, groups)
    assert read_difficulty(tmp_path).to_dict("records") == [
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
    write_prompts(tmp_path, "difficulty", 1, [make_group("a#0", FAILED)])
    with pytest.raises(ConfigError, match="difficulty"):
        read_difficulty(tmp_path)
    assert difficulty_metrics(tmp_path) == {}


def test_the_summary_compares_first_and_last_visits(tmp_path: Path) -> None:
    write(tmp_path, {1: {"a": [0, 0], "b": [1, 1], "c": [0, 0]}, 2: {"a": [1, 0], "b": [1, 1]}})
    write_prompts(tmp_path, "difficulty", 3, [make_group("d#0", [1.0, 0.0], domain="code")])
    fared = summary(read_difficulty(tmp_path))
    assert list(fared) == ["code", "math", "all"]
    assert (fared["code"]["prompts"], fared["code"]["visits"]) == (1, 1)
    third = pytest.approx(1 / 3)
    last = pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert fared["math"] == {
        "prompts": 3, "visits": 5, "first": third, "last": last, "never": third, "always": third,
    }  # fmt: skip
    assert fared["all"]["prompts"] == 4


def test_a_torn_file_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {step: {"a": [1, 0]} for step in (1, 2, 3)})
    torn = step_files(tmp_path, "difficulty").path(2)
    torn.write_bytes(torn.read_bytes()[:-9])
    assert read_difficulty(tmp_path)["step"].tolist() == [1, 3]
    assert f"skipped {torn}, which cannot be read: " in capsys.readouterr().err
    for _, path in step_files(tmp_path, "difficulty").all():
        path.write_bytes(b"")
    assert difficulty_metrics(tmp_path) == {}


def test_prompts_are_counted_by_the_share_of_their_rollouts_that_passed(tmp_path: Path) -> None:
    shares = (0, 1, 2, 3, 4, 4)
    write(tmp_path, {3: {f"p{number}": [1.0] * n + [0.0] * (4 - n) for number, n in enumerate(shares)}})
    (metrics,) = difficulty_metrics(tmp_path).values()
    assert [metrics[name] for name in BANDS] == [1, 1, 2, 0, 2]


def test_a_prompt_is_compared_with_its_own_last_visit(tmp_path: Path) -> None:
    write(
        tmp_path,
        {1: {"a": [1, 0], "b": [0, 0]}, 2: {"c": [1, 1]}, 3: {"b": [1, 0]}, 4: {"a": [1, 1], "b": [1, 1]}},
    )
    metrics = difficulty_metrics(tmp_path)
    found = {step: (of[BEFORE], of[NOW]) for step, of in metrics.items() if NOW in of}
    assert found == {3: (0.0, 0.5), 4: (0.5, 1.0)}


def test_stages_keep_their_own_validation_of_the_step_between_them(tmp_path: Path) -> None:
    for stage, score in (("first", 0.0), ("second", 1.0)):
        groups = [make_group("a#0", [score, score, None]), make_group("b#0", [None])]
        write_prompts(tmp_path, "validations", 2, groups, stage)
    assert [read_rewards(tmp_path, stage, 2) for stage in ("first", "second")] == [{"a": 0.0}, {"a": 1.0}]
    with pytest.raises(ConfigError, match=r"step-00000001-first\.parquet cannot be read"):
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
    kinds = ("validations", "samples", "difficulty")
    lost = [step_files(first.folder, name).path(99, "main") for name in kinds]
    for path in lost:  # it had gone on after its last checkpoint
        path.write_bytes(b"")
    second = first.resume(num_steps=4)
    second.held_out = held_out
    second.fit()
    for name in kinds:
        kept = [
            {path.name: path.read_bytes() for _, path in step_files(run.folder, name).all()}
            for run in (whole, first)
        ]
        assert (len(kept[0]), kept[0]) == (4 if name == "difficulty" else 5, kept[1])
    for record in whole.records:
        rewards = read_rewards(whole.folder, "main", record["step"])
        assert fmean(rewards.values()) == record["validation/score"]
    sampled = read_difficulty(whole.folder)
    assert sorted(set(sampled["step"].tolist())) == [1, 2, 3, 4]
    steps = [record for record in whole.records if record["step"]]
    assert len(sampled) == sum(record["dynamic_sampling/num_prompts"] for record in steps)
    assert all(r["data/math/num_prompts"] == r["dynamic_sampling/num_prompts"] for r in steps)
