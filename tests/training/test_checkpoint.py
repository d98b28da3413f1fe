"""Checkpoints are whole or absent; old ones go when newer ones are whole; a later stage finds what it begins from."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import BestMode, CheckpointCallbackParams
from nemo_prorl.training.checkpoint import (
    CheckpointNotSaved,
    CheckpointWriter,
    find_checkpoints,
    last_of_stage,
)
from nemo_prorl.types import RunState
from tests.training.conftest import SINGLE, ScriptedPolicy, ThreadRanks, run_as_ranks


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in (
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
        "chat_template.jinja", "spiece.model", "model.safetensors", "model.safetensors.index.json",
        "pytorch_model.bin", "README.md",
    ):  # fmt: skip
        (folder / name).write_text(name)
    return folder


def writer(
    tmp_path: Path,
    *,
    keep: int = 2,
    best: int = 0,
    mode: str = "max",
    asynchronous: bool = False,
    ranks: Any = SINGLE,
) -> CheckpointWriter:
    return CheckpointWriter(
        tmp_path / "run",
        model_dir=tmp_path / "model",
        params=CheckpointCallbackParams(
            save_last_k=keep, save_top_k=best, mode=BestMode(mode), async_save=asynchronous
        ),
        ranks=ranks,
        provenance={"commit": "abc"},
    )


def save(
    tmp_path: Path, step: int, stage: str = "main", *, policy: Any = None, keep: int = 2, **state: Any
) -> Path:
    return writer(tmp_path, keep=keep).save(
        policy or ScriptedPolicy(weight=float(step)),
        RunState(stage=stage, step=step, stage_step=step, **state),
    )


def found(tmp_path: Path) -> list[tuple[str, int]]:
    return [(c.state.stage, c.state.step) for c in find_checkpoints(tmp_path / "run")]


def test_a_checkpoint_holds_state_policy_and_what_an_export_needs(tmp_path: Path, model_dir: Path) -> None:
    state = RunState(
        stage="main",
        step=40,
        stage_step=15,
        num_updates=160,
        num_resets=1,
        last_reset_step=25,
        prompts={"read": {"file": 7}},
        sampling_yield=0.25,
        entropy=0.5,
        entropy_coefficient=0.015,
        validation=[{"step": 20, "reward": 0.5}],
    )
    path = writer(tmp_path).save(ScriptedPolicy(weight=0.5, reference=0.25), state)
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    assert checkpoint.path == path
    assert checkpoint.state == state
    loaded = ScriptedPolicy()
    loaded.load(checkpoint.policy)
    assert (loaded.weight, loaded.reference) == (0.5, 0.25)
    assert json.loads((path / "state.json").read_text())["provenance"] == {"commit": "abc"}
    assert sorted(file.name for file in (path / "huggingface").iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "spiece.model", "tokenizer.json",
        "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip


def test_a_new_run_has_none(tmp_path: Path) -> None:
    assert find_checkpoints(tmp_path / "nowhere") == []


class Crashes(ScriptedPolicy):
    def save(self, directory: Path) -> None:
        (directory / "shard_0").write_bytes(b"half of i")
        raise OSError("no space left on device")


@pytest.mark.parametrize("where", ["policy", "state", "rename"])
def test_a_crash_while_saving_leaves_the_previous_checkpoints(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    save(tmp_path, 1, keep=1)

    def crash(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        if where == "state":
            patch.setattr(json, "dumps", crash)
        if where == "rename":
            patch.setattr(os, "replace", crash)
        with pytest.raises(OSError, match="no space left"):
            save(tmp_path, 2, keep=1, policy=Crashes() if where == "policy" else None)
    assert found(tmp_path) == [("main", 1)]
    save(tmp_path, 2, keep=1)
    assert found(tmp_path) == [("main", 2)]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002-main"]
    assert not (tmp_path / "run" / "checkpoints" / "step-00000002-main" / "policy" / "shard_0").exists()


@pytest.mark.parametrize("where", ["policy", "rename", "removal"])
def test_a_crash_while_saving_the_same_step_again_leaves_one_whole_checkpoint(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A stage that ends as saturated saves once more at the step of its last checkpoint."""
    save(tmp_path, 3, num_updates=1)
    rename, remove_all = os.replace, shutil.rmtree

    def crash_at_the_last(source: Any, target: Any) -> None:
        if ".writing" in str(source):
            raise OSError("the node is gone")
        rename(source, target)

    def remove(folder: Path, **options: Any) -> None:
        if where == "removal" and str(folder).endswith(".replaced") and folder.exists():
            raise OSError("the node is gone")
        remove_all(folder, **options)

    with monkeypatch.context() as patch:
        if where == "rename":
            patch.setattr(os, "replace", crash_at_the_last)
        patch.setattr(shutil, "rmtree", remove)
        with pytest.raises(OSError, match=r"the node is gone|no space"):
            save(tmp_path, 3, num_updates=2, policy=Crashes() if where == "policy" else None)
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    assert checkpoint.state.num_updates == (2 if where == "removal" else 1)
    save(tmp_path, 3, num_updates=3)
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    assert checkpoint.state.num_updates == 3
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000003-main"]


def test_a_folder_without_its_state_does_not_exist(tmp_path: Path, model_dir: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "run" / "checkpoints" / "step-00000009-main" / "policy").mkdir(parents=True)
    assert found(tmp_path) == [("main", 1)]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, model_dir: Path, keep: int) -> None:
    for step in (5, 10, 15, 100_000_000):
        save(tmp_path, step, keep=keep)
    assert found(tmp_path) == [("main", step) for step in (5, 10, 15, 100_000_000)[-keep:]]


def test_the_last_of_every_other_stage_is_kept(tmp_path: Path, model_dir: Path) -> None:
    """A later stage may begin from it, and a stage may be repeated from its parent."""
    for step in (1, 2, 3):
        save(tmp_path, step, "first", keep=1)
    for step in (4, 5, 6):
        save(tmp_path, step, "second", keep=1)
    assert found(tmp_path) == [("first", 3), ("second", 6)]
    checkpoints = find_checkpoints(tmp_path / "run")
    for stage, step in (("first", 3), ("second", 6)):
        last = last_of_stage(checkpoints, stage)
        assert last is not None
        assert last.state.step == step
    assert last_of_stage(checkpoints, "third") is None


def test_all_ranks_save_and_one_writes_the_state(tmp_path: Path, model_dir: Path) -> None:
    class OneShardEach(ScriptedPolicy):
        rank = 0

        def save(self, directory: Path) -> None:
            (directory / f"shard_{self.rank}").write_text("mine")

    def save_on(ranks: ThreadRanks) -> Path:
        ranks.barrier = lambda: ranks.gather(None)  # type: ignore[attr-defined]
        policy = OneShardEach()
        policy.rank = ranks.layout.rank
        path = writer(tmp_path, ranks=ranks).save(policy, RunState(stage="main", step=1))
        assert (path / "state.json").exists(), "whole on every rank's return"
        return path

    paths = run_as_ranks(save_on, 4, 2, 1)
    assert len(set(paths)) == 1
    assert sorted(file.name for file in (paths[0] / "policy").iterdir()) == [f"shard_{i}" for i in range(4)]
