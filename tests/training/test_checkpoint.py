"""Checkpoints appear complete or not at all; old ones are deleted when newer ones are complete; a later stage finds its
parent's."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import BestMode, CheckpointCallbackParams, ConfigError
from nemo_prorl.run_folder.checkpoints import Checkpoint, find_checkpoints, last_of_stage
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN
from nemo_prorl.training.checkpoint import is_intact, load_policy, worth_keeping
from nemo_prorl.types import RunState
from tests.training.conftest import SINGLE, ScriptedPolicy, ScriptedSave, folders, found, save, writer
from tests.training.thread_ranks import ThreadRanks, run_as_ranks


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
    path = writer(tmp_path).save(ScriptedPolicy(weight=0.5, reference_weight=0.25), state, score=0.75)
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    assert (checkpoint.path, checkpoint.state, checkpoint.score) == (path, state, 0.75)
    loaded = ScriptedPolicy()
    load_policy(loaded, checkpoint)
    assert (loaded.weight, loaded.reference_weight) == (0.5, 0.25)
    assert json.loads((path / "state.json").read_text())["provenance"] == {"commit": "abc"}
    assert sorted(file.name for file in (path / "huggingface").iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "spiece.model", "tokenizer.json",
        "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    listed = json.loads((path / "manifest.json").read_text())["files"]
    files = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    assert set(listed) == files - {"manifest.json"}


def test_another_reference_is_noticed(tmp_path: Path, model_dir: Path) -> None:
    """Other trainers make this mistake: the resumed policy takes the place of the reference."""

    class Forgetful(ScriptedPolicy):
        def load(self, directory: Path, *, reference: bool = True, **_: Any) -> None:
            super().load(directory)
            self.reference_weight = self.weight

    save(tmp_path, 1, policy=ScriptedPolicy(weight=0.5, reference_weight=0.25))
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"reference policy in .*step-00000001-main is not the one"):
        load_policy(Forgetful(), checkpoint)


# In the background


@dataclass
class SlowPolicy(ScriptedPolicy):
    """A policy whose files are written only when the test allows it."""

    may_write: threading.Event = field(default_factory=threading.Event)

    def begin_save(self, directory: Path) -> Any:
        save = super().begin_save(directory)
        write = save.write
        save.write = lambda: self.may_write.wait(30) and write()  # type: ignore[assignment, return-value, method-assign]
        return save


def test_a_save_is_complete_at_the_first_poll_after_its_files_are(tmp_path: Path, model_dir: Path) -> None:
    policy, state = SlowPolicy(weight=1.0), RunState(stage="main", step=1)
    saving = writer(tmp_path, asynchronous=True)
    saving.save(policy, state)
    policy.weight, state.step = 2.0, 2  # training goes on
    saving.poll()
    assert found(tmp_path) == []
    assert folders(tmp_path) == [".writing-step-00000001-main"]
    policy.may_write.set()
    while not found(tmp_path):
        time.sleep(0.01)
        saving.poll()
    assert found(tmp_path) == [("main", 1)]
    loaded = ScriptedPolicy()
    load_policy(loaded, find_checkpoints(tmp_path / "run")[0])
    assert loaded.weight == 1.0
    assert saving.take_waited_s() > 0
    assert saving.take_waited_s() == 0


def test_a_second_save_waits_for_the_first(tmp_path: Path, model_dir: Path) -> None:
    policy = SlowPolicy(weight=1.0)
    saving = writer(tmp_path, asynchronous=True)
    saving.save(policy, RunState(stage="main", step=1))
    threading.Timer(0.05, policy.may_write.set).start()
    saving.save(policy, RunState(stage="main", step=2))
    assert found(tmp_path) == [("main", 1)]
    saving.finish()
    assert found(tmp_path) == [("main", 1), ("main", 2)]


# What is kept


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_checkpoints_are_kept(tmp_path: Path, model_dir: Path, keep: int) -> None:
    for step in (5, 10, 15, 100_000_000):
        save(tmp_path, step, keep=keep)
    assert found(tmp_path) == [("main", step) for step in (5, 10, 15, 100_000_000)[-keep:]]
    assert len(folders(tmp_path)) == keep


class WithMoments(ScriptedPolicy):
    def begin_save(self, directory: Path) -> Any:
        (directory / "moments").mkdir()
        (directory / "moments" / "first").write_text("moments")
        return super().begin_save(directory)


def test_only_the_newest_checkpoints_keep_their_moments_and_all_stay_whole(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the best and of a stage's end they go; also if the process dies before the files are deleted."""

    def die(path: Path, **_: Any) -> None:
        assert path.name != "moments", "killed"

    saving = writer(tmp_path, keep=2, best=1, keep_moments=False)
    for step, stage, score in ((5, "a", None), (10, "b", 0.9), (15, "b", 0.1)):
        saving.save(WithMoments(), RunState(stage=stage, step=step), score=score)
    saved = find_checkpoints(tmp_path / "run")
    assert [(one.state.step, one.has_moments) for one in saved] == [(5, False), (10, True), (15, True)]
    assert not (saved[0].policy / "moments").exists()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die)
        with pytest.raises(AssertionError, match="killed"):
            saving.save(WithMoments(), RunState(stage="b", step=20))
    saved = find_checkpoints(tmp_path / "run")
    assert [(one.state.step, one.has_moments) for one in saved] == [
        (5, False), (10, False), (15, True), (20, True),
    ]  # fmt: skip
    assert all(is_intact(one, SINGLE) for one in saved)


def test_a_stage_that_ended_without_a_step_is_newer_than_its_parent(tmp_path: Path, model_dir: Path) -> None:
    """Both checkpoints have the same step, so their names do not tell which is newer."""
    save(tmp_path, 4, "b", num_records=5)
    save(tmp_path, 4, "a", num_records=6)
    assert found(tmp_path) == [("b", 4), ("a", 4)]


def test_an_old_checkpoint_that_cannot_be_removed_yet_stops_nothing(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps a folder while somebody reads one of its files. It no longer counts as a checkpoint and is deleted
    later."""
    in_use = [True]
    remove = shutil.rmtree

    def remove_unless_in_use(path: Path, ignore_errors: bool = False) -> None:
        if not (in_use[0] and path.name.startswith(".removing-")):
            remove(path, ignore_errors=ignore_errors)
        elif not ignore_errors:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(shutil, "rmtree", remove_unless_in_use)
    for step in (1, 2, 1):
        save(tmp_path, step, keep=1)
    *removing, kept = folders(tmp_path)
    assert [name.rpartition(".")[0] for name in removing] == [".removing-step-00000001-main"] * 2
    assert kept == "step-00000002-main"
    in_use[0] = False
    save(tmp_path, 3, keep=1)
    assert folders(tmp_path) == ["step-00000003-main"]


def test_the_last_checkpoint_of_every_other_stage_is_kept(tmp_path: Path, model_dir: Path) -> None:
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


@pytest.mark.parametrize(
    ("scores", "best", "kept"),
    [
        ("b0.5 b0.75 b b0.25 b0.75 b0.5 b", 0, [7]),
        # Of equally good ones the newest, and none without a score.
        ("b0.5 b0.75 b b0.25 b0.75 b0.5 b", 1, [5, 7]),
        ("b0.5 b0.75 b b0.25 b0.75 b0.5 b", 2, [2, 5, 7]),
        ("b0.5 b0.75 b b0.25 b0.75 b0.5 b", 9, [1, 2, 4, 5, 6, 7]),
        # The best of the run, the last of a, and the best and the last of b, to which a reset may have to go back.
        ("a0.9 a0.8 b0.4 b0.7 b0.5 b0.3", 1, [1, 2, 4, 6]),
        # Those that a user has asked for.
        ("a0.9 a0.8! a0.8 b0.4 b! b0.5 b0.3", 0, [2, 3, 5, 7]),
    ],
)
@pytest.mark.parametrize("mode", BestMode)
def test_the_best_checkpoints_of_run_and_stage_are_kept_as_well(
    scores: str, best: int, kept: list[int], mode: BestMode
) -> None:
    sign = 1.0 if mode is BestMode.max else -1.0
    checkpoints = [
        Checkpoint(
            path=Path(f"{step}"),
            state=RunState(stage=text[0], step=step),
            score=sign * float(text[1:].strip("!")) if text[1:].strip("!") else None,
            monitor=DOMAIN_MEAN,
            reference_hash="",
            is_requested=text.endswith("!"),
        )
        for step, text in enumerate(scores.split(), start=1)
    ]
    params = CheckpointCallbackParams(save_last_k=1, save_top_k=best, mode=mode)
    assert sorted({one.state.step for one in worth_keeping(checkpoints, "b", params)}) == kept


def test_all_ranks_save_and_one_writes_the_state(tmp_path: Path, model_dir: Path) -> None:
    class OneShardEach(ScriptedPolicy):
        rank = 0

        def begin_save(self, directory: Path) -> Any:
            return ScriptedSave(directory, "mine", f"shard_{self.rank}")

    def save_on(ranks: ThreadRanks) -> Path:
        policy = OneShardEach()
        policy.rank = ranks.layout.rank
        path = writer(tmp_path, ranks=ranks).save(policy, RunState(stage="main", step=1))
        assert (path / "state.json").exists(), "whole on every rank's return"
        return path

    paths = run_as_ranks(save_on, 4, 2, 1)
    assert len(set(paths)) == 1
    assert sorted(file.name for file in (paths[0] / "policy").iterdir()) == [f"shard_{i}" for i in range(4)]
