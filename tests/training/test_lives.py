"""What is recorded of the processes of a run: hours, and how each ended."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from nemo_prorl.training import lives as module
from nemo_prorl.training.lives import Life, Recorder, hours_by_stage, lives_file, read_lives, recorded_life
from nemo_prorl.training.watchdog import Watchdog


def live(run_dir: Path, stage: str = "a", *, hours: float = 1.0, num_ranks: int = 8, end: str = "") -> None:
    """A process that began `hours` ago, up to now."""
    with recorded_life(
        run_dir, stage, began=time.time() - 3600 * hours, num_ranks=num_ranks, on_gpus=True, is_main=True
    ) as life:
        if end:
            life.end(end)


def test_hours_add_up_over_the_processes_of_a_stage(tmp_path: Path) -> None:
    live(tmp_path, "a", hours=2.0, end="paused")
    live(tmp_path, "a", hours=0.5)
    live(tmp_path, "b", hours=1.0, num_ranks=32, end="steps")
    lives = read_lives(tmp_path)
    assert [(life.stage, life.end) for life in lives] == [("a", "paused"), ("a", ""), ("b", "steps")]
    assert hours_by_stage(lives) == pytest.approx({"a": 8 * 2.5, "b": 32.0}, rel=1e-3)


def test_the_error_that_ends_a_process_is_on_record(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        recorded_life(tmp_path, "a", began=time.time(), num_ranks=1, on_gpus=False, is_main=True),
    ):
        raise RuntimeError("the disk is full")
    with (
        pytest.raises(KeyboardInterrupt),
        recorded_life(tmp_path, "a", began=time.time(), num_ranks=1, on_gpus=False, is_main=True),
    ):
        raise KeyboardInterrupt
    assert [life.end for life in read_lives(tmp_path)] == ["the disk is full", "interrupted by Ctrl-C"]


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    with recorded_life(
        tmp_path, "a", began=time.time(), num_ranks=2, on_gpus=False, is_main=False
    ) as recorder:
        recorder.note()
        recorder.end("steps")
    assert not lives_file(tmp_path).exists()


def test_progress_moves_the_end_of_a_process_that_will_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REWRITE_S", 0.0)
    with (
        recorded_life(tmp_path, "a", began=time.time(), num_ranks=1, on_gpus=False, is_main=True) as recorder,
        Watchdog(tmp_path, rank=0, timeout_s=0, life=recorder) as watchdog,
    ):
        (before,) = read_lives(tmp_path)
        time.sleep(0.01)
        watchdog.beat()
        (after,) = read_lives(tmp_path)
    assert after.seen > before.seen
    assert after.end == ""


def test_many_signs_of_life_are_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_life(
        tmp_path, "a", began=time.time(), num_ranks=1, on_gpus=False, is_main=True
    ) as recorder:
        lives_file(tmp_path).unlink()
        for _ in range(1000):
            recorder.note()
        assert not lives_file(tmp_path).exists()


def test_threads_may_give_signs_of_life_at_one_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REWRITE_S", 0.0)
    life = Life(stage="a", began=0.0, seen=0.0, num_ranks=1, on_gpus=False)
    recorder = Recorder(tmp_path, life, is_main=True)
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
    assert len(read_lives(tmp_path)) == 1


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"stage": "a"}]', json.dumps({"a": 1})])
def test_a_file_that_cannot_be_read_stops_nothing(tmp_path: Path, content: str) -> None:
    lives_file(tmp_path).write_text(content)
    assert read_lives(tmp_path) == []
    live(tmp_path, end="steps")
    assert [life.end for life in read_lives(tmp_path)] == ["steps"]
