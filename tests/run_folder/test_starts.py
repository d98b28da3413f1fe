"""The record of a run's processes: their hours, and how each ended."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from nemo_prorl.run_folder import starts as module
from nemo_prorl.run_folder.starts import (
    Recorder,
    Start,
    hours_by_stage,
    read_starts,
    recorded_start,
    starts_file,
)
from nemo_prorl.training.watchdog import Watchdog


def live(run_dir: Path, stage: str = "a", *, hours: float = 1.0, num_ranks: int = 8, end: str = "") -> None:
    """Records a process that began `hours` ago and runs until now."""
    with recorded_start(
        run_dir, stage, began=time.time() - 3600 * hours, num_ranks=num_ranks, on_gpus=True, is_main=True
    ) as recorder:
        if end:
            recorder.end(end)


def test_hours_add_up_over_the_processes_of_a_stage(tmp_path: Path) -> None:
    live(tmp_path, "a", hours=2.0, end="paused")
    live(tmp_path, "a", hours=0.5)
    live(tmp_path, "b", hours=1.0, num_ranks=32, end="steps")
    starts = read_starts(tmp_path)
    assert [(start.stage, start.end) for start in starts] == [("a", "paused"), ("a", ""), ("b", "steps")]
    assert hours_by_stage(starts) == pytest.approx({"a": 8 * 2.5, "b": 32.0}, rel=1e-3)


def test_the_error_that_ends_a_process_is_on_record(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        recorded_start(tmp_path, "a", began=time.time(), num_ranks=1, on_gpus=False, is_main=True),
    ):
        raise RuntimeError("the disk is full")
    with (
        pytest.raises(KeyboardInterrupt),
        recorded_start(tmp_path, "a", began=time.time(), num_ranks=1, on_gpus=False, is_main=True),
    ):
        raise KeyboardInterrupt
    assert [start.end for start in read_starts(tmp_path)] == ["the disk is full", "interrupted by Ctrl-C"]


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    with recorded_start(
        tmp_path, "a", began=time.time(), num_ranks=2, on_gpus=False, is_main=False
    ) as recorder:
        recorder.note()
        recorder.end("steps")
    assert not starts_file(tmp_path).exists()


def test_progress_moves_the_end_of_a_process_that_will_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REWRITE_S", 0.0)
    with (
        recorded_start(
            tmp_path, "a", began=time.time(), num_ranks=1, on_gpus=False, is_main=True
        ) as recorder,
        Watchdog(tmp_path, rank=0, timeout_s=0, recorder=recorder) as watchdog,
    ):
        (before,) = read_starts(tmp_path)
        time.sleep(0.01)
        watchdog.beat()
        (after,) = read_starts(tmp_path)
    assert after.seen > before.seen
    assert after.end == ""


def test_many_signs_of_life_are_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_start(
        tmp_path, "a", began=time.time(), num_ranks=1, on_gpus=False, is_main=True
    ) as recorder:
        starts_file(tmp_path).unlink()
        for _ in range(1000):
            recorder.note()
        assert not starts_file(tmp_path).exists()


def test_threads_may_give_signs_of_life_at_one_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REWRITE_S", 0.0)
    start = Start(stage="a", began=0.0, seen=0.0, num_ranks=1, on_gpus=False)
    recorder = Recorder(tmp_path, start, is_main=True)
    errors: list[BaseException] = []

    def note() -> None:
        try:
            for _ in range(50):
                recorder.note()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(read_starts(tmp_path)) == 1


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '[{"stage": "a"}]', json.dumps({"a": 1}), "null", b"\xff"]
)
def test_a_file_that_cannot_be_read_stops_nothing_and_is_kept(tmp_path: Path, content: str | bytes) -> None:
    content = content if isinstance(content, bytes) else content.encode()
    starts_file(tmp_path).write_bytes(content)
    assert read_starts(tmp_path) == []
    assert starts_file(tmp_path).read_bytes() == content, "who only reads leaves the file where it is"
    live(tmp_path, end="steps")
    live(tmp_path, end="paused")
    assert [start.end for start in read_starts(tmp_path)] == ["steps", "paused"]
    assert [file.read_bytes() for file in tmp_path.glob("starts.unreadable-*.json")] == [content]


def test_a_file_that_is_there_and_fails_to_open_is_not_overwritten(tmp_path: Path) -> None:
    starts_file(tmp_path).mkdir()
    (starts_file(tmp_path) / "kept").touch()
    live(tmp_path, end="steps")
    assert [start.end for start in read_starts(tmp_path)] == ["steps"]
    assert list(tmp_path.glob("starts.unreadable-*.json/kept"))


def test_entries_of_a_later_version_are_read_without_what_is_new(tmp_path: Path) -> None:
    live(tmp_path, "a", hours=2.0, end="paused")
    (entry,) = json.loads(starts_file(tmp_path).read_text())
    starts_file(tmp_path).write_text(json.dumps([entry | {"energy_kwh": 3.5}]))
    live(tmp_path, "a", hours=1.0, end="steps")
    assert [start.end for start in read_starts(tmp_path)] == ["paused", "steps"]
    assert hours_by_stage(read_starts(tmp_path)) == pytest.approx({"a": 24.0}, rel=1e-3)


def test_ctrl_c_in_the_midst_of_a_write_leaves_the_end_to_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REWRITE_S", 0.0)
    monkeypatch.setattr(module, "END_WAIT_S", 0.05)
    start = Start(stage="a", began=0.0, seen=0.0, num_ranks=1, on_gpus=False)
    recorder = Recorder(tmp_path, start, is_main=True)

    def interrupt(file: Path, text: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "replace_text", interrupt)
        time.sleep(0.01)
        with pytest.raises(KeyboardInterrupt):
            recorder.note()
    recorder.end("interrupted by Ctrl-C")
    assert [start.end for start in read_starts(tmp_path)] == ["interrupted by Ctrl-C"]


def test_a_write_that_is_stuck_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REWRITE_S", 0.0)
    monkeypatch.setattr(module, "END_WAIT_S", 0.05)
    stuck, mended = threading.Event(), threading.Event()

    def hang(file: Path, text: str) -> None:
        stuck.set()
        mended.wait(30)

    with recorded_start(
        tmp_path, "a", began=time.time() - 1, num_ranks=1, on_gpus=False, is_main=True
    ) as recorder:
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
