"""The record of a run's processes: their hours, and how each ended."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from nemo_prorl.run_folder import starts as module
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.starts import (
    Recorder,
    Start,
    read_starts,
    recorded_start,
    starts_file,
)
from nemo_prorl.training.watchdog import Watchdog


def recorded(
    run_dir: Path,
    stage: str = "a",
    *,
    hours: float = 0.0,
    num_ranks: int = 8,
    is_main: bool = True,
    on_gpus: bool = True,
) -> AbstractContextManager[Recorder]:
    """A process that began `hours` ago."""
    began = time.time() - 3600 * hours
    return recorded_start(run_dir, stage, began=began, num_ranks=num_ranks, on_gpus=on_gpus, is_main=is_main)


def live(run_dir: Path, stage: str = "a", *, hours: float = 1.0, num_ranks: int = 8, end: str = "") -> None:
    """Records a process that began `hours` ago and runs until now."""
    with recorded(run_dir, stage, hours=hours, num_ranks=num_ranks) as recorder:
        if end:
            recorder.end(end)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sign of life is written, and a process that ends hardly waits for one that is stuck."""
    monkeypatch.setattr(module, "REWRITE_S", 0.0)
    monkeypatch.setattr(module, "END_WAIT_S", 0.05)


def test_hours_add_up_over_the_processes_of_a_stage(tmp_path: Path) -> None:
    live(tmp_path, "a", hours=2.0, end="paused")
    live(tmp_path, "a", hours=0.5)
    live(tmp_path, "b", hours=1.0, num_ranks=32, end="steps")
    run = RunFolder(tmp_path)
    assert [(start.stage, start.end) for start in run.starts] == [("a", "paused"), ("a", ""), ("b", "steps")]
    assert run.stage_hours == pytest.approx({"a": 8 * 2.5, "b": 32.0}, rel=1e-3)


def test_the_error_that_ends_a_process_is_on_record(tmp_path: Path) -> None:
    for error in (RuntimeError("the disk is full"), KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)), recorded(tmp_path):
            raise error
    with suppress(ValueError), recorded(tmp_path) as recorder:
        recorder.end("steps")
        raise ValueError
    ends = [start.end for start in read_starts(tmp_path)]
    assert ends == ["the disk is full", "interrupted by Ctrl-C", "ValueError", "steps"]


@pytest.mark.parametrize(
    ("on_gpus", "steps", "may"),
    [
        pytest.param(True, [("a", 7)], [True], id="the first"),
        pytest.param(True, [("a", 7), ("a", 7), ("a", 7)], [True, False, False], id="the same step again"),
        pytest.param(True, [("a", 7), ("a", 9), ("a", 7)], [True, True, False], id="with another in between"),
        pytest.param(True, [("a", 7), ("b", 7)], [True, True], id="another stage"),
        pytest.param(False, [("a", 7)], [False], id="a CPU computes the same again"),
    ],
)
def test_a_step_that_was_not_finite_is_tried_twice_on_gpus(
    tmp_path: Path, on_gpus: bool, steps: list[tuple[str, int]], may: list[bool]
) -> None:
    seen = []
    for stage, step in steps:
        with suppress(ArithmeticError), recorded(tmp_path, stage, on_gpus=on_gpus) as recorder:
            seen.append(recorder.may_repeat(step))
            raise ArithmeticError
    assert seen == may


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    with recorded(tmp_path, is_main=False) as recorder:
        recorder.note()
        recorder.end("steps")
    assert not starts_file(tmp_path).exists()


def test_progress_moves_the_end_of_a_process_that_will_be_killed(tmp_path: Path, at_once: None) -> None:
    with (
        recorded(tmp_path) as recorder,
        Watchdog(tmp_path, rank=0, timeout_s=0, recorder=recorder) as watchdog,
    ):
        (before,) = read_starts(tmp_path)
        time.sleep(0.01)
        watchdog.beat()
        (after,) = read_starts(tmp_path)
    assert (after.seen > before.seen, after.end) == (True, "")


def test_many_signs_of_life_are_few_writes(tmp_path: Path) -> None:
    with recorded(tmp_path) as recorder:
        starts_file(tmp_path).unlink()
        for _ in range(1000):
            recorder.note()
        assert not starts_file(tmp_path).exists()


@pytest.mark.parametrize("content", [b"", b"[1]", b'[{"stage": "a"}]', b'{"a": 1}', b"null", b"\xff"])
def test_a_file_that_cannot_be_read_stops_nothing_and_is_kept(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    starts_file(tmp_path).write_bytes(content)
    assert read_starts(tmp_path) == []
    assert f"skipped {starts_file(tmp_path)}, which cannot be read: " in capsys.readouterr().err
    for _ in range(2):
        live(tmp_path, end="steps")
    assert [start.end for start in read_starts(tmp_path)] == ["steps", "steps"]
    (kept,) = tmp_path.glob("unread-*-starts.json")
    assert kept.read_bytes() == content
    assert f"it is now called {kept.name}" in capsys.readouterr().err


def test_ctrl_c_in_the_midst_of_a_write_leaves_the_end_to_be_told(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(stage="a", began=0.0, seen=0.0, num_ranks=1, on_gpus=False)
    recorder = Recorder(tmp_path, start, is_main=True)

    def interrupt(file: Path, text: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "replace_text", interrupt)
        time.sleep(0.01)
        with suppress(KeyboardInterrupt):
            recorder.note()
            pytest.fail("it has not written")
    recorder.end("interrupted by Ctrl-C")
    assert [start.end for start in read_starts(tmp_path)] == ["interrupted by Ctrl-C"]


def test_a_write_that_is_stuck_does_not_keep_the_process(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, mended = threading.Event(), threading.Event()

    def hang(file: Path, text: str) -> None:
        stuck.set()
        mended.wait(30)

    with recorded(tmp_path) as recorder:
        monkeypatch.setattr(module, "replace_text", hang)
        time.sleep(0.01)
        thread = threading.Thread(target=recorder.note)
        thread.start()
        assert stuck.wait(10)
        began = time.monotonic()
        recorder.end("steps")
        assert time.monotonic() - began < 10
        assert thread.is_alive(), "it was stuck all the while"
        mended.set()
        thread.join()
