"""The difficulty of prompts is recorded by step, with the same result whether or not the run was interrupted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.difficulty import difficulty_files, read_difficulty, summary, write_difficulty
from tests.training.conftest import FAILED, make_group
from tests.training.scripted_run import Run


def write(folder: Path, steps: range, *, uid: str = "a", scores: tuple[float, ...] = (1.0, 0.0)) -> None:
    difficulty_files(folder).take_back(steps.start - 1)
    for step in steps:
        write_difficulty(folder, step, [make_group(f"{uid}#{step}", list(scores))])


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


def test_a_resumed_run_leaves_the_record_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    write(tmp_path / "whole", range(1, 7), scores=(1.0, 1.0, 0.0))
    write(tmp_path / "resumed", range(1, 6), uid="lost")  # killed after step 5, checkpoint at step 0
    write(tmp_path / "resumed", range(1, 7), scores=(1.0, 1.0, 0.0))
    assert rows(tmp_path / "resumed").equals(rows(tmp_path / "whole"))


def test_what_lies_beyond_the_checkpoint_is_taken_back_at_once(tmp_path: Path) -> None:
    write(tmp_path, range(1, 6))
    difficulty_files(tmp_path).take_back(3)
    assert rows(tmp_path)["step"].to_pylist() == [1, 2, 3]


def test_prompts_without_a_verdict_leave_no_row(tmp_path: Path) -> None:
    write_difficulty(tmp_path, 1, [make_group("a#0", FAILED)])
    with pytest.raises(ConfigError, match="difficulty"):
        rows(tmp_path)


def test_the_summary_compares_first_and_last_visits(tmp_path: Path) -> None:
    first = [make_group("a#0", [0.0, 0.0]), make_group("b#0", [1.0, 1.0]), make_group("c#0", [0.0, 0.0])]
    write_difficulty(tmp_path, 1, first)
    write_difficulty(tmp_path, 2, [make_group("a#1", [1.0, 0.0]), make_group("b#1", [1.0, 1.0])])
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


def test_the_loop_keeps_every_prompt_and_a_resumed_run_keeps_the_same(tmp_path: Path) -> None:
    whole, first = Run(tmp_path / "whole", num_steps=4), Run(tmp_path / "parts", num_steps=2)
    whole.fit()
    first.fit()
    second = first.resume(num_steps=4)
    second.fit()
    kept = rows(tmp_path / "whole")
    assert kept.equals(rows(tmp_path / "parts"))
    assert sorted(set(kept["step"].to_pylist())) == [1, 2, 3, 4]
    sampled = [record["dynamic_sampling/num_prompts"] for record in whole.records if record["step"]]
    assert len(kept) == sum(sampled)
    assert all(
        r["data/math/num_prompts"] == r["dynamic_sampling/num_prompts"] for r in whole.records if r["step"]
    )


def test_a_torn_file_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    torn = difficulty_files(tmp_path).path(2)
    torn.write_bytes(torn.read_bytes()[:-9])
    found, damaged = read_difficulty(tmp_path)
    assert (found["step"].to_pylist(), damaged) == ([1, 3], [torn.name])
    for _, path in difficulty_files(tmp_path).all():
        path.write_bytes(b"")
    found, damaged = read_difficulty(tmp_path)
    assert (found.num_rows, len(damaged)) == (0, 3)
