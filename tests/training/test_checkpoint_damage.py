"""Failing saves, damaged files and kills: complete checkpoints survive, and others are never loaded."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig, RunConfig, StageConfig
from nemo_prorl.run_folder import storage
from nemo_prorl.run_folder.checkpoints import REPLACED, find_checkpoints
from nemo_prorl.training.checkpoint import CheckpointNotSaved, is_intact, load_policy
from nemo_prorl.training.stages import find_intact_start, find_starting_point
from nemo_prorl.types import RunState
from tests.training.conftest import SINGLE, ScriptedPolicy, folders, found, save, writer
from tests.training.thread_ranks import ThreadRanks, run_as_ranks

# Failing saves


def full(*arguments: Any, **options: Any) -> Any:
    raise OSError(28, "No space left on device")


@dataclass
class FailingSave:
    directory: Path
    where: str

    def write(self) -> list[Path]:
        file = self.directory / "shard_0"
        file.write_bytes(b"half of i")
        if self.where == "write":
            try:
                full()
            except OSError as error:  # as torch does
                raise RuntimeError("PytorchStreamWriter failed writing file data/0") from error
        return [file]

    def finish(self) -> None:
        if self.where == "finish":
            full()


@dataclass
class FailingPolicy(ScriptedPolicy):
    where: str = ""

    def begin_save(self, directory: Path) -> Any:
        return FailingSave(directory, self.where)


WHERE: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "write": lambda patch: None,
    "finish": lambda patch: None,
    "folder": lambda patch: patch.setattr(Path, "mkdir", full),
    "model": lambda patch: patch.setattr(storage, "copy_model_files", full),
    "state": lambda patch: patch.setattr(storage, "write_text", full),
    "manifest": lambda patch: patch.setattr(storage, "write_manifest", full),
    "rename": lambda patch: patch.setattr(os, "replace", full),
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("where", WHERE)
def test_a_full_disk_is_one_sentence_and_leaves_the_previous_checkpoint(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, where: str, asynchronous: bool
) -> None:
    save(tmp_path, 1, keep=1)
    saving = writer(tmp_path, keep=1, asynchronous=asynchronous)

    def save_all() -> None:
        saving.save(FailingPolicy(where=where), RunState(stage="main", step=2))
        saving.finish()

    with monkeypatch.context() as patch:
        WHERE[where](patch)
        with pytest.raises(CheckpointNotSaved) as caught:
            save_all()
    sentence = str(caught.value)
    assert "step-00000002-main could not be saved" in sentence
    assert "No space left on device" in sentence
    assert "step-00000001-main is whole" in sentence
    assert found(tmp_path) == [("main", 1)]
    assert folders(tmp_path) == ["step-00000001-main"], "nothing half-written takes up the space"
    save(tmp_path, 2, keep=1)
    assert found(tmp_path) == [("main", 2)]


def test_what_fails_on_one_rank_fails_on_all(tmp_path: Path, model_dir: Path) -> None:
    def save_on(ranks: ThreadRanks) -> str:
        where = "write" if ranks.layout.rank == 2 else ""
        with pytest.raises(CheckpointNotSaved) as caught:
            writer(tmp_path, ranks=ranks).save(FailingPolicy(where=where), RunState(stage="main", step=1))
        return str(caught.value)

    sentences = run_as_ranks(save_on, 4, 2, 1)
    assert all("No space left" in text and "there is none before it" in text for text in sentences)
    assert folders(tmp_path) == []


def test_a_failed_save_says_that_no_checkpoint_before_it_is_whole(tmp_path: Path, model_dir: Path) -> None:
    save(tmp_path, 1)
    state_file = next((tmp_path / "run/checkpoints").glob("step-*/state.json"))
    state_file.write_text("{")
    with pytest.raises(CheckpointNotSaved, match=r"No space left on device; no checkpoint in .* is whole"):
        writer(tmp_path).save(FailingPolicy(where="write"), RunState(stage="main", step=2))


@pytest.mark.parametrize("where", ["write", "rename", "removal"])
def test_a_crash_while_saving_the_same_step_again_leaves_one_whole_checkpoint(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A stage that ends as saturated saves the step of its last checkpoint again."""
    save(tmp_path, 3, num_updates=1)
    rename, remove_all = os.replace, shutil.rmtree

    def crash_at_the_last(source: Any, target: Any) -> None:
        if ".writing" in str(source):
            full()
        rename(source, target)

    def crash_after_renaming(folder: Path, **options: Any) -> None:
        if ".removing" in str(folder):
            full()
        remove_all(folder, **options)

    with monkeypatch.context() as patch:
        if where == "rename":
            patch.setattr(os, "replace", crash_at_the_last)
        if where == "removal":
            patch.setattr(shutil, "rmtree", crash_after_renaming)
        with pytest.raises(CheckpointNotSaved):
            save(tmp_path, 3, num_updates=2, policy=FailingPolicy(where=where))
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    assert checkpoint.state.num_updates == (2 if where == "removal" else 1)
    save(tmp_path, 3, num_updates=3)
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    assert checkpoint.state.num_updates == 3
    assert folders(tmp_path) == ["step-00000003-main"]


def test_a_kill_between_the_two_renames_loses_no_checkpoint(tmp_path: Path, model_dir: Path) -> None:
    path = save(tmp_path, 3)
    path.rename(path.with_name(path.name + REPLACED))
    writer(tmp_path)
    assert found(tmp_path) == [("main", 3)]


# Damage


def cut(path: Path) -> None:
    with (path / "policy" / "weights.json").open("r+b") as file:
        file.truncate(5)


def flip(path: Path) -> None:
    file = path / "policy" / "weights.json"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)


TORN: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut file": (cut, r"policy/weights.json has 5 bytes instead of \d+"),
    "no file": (
        lambda path: (path / "huggingface" / "config.json").unlink(),
        "huggingface/config.json is missing",
    ),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "it has no manifest.json"),
    "cut manifest": (
        lambda path: (path / "manifest.json").write_text('{"files": {"a'),
        "manifest.json cannot be read",
    ),
    "other manifest": (
        lambda path: (path / "manifest.json").write_text("[1]"),
        "manifest.json cannot be read",
    ),
}


@pytest.mark.parametrize("damage", TORN)
def test_a_torn_checkpoint_is_skipped_with_a_line(
    tmp_path: Path, model_dir: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    tear, reason = TORN[damage]
    tear(path)
    assert found(tmp_path) == [("main", 1)]
    assert found(tmp_path) == [("main", 1)]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"skipped {path}, which is not whole: ")
    assert re.search(reason, line)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000001-main")
    with pytest.raises(
        ConfigError, match=rf"no checkpoint in .* is whole: step-00000002-main \({reason}.*\); bring back"
    ):
        find_checkpoints(tmp_path / "run")
    save_over = save(tmp_path, 2)
    assert save_over == path
    assert found(tmp_path) == [("main", 2)]


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_corrupt_checkpoint_is_noticed_before_it_is_loaded(
    tmp_path: Path, model_dir: Path, world_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    flip(path)
    older, newer = find_checkpoints(tmp_path / "run")  # by its sizes it is whole

    def verdicts(ranks: ThreadRanks) -> list[bool]:
        return [is_intact(newer, ranks), is_intact(older, ranks)]  # type: ignore[arg-type]

    assert run_as_ranks(verdicts, world_size, 1, 1) == [[False, True]] * world_size
    (line,) = capsys.readouterr().err.splitlines()
    assert f"skipped {path}, which is corrupt: policy/weights.json is not what was written" in line
    assert found(tmp_path) == [("main", 1)]
    shutil.rmtree(older.path)
    with pytest.raises(ConfigError, match=r"no checkpoint in .* is whole: corrupt-step-00000002-main"):
        find_checkpoints(tmp_path / "run")


def test_a_resumed_stage_begins_at_the_next_older_one(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest checkpoint lacks bytes, the next has changed content, the third is intact; then none is left."""
    config = RunConfig(
        stage=StageConfig(name="main"), exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path / "run"))
    )
    paths = [save(tmp_path, step, keep=3) for step in (1, 2, 3)]
    cut(paths[2])
    flip(paths[1])
    start = find_intact_start(config, find_starting_point(config), SINGLE)
    assert start.is_resume
    assert start.checkpoint is not None
    assert start.checkpoint.path == paths[0]
    assert len(capsys.readouterr().err.splitlines()) == 2
    flip(paths[0])
    start = find_starting_point(config)
    with pytest.raises(ConfigError, match=r"no checkpoint in .* is whole"):
        find_intact_start(config, start, SINGLE)


# Kills


def save_for_ever(folder: Path, tell: int) -> None:
    """Saves every step twice; the second checkpoint replaces the first."""
    start = max([checkpoint.state.step for checkpoint in find_checkpoints(folder / "run")], default=0)
    for step in itertools.count(start + 1):
        save(folder, step, num_updates=10 * step)
        save(folder, step, num_updates=10 * step + 1)
        os.write(tell, f"{step}\n".encode())


def kill_and_look(folder: Path, num_kills: int) -> None:
    """Kills saving processes. Runs in a process of its own, which forks them."""
    chance = random.Random(7)
    for _ in range(num_kills):
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            save_for_ever(folder, write_end)
        os.close(write_end)
        with os.fdopen(read_end) as lines:
            completed = [int(lines.readline()) for _ in range(chance.randint(0, 1))]
            time.sleep(chance.uniform(0.0, 0.2))
            os.kill(child, signal.SIGKILL)
            completed += [int(line) for line in lines]
        os.waitpid(child, 0)
        checkpoints = find_checkpoints(folder / "run")
        if completed:
            newest = checkpoints[-1].state
            assert newest.num_updates // 10 == newest.step
            assert newest.num_updates % 10 == 1 or newest.step == completed[-1] + 1
            assert newest.step in (completed[-1], completed[-1] + 1)
        for checkpoint in checkpoints:
            loaded = ScriptedPolicy()
            load_policy(loaded, checkpoint)
            assert loaded.weight == checkpoint.state.step
            assert not storage.changed_content(checkpoint.path)


@pytest.mark.slow
def test_a_kill_at_any_instant_leaves_the_newest_that_was_complete(tmp_path: Path, model_dir: Path) -> None:
    """The kills hit first saves, repeated saves of a step, deletions of old checkpoints, and the clean-up after earlier
    kills."""
    call = f"kill_and_look(Path({str(tmp_path)!r}), 20)"
    script = f"from pathlib import Path; from {__name__} import kill_and_look; {call}"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "skipped" not in done.stderr
