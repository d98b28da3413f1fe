"""The result of every held-out prompt is kept, with the same files whether or not the run was interrupted."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from nemo_prorl.run_folder.validations import read_rewards, validation_files, write_validation
from tests.training.conftest import MIXED, RIGHT, make_group, make_prompt
from tests.training.scripted_run import Run


def test_a_prompt_has_the_mean_of_its_graded_rollouts_and_one_without_has_no_row(tmp_path: Path) -> None:
    groups = [make_group("a#0", [1.0, 0.5, None]), make_group("b#0", [None]), make_group("c#0", [0.0, 0.0])]
    write_validation(tmp_path, "main", 3, groups)
    assert read_rewards(tmp_path, "main", 3) == {"a": 0.75, "c": 0.0}


def test_stages_keep_their_own_validation_of_the_step_between_them(tmp_path: Path) -> None:
    for stage, score in (("first", 0.0), ("second", 1.0)):
        write_validation(tmp_path, stage, 2, [make_group("a#0", [score])])
    assert [read_rewards(tmp_path, stage, 2)["a"] for stage in ("first", "second")] == [0.0, 1.0]
    with pytest.raises(FileNotFoundError):
        read_rewards(tmp_path, "first", 1)


def test_the_loop_keeps_every_validation_and_their_mean_is_the_recorded_one(tmp_path: Path) -> None:
    held_out = [make_prompt("u", MIXED), make_prompt("v", RIGHT, domain="code"), make_prompt("w", MIXED)]
    whole, first = (
        Run(tmp_path / name, num_steps=steps, interval=1) for name, steps in (("whole", 4), ("parts", 2))
    )
    whole.held_out = first.held_out = held_out
    whole.fit()
    first.fit()
    lost = validation_files(first.folder).path(99, "main")  # it had gone on after its last checkpoint
    lost.write_bytes(b"")
    second = first.resume(num_steps=4)
    second.held_out = held_out
    second.fit()
    kept = [
        {path.name: path.read_bytes() for _, path in validation_files(run.folder).all()}
        for run in (whole, first)
    ]
    assert len(kept[0]) == 5
    assert kept[0] == kept[1]
    for record in whole.records:
        rewards = read_rewards(whole.folder, "main", record["step"])
        assert fmean(rewards.values()) == record["validation/score"]
