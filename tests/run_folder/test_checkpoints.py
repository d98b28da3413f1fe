"""Tests of the files of checkpoints, without an engine: which folder is meant, which is newest, which is damaged."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nemo_prorl.config import BestMode, ConfigError
from nemo_prorl.run_folder.checkpoints import (
    Checkpoint,
    by_score,
    checkpoint_name,
    find_checkpoints,
    is_better,
    locate_checkpoint,
    newest_folder,
    step_of,
)
from nemo_prorl.run_folder.storage import write_manifest
from nemo_prorl.types import RunState


def write_checkpoint(run_dir: Path, step: int, stage: str = "first") -> Path:
    state = RunState(stage=stage, step=step)
    folder = run_dir / "checkpoints" / checkpoint_name(state)
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "shard").write_bytes(b"weights")
    record = {"state": asdict(state), "score": None, "monitor": "reward/mean", "reference_hash": "0f"}
    (folder / "state.json").write_text(json.dumps(record))
    write_manifest(folder, {})
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for step in (10, 20):
        write_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (".", "checkpoints/step-00000020-first"),
        ("checkpoints", "checkpoints/step-00000020-first"),
        ("checkpoints/step-00000010-first", "checkpoints/step-00000010-first"),
        ("checkpoints/step-00000010-first/policy", "checkpoints/step-00000010-first"),
    ],
)
def test_any_folder_of_a_run_will_do(run_dir: Path, written: str, meant: str) -> None:
    assert locate_checkpoint(run_dir / written) == run_dir / meant


def test_what_was_imported_is_its_own_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    assert locate_checkpoint(tmp_path / "policy") == tmp_path / "policy"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("policy/shard", b"weigh", "shard has 5 bytes"),
        ("policy/shard", b"weighTs", "shard is not what was written"),
        ("state.json", b"{", "state.json has"),
        ("manifest.json", b"{", "manifest.json cannot be read"),
        ("manifest.json", None, "it has no manifest.json"),
    ],
)
def test_a_damaged_checkpoint_is_refused(run_dir: Path, name: str, content: bytes | None, says: str) -> None:
    folder = run_dir / "checkpoints" / "step-00000010-first"
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"is damaged .*{says}"):
        locate_checkpoint(folder)


def test_of_a_run_the_newest_is_meant_that_is_whole(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the newest was cut off or its content has changed, as when the run resumes."""
    newest = run_dir / "checkpoints" / "step-00000020-first"
    shard = newest / "policy/shard"
    shard.write_bytes(shard.read_bytes().swapcase())
    assert locate_checkpoint(run_dir).name == "step-00000010-first"
    assert (
        f"skipped {newest}, which is corrupt: policy/shard is not what was written" in capsys.readouterr().err
    )
    shard.write_bytes(b"")
    assert locate_checkpoint(run_dir).name == "step-00000010-first"


def test_the_newest_is_the_one_of_most_steps_that_is_complete(run_dir: Path) -> None:
    newest = newest_folder(run_dir)
    assert newest is not None
    assert (newest, step_of(newest)) == (find_checkpoints(run_dir)[-1].path, 20)
    (newest / "manifest.json").unlink()
    assert newest_folder(run_dir) == run_dir / "checkpoints" / "step-00000010-first"
    assert newest_folder(run_dir.parent) is None


@pytest.mark.parametrize(("mode", "order"), [(BestMode.max, [30, 20, 10]), (BestMode.min, [10, 30, 20])])
def test_the_best_score_comes_first_and_of_equal_ones_the_newest(mode: BestMode, order: list[int]) -> None:
    made = [
        Checkpoint(
            path=Path(), state=RunState(stage=stage, step=step), score=score, monitor=monitor, reference_hash=""
        )
        for step, stage, score, monitor in (
            (30, "b", 0.5, "reward/mean"), (20, "a", 0.5, "reward/mean"), (10, "a", 0.1, "reward/mean"),
            (40, "a", None, "reward/mean"), (50, "a", 0.9, "other"),
        )
    ]  # fmt: skip
    kind = ("reward/mean", "")
    assert [checkpoint.state.step for checkpoint in by_score(made, kind, mode)] == order
    of_a = [checkpoint.state.step for checkpoint in by_score(made, kind, mode, stage="a")]
    assert of_a == [step for step in order if step != 30]
    assert is_better(0.5, than=0.1, mode=mode) is (mode is BestMode.max)
    assert not is_better(0.5, than=0.5, mode=mode)
