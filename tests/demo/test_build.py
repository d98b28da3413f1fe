"""Tests of the files that the demo and conf/laptop.yaml read."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_prorl.commands.parsing import composed
from nemo_prorl.data.rows import Row, RowFile
from nemo_prorl.demo import build, tasks

pytestmark = pytest.mark.medium
STAGES = range(len(build.LARGEST))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "tiny"
    build.build(folder)
    return folder


def rows(path: Path) -> list[Row]:
    return list(RowFile(path))


def test_the_prompts_are_always_the_same(built: Path) -> None:
    """Recorded results hold for these prompts: another version of Reasoning Gym may make others."""
    digest = hashlib.sha256()
    for path in (*build.train_files(built, 2), build.validation_file(built), build.measured_file(built)):
        for row in rows(path):
            digest.update(f"{row.uid} {row.messages[0]['content']} {row.task['entry']['answer']}\n".encode())
    assert digest.hexdigest() == "3cdb48715238099da49c0f221669374546dff4663f24e1594a093b88b77d69bd"


def test_nothing_held_out_is_trained_on_and_no_training_prompt_comes_twice(built: Path) -> None:
    train = [row.messages[0]["content"] for path in build.train_files(built, 2) for row in rows(path)]
    measured = [row.messages[0]["content"] for row in rows(build.measured_file(built))]
    assert len(set(train)) == len(train)
    assert not {*train} & {*measured}
    validation = [row.messages[0]["content"] for row in rows(build.validation_file(built))]
    assert set(validation) <= set(measured)


def test_every_level_of_rl_is_in_one_file_and_validated(built: Path) -> None:
    trained = {(name, size) for name, task in tasks.TASKS.items() for size in task.trained}
    found = list[tasks.Level]()
    for path, weight in build.train_files(built, 2).items():
        levels = {tasks.level_of(row.source) for row in rows(path)}
        assert len(levels) == weight
        found += levels
    assert sorted(found) == sorted(trained)
    assert {tasks.level_of(row.source) for row in rows(build.validation_file(built))} == trained
    assert list(build.train_files(built, 0)) == list(build.train_files(built, 2))[:1]


def test_stages_grow_and_the_last_has_all_sizes_of_rl() -> None:
    for before, after in zip(build.LARGEST, build.LARGEST[1:], strict=False):
        assert all(before[name] < after[name] for name in before)
    largest = {name: max(task.trained) for name, task in tasks.TASKS.items() if task.trained}
    assert build.LARGEST[-1] == largest
    for task in tasks.TASKS.values():
        assert not task.trained or max(task.measured) > max(task.trained), "sizes that RL never sees"


def test_the_policy_is_the_shipped_one(built: Path) -> None:
    policy = build.policy_folder(built)
    assert {file.name: file.read_bytes() for file in policy.iterdir()} == {
        file.name: file.read_bytes() for file in build.BASE_POLICY.iterdir()
    }


def test_a_build_counts_as_long_as_its_code_is_the_same(built: Path, tmp_path: Path) -> None:
    assert build.is_built(built)
    assert not build.is_built(tmp_path)
    (tmp_path / "built_by").write_text("older code")
    assert not build.is_built(tmp_path)


def test_the_configurations_read_what_is_built() -> None:
    for name, number in (("demo1", 0), ("demo2", 2)):
        config = composed("laptop", [f"stage={name}"])
        files = build.train_files(build.BASE, number)
        assert config.data.train == {str(path): weight for path, weight in files.items()}
        assert config.data.validation == [str(build.validation_file(build.BASE))]
        assert config.model.path == str(build.policy_folder(build.BASE))
    assert composed("train", ["suite=smoke"]).evaluation.data_dir == str(
        build.measured_file(build.BASE).parent
    )


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / build.BASE / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    command = [sys.executable, "-m", "nemo_prorl.demo.build"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, list(mine.parent.iterdir())) == (1, [mine])
    assert "was not written by this command" in done.stderr
