"""A run that went on where it should not have is taken back, and nothing of it is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.cluster.slurm_queue import is_gone
from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.lock import alone_in
from nemo_prorl.run_folder.markers import is_done, mark_done, mark_failed
from nemo_prorl.run_folder.metrics_file import append_metrics, read_metrics
from nemo_prorl.training import rewinding
from nemo_prorl.training.rewinding import rewind
from nemo_prorl.training.stages import find_starting_point
from tests.training.test_stages import config, put_checkpoint

MEASURED = ("metrics.jsonl", "digests.jsonl", "remeasured/mine.jsonl", "validations/smoke/metrics.jsonl")


@pytest.fixture
def consumed(tmp_path: Path) -> Path:
    """Writes a run whose reward broke after step 30 of stage b: b, c and d are done since, c and d without a step."""
    run = tmp_path / "run"
    for step, stage in ((10, "a"), (20, "a"), (25, "b"), (30, "b"), (30, "c"), (30, "d")):
        put_checkpoint(run, stage, step, num_records=step + "abcd".index(stage), stage_step=step % 20)
    (run / "stages").mkdir()
    for stage in "abcd":
        mark_done(run, stage, outcome="saturated", checkpoint="")
        (run / "stages" / f"{stage}.yaml").write_text(f"stage: {{name: {stage}}}\n")
    for step in range(1, 31):
        for file in MEASURED:
            (run / file).parent.mkdir(parents=True, exist_ok=True)
            append_metrics(run / file, {"step": step, "stage": "a" if step <= 20 else "b"})
    for step in (20, 25, 30):
        for name in (
            "samples/step-{}.jsonl",
            "difficulty/step-{}.parquet",
            "validations/step-{}-b.parquet",
            "validations/smoke/step-{}-b/results.json",
            "rollouts/step-{}-rank0.parquet",
            "rollouts/trained/step-{}-rank0.parquet",
        ):
            file = run / name.format(f"{step:08d}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("x")
    return run


def names(run: Path) -> list[str]:
    return [checkpoint.path.name[-4:] for checkpoint in find_checkpoints(run)]


@pytest.mark.parametrize(
    ("arguments", "left", "done", "goes_on", "is_resume"),
    [
        (["b"], ["10-a", "20-a"], "a", 20, False),  # b begins again
        (["c"], ["10-a", "20-a", "25-b", "30-b"], "ab", 30, False),
        (["b", "--step", "25"], ["10-a", "20-a", "25-b"], "a", 25, True),
        (["b", "--step", "30"], ["10-a", "20-a", "25-b", "30-b"], "a", 30, True),
        (["a", "--step", "10"], ["10-a"], "", 10, True),
        (["a"], [], "", None, False),  # the run begins anew
    ],
)
def test_one_command_leads_back(
    consumed: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    left: list[str],
    done: str,
    goes_on: int | None,
    is_resume: bool,
) -> None:
    before = everything(consumed)
    stage = arguments[0]
    parent = {"a": "", "b": "a", "c": "b"}[stage]
    with pytest.raises(ConfigError, match=rf"has gone on from stage .*nemo_prorl rewind {consumed} {stage}`"):
        find_starting_point(config(consumed, stage, parent))
    assert cli.main(["rewind", str(consumed), *arguments]) == 0
    assert names(consumed) == left
    assert "".join(stage for stage in "abcd" if is_done(consumed, stage)) == done
    start = find_starting_point(config(consumed, stage, parent))
    assert (start.is_resume, start.checkpoint.state.step if start.checkpoint else None) == (
        is_resume,
        goes_on,
    )
    for file in MEASURED:
        assert [record["step"] for record in read_metrics(consumed / file)] == [*range(1, (goes_on or 0) + 1)]
    (aside,) = (consumed / "set_aside").iterdir()
    assert everything(aside) | everything(consumed) >= before, (
        "nothing is lost, and everything keeps its place"
    )
    for folder in ("samples", "rollouts", "rollouts/trained", "validations/smoke"):
        steps = {int(path.name[5:13]) for path in consumed.glob(f"{folder}/step-*")}
        assert steps == {step for step in (20, 25, 30) if step <= (goes_on or 0)}
    said = capsys.readouterr().out
    assert said.startswith(f"stage {stage} {'goes on after' if is_resume else 'begins again with'} ")
    assert str(aside) in said


def everything(folder: Path) -> set[tuple[str, bytes]]:
    """Returns (path, content) of every file outside of set_aside."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    relative = ((path.relative_to(folder).as_posix(), path.read_bytes()) for path in files)
    return {(name, content) for name, content in relative if not name.startswith("set_aside")}


def test_a_stage_that_failed_at_its_start_and_damaged_checkpoints_make_way(consumed: Path) -> None:
    mark_failed(consumed, "e", reason="It finds nothing to learn from.")
    (consumed / "checkpoints" / "corrupt-step-00000028-b").mkdir()
    (consumed / "checkpoints" / "step-00000029-b").mkdir()
    rewind(consumed, "b")
    assert sorted(path.name for path in (consumed / "stages").iterdir()) == ["a.done", "a.yaml"]
    assert sorted(path.name[-4:] for path in (consumed / "checkpoints").iterdir()) == ["10-a", "20-a"]


def test_a_stage_that_goes_on_has_not_failed_any_more(consumed: Path) -> None:
    """A requeued job refuses a stage with that marker."""
    (consumed / "stages" / "b.done").unlink()
    mark_failed(consumed, "b", reason="The loss is not finite.")
    rewind(consumed, "b", 25)
    assert sorted(path.name for path in (consumed / "stages").iterdir()) == ["a.done", "a.yaml", "b.yaml"]


@pytest.mark.parametrize("num_moves", range(15))
def test_whenever_it_dies_the_same_command_completes_it(
    consumed: Path, num_moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: Iterator[int] = iter(range(num_moves))
    replace = os.replace

    def die(*paths: Any) -> None:
        if next(moves, None) is None:
            raise KeyboardInterrupt
        replace(*paths)

    before = everything(consumed)
    monkeypatch.setattr(rewinding.os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        rewind(consumed, "b")
    monkeypatch.undo()
    newest = find_checkpoints(consumed)[-1].state
    assert newest.stage >= "b", "the stage is named as long as anything is left to do"
    rewind(consumed, "b")
    assert names(consumed) == ["10-a", "20-a"]
    asides = [everything(aside) for aside in (consumed / "set_aside").iterdir()]
    assert set.union(everything(consumed), *asides) >= before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["x"], r"no checkpoint of stage x: write one of its stages \(a, b, c, d\)\."),
        (["b", "--step", "26"], r"no checkpoint of step 26 to go on from: write one of 25, 30\."),
    ],
)
def test_what_is_not_there_is_one_sentence_and_changes_nothing(
    consumed: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    before = everything(consumed)
    assert cli.main(["rewind", str(consumed), *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert (everything(consumed), (consumed / "set_aside").exists()) == (before, False)
    assert re.search(sentence, said)


def test_a_run_in_progress_and_a_folder_that_is_no_run_are_refused(
    consumed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with alone_in(consumed, is_gone):
        assert cli.main(["rewind", str(consumed), "b"]) == 2
    assert "is training in" in capsys.readouterr().err
    assert cli.main(["rewind", str(tmp_path), "b"]) == 2
    assert "has no checkpoints/: write the folder of a run" in capsys.readouterr().err
    assert not (tmp_path / "lock").exists()
