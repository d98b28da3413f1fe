"""Lines of metrics.jsonl: added at once, taken back by a resumed run, read although some are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.run_folder.metrics_file import append_metrics, read_metrics, read_records, rewind_metrics

RECORDED = [("a", 0), ("a", 1), ("a", 2), ("a", 4), ("b", 4), ("b", 5), ("b", 5)]
"""The second stage begins with a record of its own at the last step of the first, and ends with another validation."""


def record(step: int, stage: str = "main", **numbers: float) -> dict[str, Any]:
    return {"step": step, "stage": stage, **numbers}


def steps(path: Path) -> list[tuple[str, int]]:
    return [(line["stage"], line["step"]) for line in read_metrics(path)]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    """A file with the lines of RECORDED."""
    path = tmp_path / "metrics.jsonl"
    for number, (stage, step) in enumerate(RECORDED, start=1):
        append_metrics(path, record(step, stage))
        assert len(path.read_text().splitlines()) == number, "a reader sees each line at once"
    return path


def test_nan_is_refused(metrics: Path) -> None:
    """JSON has no NaN, and other readers would fail on the whole file."""
    with pytest.raises(ValueError, match="JSON"):
        append_metrics(metrics, record(0, loss=float("nan")))


@pytest.mark.parametrize("cut", [1, 2, 10, 25])
def test_a_last_line_that_a_crash_cut_off_is_left_out_and_not_continued(metrics: Path, cut: int) -> None:
    metrics.write_text(metrics.read_text()[:-cut])
    whole = RECORDED if cut == 1 else RECORDED[:-1]  # without its line break alone a record is still whole
    assert steps(metrics) == whole
    assert read_records(metrics)[1] == 0, "it is still being written"
    rewind_metrics(metrics, 7, 5)
    append_metrics(metrics, record(6, "b"))
    assert steps(metrics) == [*whole, ("b", 6)]


@pytest.mark.parametrize("num_records", range(len(RECORDED) + 2))
def test_a_resumed_run_drops_what_it_does_again(metrics: Path, num_records: int) -> None:
    left = RECORDED[:num_records]
    kept = rewind_metrics(metrics, num_records, left[-1][1] if left else 0)
    assert steps(metrics) == [(line["stage"], line["step"]) for line in kept] == left
    assert [path.name for path in metrics.parent.iterdir()] == ["metrics.jsonl"]


def test_lines_that_were_lost_do_not_make_later_ones_stay(metrics: Path) -> None:
    """A node failed before its last lines were on disk, or somebody truncated the file."""
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[3:]))
    rewind_metrics(metrics, 4, 4)
    assert steps(metrics) == [("a", 4), ("b", 4)]


@pytest.mark.parametrize(
    "damaged",
    ["\0" * 9, "\xff\xfe", "{", "5", "[1]", '"text"', '{"step": true, "stage": "a"}', '{"step": NaN, "stage": "a"}',
     "[" * 9999],
)  # fmt: skip
def test_a_damaged_line_costs_no_other_and_is_said(metrics: Path, damaged: str) -> None:
    text = "\n".join([damaged, *metrics.read_text().splitlines()[1:]]) + "\n"
    metrics.write_text(text, encoding="latin-1")
    assert ([line["step"] for line in read_records(metrics)[0]], read_records(metrics)[1]) == (
        [1, 2, 4, 4, 5, 5],
        1,
    )
    said: list[str] = []
    kept = rewind_metrics(metrics, 3, 3, said.append)
    assert [one["step"] for one in kept] == [1, 2], "the fourth line is behind the checkpoint"
    assert said == [f"{metrics} has 1 damaged line(s), which are left out from now on"]


def test_rewinding_a_new_run_is_no_work(tmp_path: Path) -> None:
    assert rewind_metrics(tmp_path / "metrics.jsonl", 0, 0) == []
    assert list(tmp_path.iterdir()) == []


def test_other_files_of_lines_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(json.dumps({"a": 1}) + "\n\n{\n")
    assert read_metrics(tmp_path / "own.jsonl") == [{"a": 1}]
