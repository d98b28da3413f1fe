"""metrics.jsonl and all other files with a JSON object a line that grow: a finished step adds one, and a run that
resumes deletes the lines of the steps that it repeats."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_prorl.run_folder.storage import replace_text
from nemo_prorl.run_folder.terminal import say_once

METRICS_FILE = "metrics.jsonl"
"""File in a run's folder with a record of every step, and of the validation before a stage's first."""


def append_metrics(path: Path, record: Mapping[str, Any]) -> None:
    """Adds a line with one JSON object, flushed at once: readers of a live run see every finished step."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())  # a checkpoint relies on the records before it


def rewind_metrics(
    path: Path, num_records: int, step: int, say: Callable[[str], None] = say_once
) -> list[dict[str, Any]]:
    """Keeps the first `num_records` records up to `step` and deletes the rest, which the run will write again. Returns
    those that it keeps; says how many of them are damaged, which it deletes too."""
    if not path.exists():
        return []
    lines = list(islice(read_lines(path, is_record), num_records))
    records = [line for line in lines if line is not None]
    if num_damaged := len(lines) - len(records):
        say(f"{path} has {num_damaged} damaged line(s), which are left out from now on")
    kept = [record for record in records if record["step"] <= step]
    replace_text(path, "".join(json.dumps(record) + "\n" for record in kept))
    return kept


def read_metrics(path: Path) -> list[Any]:
    """Returns what the lines hold, without those that are no JSON, which it counts on standard error."""
    lines = list(read_lines(path))
    if num_damaged := lines.count(None):
        say_once(f"{path} has {num_damaged} damaged line(s), which are left out")
    return [line for line in lines if line is not None]


def read_records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns (the records of a run, how many lines hold none, without a last one that is still being written)."""
    lines = list(read_lines(path, is_record))
    records = [line for line in lines if line is not None]
    is_being_written = lines[-1:] == [None] and not path.read_bytes().endswith(b"\n")
    return records, len(lines) - len(records) - is_being_written


def is_record(value: Any) -> bool:
    """Returns whether a line holds a record of a run: an object with a step and a stage."""
    if not isinstance(value, dict):
        return False
    step, stage = value.get("step"), value.get("stage")
    return isinstance(step, int) and not isinstance(step, bool) and isinstance(stage, str)


def read_lines(path: Path, is_whole: Callable[[Any], bool] = lambda value: True) -> Iterator[Any]:
    """Yields what each line that is not empty holds; None for one that a kill has cut off or a full or failing disk has
    damaged: no JSON, or not `is_whole`."""
    with path.open("rb") as file:
        for line in filter(bytes.strip, file):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            yield value if value is not None and is_whole(value) else None
